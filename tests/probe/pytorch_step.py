#!/usr/bin/env python3
"""pytorch_step.py -- measures how fast PyTorch is on this GPU: the whole training step of GPT-2 124M
(bf16 autocast, fused AdamW) for each SDPA back end, eager and compiled, and cuDNN's attention by itself.
Prints `name = value unit` lines like the other probes; exits with 69 if torch or a GPU is missing."""

import argparse
import gc
import math
import signal
import sys
import time

BEGAN = time.monotonic()  # before torch is imported, which takes seconds

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except (ImportError, OSError) as error:  # OSError: a library that torch loads is missing or broken
    print(f"no PyTorch to ask: {error}", file=sys.stderr)
    sys.exit(69)

VOCABULARY, LAYERS, HEADS, WIDTH = 50304, 12, 12, 768
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": getattr(SDPBackend, "CUDNN_ATTENTION", None),
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def say(name, value, unit=""):
    text = value if isinstance(value, str) else f"{value:.6g}"
    print(f"{name} = {text} {unit}".rstrip(), flush=True)


def failed(name, error):
    torch.cuda.empty_cache()
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    say(name, f"failed: {reason[:160]}")


def median_seconds(call, calls, rounds):
    """Returns the median time of one of `calls` back-to-back calls, in seconds, by events; the caller has warmed up."""
    seconds = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        seconds.append(1e-3 * start.elapsed_time(end) / calls)
    return sorted(seconds)[rounds // 2]


def attention(length, size, back_end, name):
    """Measures forward and backward of causal attention over 16,384 tokens with 16 heads (12 for head size 64)."""
    heads = 12 if size == 64 else 16
    batch = max(1, 16384 // length)
    shape = (batch, heads, length, size)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    flops = 4 * batch * heads * length * length * size / 2
    with sdpa_kernel(back_end):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward():
            torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

        for part, call, factor in (("forward", forward, 1.0), ("backward", backward, 2.5)):
            for _ in range(3):
                call()
            seconds = median_seconds(call, 10, 5)
            say(f"{name}.{part}", 1e6 * seconds, "us")
            say(f"{name}.{part}.rate", 1e-12 * factor * flops / seconds, "TFLOP/s")


def step(back_end, compiled, batch, length, name):
    """Measures the median time of whole steps; the data are already on the GPU."""
    torch.manual_seed(1)
    model = Gpt(length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    inputs, targets = torch.randint(0, 50257, (2, batch, length), device="cuda")
    run = torch.compile(model) if compiled else model

    def one_step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    with sdpa_kernel(back_end):
        began = time.monotonic()
        loss = one_step().item()
        say(f"{name}.first", time.monotonic() - began, "s")
        if not math.isfinite(loss):
            say(f"{name}.loss", f"failed: {loss}")
        for _ in range(2):
            one_step()
        seconds = median_seconds(one_step, 1, 9)
    say(f"{name}.step", 1e3 * seconds, "ms")
    say(f"{name}.rate", batch * length / seconds, "tokens/s")
    say(f"{name}.memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def ask(name, question, arguments, seconds):
    """Runs one test for at most `seconds` and prints any failure as its result. Returns whether memory ran out."""
    signal.alarm(max(1, int(seconds)))
    short = False
    try:
        torch.cuda.reset_peak_memory_stats()
        question(*arguments, name)
    except torch.cuda.OutOfMemoryError as error:
        short = True
        failed(name, error)
    except Exception as error:  # noqa: BLE001
        failed(name, error)
    finally:
        signal.alarm(0)
    gc.collect()
    torch.cuda.empty_cache()
    return short


def time_over(_number, _frame):
    raise TimeoutError("the time was over")


def questions(batch, length, only_attention):
    """Yields (name, function, arguments, seconds that must be left) for each test, the cheap ones first."""
    if only_attention:
        for name in ("cudnn", "flash"):
            for size, t in ((64, length), (128, length), (128, 4096)):
                yield f"attention.{name}.{size}.{t}", attention, (t, size, BACKENDS[name]), 3
        return
    for name, back in BACKENDS.items():
        yield f"pytorch.{name}.eager", step, (back, False, batch, length), 8
    for size in (64, 128):
        for t in (1024, 2048, 4096, 8192):
            yield f"attention.cudnn.{size}.{t}", attention, (t, size, BACKENDS["cudnn"]), 3
    for name in ("cudnn", "flash", "efficient"):
        yield f"pytorch.{name}.compile", step, (BACKENDS[name], True, batch, length), 15
    yield "pytorch.math.eager", step, (SDPBackend.MATH, False, batch, length), 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100, help="all that may be spent, compiling included")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--attention", action="store_true", help="only attention by itself, of cuDNN and of FlashAttention")
    args = parser.parse_args()
    end = BEGAN + args.seconds
    if not torch.cuda.is_available():
        print("no GPU to ask: torch.cuda.is_available() is false", file=sys.stderr)
        return 69
    signal.signal(signal.SIGALRM, time_over)
    torch.set_float32_matmul_precision("high")
    say("torch.version", torch.__version__)
    say("torch.cuda", str(torch.version.cuda))
    say("cudnn.version", str(torch.backends.cudnn.version()))
    for name, question, arguments, needed in questions(args.batch, args.length, args.attention):
        left = end - time.monotonic()
        if left < needed:
            say(name, "failed: the time was over")
            continue
        short = ask(name, question, arguments, left)
        left = end - time.monotonic()
        if short and question is step and left >= needed:
            back, compiled, batch, length = arguments
            ask(f"{name}.batch{batch // 2}", step, (back, compiled, batch // 2, length), left)
        if name.endswith("compile"):
            torch.compiler.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
