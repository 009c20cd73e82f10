#!/usr/bin/env python3
"""Times a training step of GPT-2 124M here and in PyTorch, on the CPU, side by side.

Both sides do the same work in float32: forward, backward, clipping by the global norm, AdamW, on one micro-batch of
random tokens, vocabulary padded to 50304, tied head. PyTorch gets its fastest ways: scaled_dot_product_attention,
fused AdamW, foreach clipping, and the better of eager and torch.compile. Rounds alternate between the sides, a round's
figure is the median of its steps, the result the median over rounds. Started by scripts/compare_pytorch.sh.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, POSITIONS = 12, 768, 12, 1024
VOCAB, PADDED_VOCAB = 50257, 50304
CONFIG = "configs/gpt2_124m.json"


class Block(nn.Module):
    """Pre-norm attention and MLP, GPT-2's."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time_, 3, HEADS, width // HEADS).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Returns the mean loss."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(PADDED_VOCAB, HIDDEN)
        self.position = nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1])
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.view(-1, PADDED_VOCAB), targets.view(-1))


class TorchSide:
    """One model and optimizer; its steps run eagerly or compiled."""

    def __init__(self, batch, length):
        torch.manual_seed(1)
        self.model = Gpt()
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
        self.tokens = torch.randint(0, VOCAB, (batch, length))
        self.targets = torch.randint(0, VOCAB, (batch, length))
        self.forward = {"eager": self.model, "compile": torch.compile(self.model)}

    def step(self, mode):
        loss = self.forward[mode](self.tokens, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def round(self, mode, steps):
        """Milliseconds of the median step, after one that is not counted."""
        self.step(mode)
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step(mode)
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)


def our_round(args, batch, length, steps):
    """The same from `./train bench step`, which warms up by itself."""
    command = [args.train, "bench", "step", CONFIG, "--steps", str(steps), "--json",
               "--set", f"train_micro_batch_size_per_gpu={batch}", "--set", f"data.seq_length={length}",
               "--set", f"cpu.threads={args.threads}", "--set", "device=cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare_pytorch: {' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{") and '"ms"' in line:
            return float(json.loads(line)["ms"])
    sys.exit(f"compare_pytorch: no line with \"ms\" from {' '.join(command)}:\n{done.stdout[-2000:]}")


def products(threads):
    """PyTorch's own rate on the step's kinds of matrix product: what both sides stand on."""
    print(f"PyTorch's matrix products, float32, {threads} threads (best of 7):")
    for n, k, m in [(256, 768, 3072), (256, 3072, 768), (256, 768, PADDED_VOCAB), (1024, 768, 3072),
                    (2048, 2048, 2048)]:
        a, b = torch.randn(n, k), torch.randn(m, k)
        best = 1e9
        for _ in range(7):
            start = time.perf_counter()
            F.linear(a, b)
            best = min(best, time.perf_counter() - start)
        print(f"  {n:5d} x {k:5d} x {m:5d}   {2e-9 * n * k * m / best:7.1f} GFLOP/s", flush=True)


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor()


def compare(args, batch, length):
    side = TorchSide(batch, length)
    rounds = {mode: [] for mode in args.modes}
    if not args.torch_only:
        rounds["train.c"] = []
    for i in range(args.rounds):
        for name in rounds:
            ms = our_round(args, batch, length, args.steps) if name == "train.c" else side.round(name, args.steps)
            rounds[name].append(ms)
            print(f"  B {batch} T {length} round {i + 1} {name}: {ms:.0f} ms", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in rounds.items()}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="4x64,1x1024", help="micro-batch x length, comma separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--modes", default="eager,compile", help="of PyTorch; the best one counts")
    parser.add_argument("--train", default="./train", help="our program")
    parser.add_argument("--torch-only", action="store_true", help="without our side")
    parser.add_argument("--products", action="store_true", help="also time PyTorch's matrix products")
    args = parser.parse_args()
    args.shapes = [tuple(int(n) for n in shape.split("x")) for shape in args.shapes.split(",")]
    args.modes = args.modes.split(",")
    if not args.torch_only and not os.access(args.train, os.X_OK):
        sys.exit(f"compare_pytorch: {args.train} is not there; run make first, or pass --torch-only")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    print(f"machine   {cpu_name()}, load before the run {load:.1f}")
    if load > 0.5:
        print("notice    other work is running: PyTorch's OpenMP threads suffer more from that than ours; "
              "repeat on a quiet machine")
    print(f"PyTorch   {torch.__version__}, Python {platform.python_version()}, {args.threads} threads, "
          f"{torch.backends.cpu.get_cpu_capability()}; SDPA causal, fused AdamW, foreach clipping")
    if not args.torch_only:
        version = subprocess.run([args.train, "--version"], capture_output=True, text=True, check=False).stdout
        print(f"train.c   {' '.join(version.split())}, {args.threads} threads")
    print(f"model     GPT-2 124M, float32, {LAYERS} layers, vocabulary {VOCAB} padded to {PADDED_VOCAB}, clipping 1.0, "
          "AdamW; one micro-batch a step")
    print(f"method    {args.rounds} interleaved rounds of {args.steps} steps, medians", flush=True)
    if args.products:
        products(args.threads)
    rows = [(batch, length, compare(args, batch, length)) for batch, length in args.shapes]
    print(f"{'B':>3} {'T':>5}  {'side':<16} {'ms/step':>8} {'tokens/s':>9}  ratio to the best of PyTorch")
    for batch, length, result in rows:
        best = min(ms for name, ms in result.items() if name != "train.c")
        for name, ms in result.items():
            label = name if name == "train.c" else f"PyTorch {name}"
            print(f"{batch:3d} {length:5d}  {label:<16} {ms:8.1f} {1e3 * batch * length / ms:9.1f}  {best / ms:.2f}x")


if __name__ == "__main__":
    main()
