#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: small GPTs in plain PyTorch, in float64, as the truth for tests/model/test_model.c.

Every file holds one model: its initial weights (values that float32 holds exactly, stored as F32), a stream of batches
(tokens (STEPS, B, T+1), I32: inputs are the first T, targets the last T), the logits and all gradients of the mean loss
on the first batch (F64), and 20 losses of training with AdamW (decay on matrices only, constant lr, clipping by the
global norm), each taken before its update, with the gradient norm of each step. The metadata holds our config of the
model, and the generator's name and versions. Made once and committed; run it again only to change what is tested:

    python3 scripts/make_golden.py [NAME ...]    (needs torch, numpy, safetensors; a few seconds)

The models are those whose weights other programs publish: GPT-2, Llama with grouped queries (llama_gqa), Llama 3.1 with
its scaling of RoPE, Qwen 2 with biases on q, k and v alone, Qwen 3 with QK-norm; and two that mix other options (llama,
relu2).
"""
import json
import math
import os
import platform
import sys

import numpy
import safetensors
import torch
from safetensors.torch import save_file

STEPS, BATCH, LENGTH = 20, 3, 16
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")

COMMON = {"num_layers": 2, "vocab_size": 97, "max_position_embeddings": LENGTH, "norm_epsilon": 1e-5,
          "initializer_range": 0.02}
LLAMA = {"vocab_size": 61, "intermediate_size": 40, "norm": "rmsnorm", "position": "rope", "activation": "swiglu",
         "bias": False, "qk_norm": False}
MODELS = {
    "gpt2": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
             "intermediate_size": 64, "norm": "layernorm", "position": "learned", "activation": "gelu", "bias": True,
             "qk_norm": False, "tie_word_embeddings": True},
    "llama": {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
              "intermediate_size": 40, "norm": "rmsnorm", "position": "rope", "rope_theta": 10000.0,
              "activation": "swiglu", "bias": False, "qk_norm": True, "tie_word_embeddings": False},
    "relu2": {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
              "intermediate_size": 72, "norm": "rmsnorm", "position": "rope", "rope_theta": 500.0,
              "activation": "relu2", "bias": True, "qk_norm": False, "tie_word_embeddings": True},
    "llama_gqa": {**LLAMA, "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4,
                  "intermediate_size": 42, "rope_theta": 10000.0, "tie_word_embeddings": False},
    # In a length of 64, the six rotations make 10.2, 4.7, 2.2, 1.02, 0.47 and 0.22 turns: two are fast, two are slow.
    "llama3": {**LLAMA, "hidden_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
               "rope_theta": 100.0, "tie_word_embeddings": True,
               "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 64}},
    "qwen2": {**LLAMA, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
              "norm_epsilon": 1e-6, "rope_theta": 1000000.0, "attention_bias": "qkv", "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "hidden_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
              "norm_epsilon": 1e-6, "rope_theta": 1000000.0, "qk_norm": True, "tie_word_embeddings": True},
}
TRAINING = {"optimizer": {"type": "AdamW", "weight_decay_on": "matrices",
                          "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
            "scheduler": {"type": "Constant"}, "gradient_clipping": 2.5, "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": BATCH, "train_steps": STEPS}


def has_bias(m, name):
    """Whether the linear layer has a bias: attn.q, attn.out, mlp.up, ..."""
    if name.startswith("mlp."):
        return m.get("mlp_bias", m["bias"])
    which = m.get("attention_bias", "all" if m["bias"] else "none")
    return which == "all" or (which == "qkv" and name != "attn.out")


def shapes(m):
    """Our names of the parameters and their shapes, in our order."""
    c, f, d = m["hidden_size"], m["intermediate_size"], m["head_dim"]
    q, kv = m["num_attention_heads"] * d, m["num_key_value_heads"] * d
    out = {"token.weight": (m["vocab_size"], c)}
    if m["position"] == "learned":
        out["position.weight"] = (m["max_position_embeddings"], c)

    def linear(name, rows, cols):
        out[name + ".weight"] = (rows, cols)
        if has_bias(m, name.split(".", 2)[2]):
            out[name + ".bias"] = (rows,)

    def norm(name):
        out[name + ".weight"] = (c,)
        if m["bias"] and m["norm"] == "layernorm":
            out[name + ".bias"] = (c,)

    for i in range(m["num_layers"]):
        block = f"block.{i}."
        norm(block + "attn.norm")
        linear(block + "attn.q", q, c)
        linear(block + "attn.k", kv, c)
        linear(block + "attn.v", kv, c)
        if m["qk_norm"]:
            out[block + "attn.q_norm.weight"] = out[block + "attn.k_norm.weight"] = (d,)
        linear(block + "attn.out", c, q)
        norm(block + "mlp.norm")
        if m["activation"] == "swiglu":
            linear(block + "mlp.gate", f, c)
        linear(block + "mlp.up", f, c)
        linear(block + "mlp.down", c, f)
    norm("final_norm")
    if not m["tie_word_embeddings"]:
        out["head.weight"] = (m["vocab_size"], c)
    return out


def initial(m, generator):
    """Nothing is left at a value (0, 1) that would hide a term: norm weights around 1, biases around 0, large weights."""
    weights = {}
    for name, shape in shapes(m).items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1:
            x = 0.1 * x + (1.0 if "norm.weight" in name else 0.0)
        else:
            x = 0.15 * x
        weights[name] = x.to(torch.float32).to(torch.float64).requires_grad_()
    return weights


def normed(m, x, weight, bias):
    if m["norm"] == "layernorm":
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + m["norm_epsilon"])
    else:
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + m["norm_epsilon"])
    return x * weight if bias is None else x * weight + bias


def head_normed(m, x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + m["norm_epsilon"]) * weight


def scaled(scaling, rates):
    """Llama 3.1's rates: those with short wavelengths as they are, those with long ones divided by the factor, and those
    in between interpolated linearly in the number of wavelengths that the original length holds."""
    length, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    out = []
    for rate in rates.tolist():
        wavelength = 2 * math.pi / rate
        if wavelength < length / high:
            out.append(rate)
        elif wavelength > length / low:
            out.append(rate / scaling["factor"])
        else:
            smooth = (length / wavelength - low) / (high - low)
            out.append((1 - smooth) * rate / scaling["factor"] + smooth * rate)
    return torch.tensor(out, dtype=torch.float64)


def rotated(m, x):
    """RoPE on x (B, heads, T, D): element i pairs with i + D/2."""
    half = x.shape[-1] // 2
    rates = m["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    if "rope_scaling" in m:
        rates = scaled(m["rope_scaling"], rates)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def activated(m, up, gate):
    if m["activation"] == "swiglu":
        return gate * torch.sigmoid(gate) * up
    if m["activation"] == "relu2":
        return torch.clamp(up, min=0.0) ** 2
    return 0.5 * up * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (up + 0.044715 * up ** 3)))


def attention(m, w, p, x):
    heads, kv_heads, d = m["num_attention_heads"], m["num_key_value_heads"], m["head_dim"]
    batch, length, _ = x.shape

    def project(name, n):
        y = x @ w[f"{p}attn.{name}.weight"].T
        if has_bias(m, "attn." + name):
            y = y + w[f"{p}attn.{name}.bias"]
        return y.view(batch, length, n, d).transpose(1, 2)

    q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    if m["qk_norm"]:
        q = head_normed(m, q, w[p + "attn.q_norm.weight"])
        k = head_normed(m, k, w[p + "attn.k_norm.weight"])
    if m["position"] == "rope":
        q, k = rotated(m, q), rotated(m, k)
    group = heads // kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    o = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v
    y = o.transpose(1, 2).reshape(batch, length, heads * d) @ w[p + "attn.out.weight"].T
    return y + w[p + "attn.out.bias"] if has_bias(m, "attn.out") else y


def mlp(m, w, p, x):
    def linear(name, y):
        y = y @ w[f"{p}mlp.{name}.weight"].T
        return y + w[f"{p}mlp.{name}.bias"] if has_bias(m, "mlp." + name) else y

    gate = linear("gate", x) if m["activation"] == "swiglu" else None
    return linear("down", activated(m, linear("up", x), gate))


def logits(m, w, tokens):
    def norm(name, x):
        return normed(m, x, w[name + ".weight"], w.get(name + ".bias"))

    x = w["token.weight"][tokens]
    if m["position"] == "learned":
        x = x + w["position.weight"][: tokens.shape[1]]
    for i in range(m["num_layers"]):
        p = f"block.{i}."
        x = x + attention(m, w, p, norm(p + "attn.norm", x))
        x = x + mlp(m, w, p, norm(p + "mlp.norm", x))
    head = w["token.weight"] if m["tie_word_embeddings"] else w["head.weight"]
    return norm("final_norm", x) @ head.T


def mean_loss(m, w, window):
    z = logits(m, w, window[:, :-1])
    chosen = z.gather(-1, window[:, 1:, None].to(torch.int64))[..., 0]
    return (torch.logsumexp(z, -1) - chosen).mean(), z


def train(m, w, stream):
    """Losses before each update and gradient norms before clipping."""
    hyper = TRAINING["optimizer"]["params"]
    matrices = [x for x in w.values() if x.dim() == 2]
    vectors = [x for x in w.values() if x.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": hyper["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=hyper["lr"], betas=tuple(hyper["betas"]), eps=hyper["eps"], foreach=False)
    losses, norms = [], []
    for window in stream:
        optimizer.zero_grad()
        loss, _ = mean_loss(m, w, window)
        loss.backward()
        norm = math.sqrt(math.fsum(float((x.grad ** 2).sum()) for x in w.values()))
        factor = min(1.0, TRAINING["gradient_clipping"] / (norm + 1e-6))
        for x in w.values():
            x.grad.mul_(factor)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)


def write(name, model, seed):
    m = {**COMMON, **model}
    generator = torch.Generator().manual_seed(seed)
    w = initial(m, generator)
    # A few tokens are far more frequent than others, so that there is something to learn in 20 steps.
    uniform = torch.rand((STEPS, BATCH, LENGTH + 1), generator=generator, dtype=torch.float64)
    stream = (m["vocab_size"] * uniform ** 2).to(torch.int64)
    tensors = {k: v.detach().to(torch.float32).clone() for k, v in w.items()}
    loss, z = mean_loss(m, w, stream[0])
    loss.backward()
    tensors["tokens"] = stream.to(torch.int32)
    tensors["logits"] = z.detach().clone()
    tensors["loss"] = loss.detach().clone().reshape(1)
    tensors.update({k + ".grad": v.grad.clone() for k, v in w.items()})
    tensors["train.losses"], tensors["train.norms"] = train(m, w, stream)
    config = {"model": m, "data": {"seq_length": LENGTH}, "fp64": {"enabled": True}, **TRAINING}
    metadata = {"generator": "scripts/make_golden.py", "seed": str(seed), "torch": torch.__version__,
                "numpy": numpy.__version__, "safetensors": safetensors.__version__,
                "python": platform.python_version(), "config": json.dumps(config)}
    path = os.path.normpath(os.path.join(FOLDER, name + ".safetensors"))
    save_file(tensors, path, metadata)
    os.chmod(path, 0o644)
    print(f"{path}: {os.path.getsize(path)} bytes, {sum(v.numel() for v in w.values())} parameters, "
          f"loss {loss.item():.6f}, after {STEPS} steps {tensors['train.losses'][-1].item():.6f}, norms "
          f"{tensors['train.norms'].min().item():.3f} to {tensors['train.norms'].max().item():.3f}")


def main():
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    for seed, (name, model) in enumerate(MODELS.items(), 1):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            write(name, model, seed)


if __name__ == "__main__":
    main()
