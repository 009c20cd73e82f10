#!/usr/bin/env python3
"""Writes tests/golden/hf_logits.safetensors: what Hugging Face's transformers computes from the folders that
tests/golden/make_hf.py writes, as the truth for tests/model/test_hf_logits.c.

For each kind of folder, in float32 and in one file: the logits of two rows of one sequence, in float64 ("llama" (ROWS, V),
...), and the tokens (T) and the rows (ROWS). transformers computes parts of a model in float32 whatever the type of its
weights; here its casts to float32 are made casts to float64. Made once and committed; run it again only to change what is
tested:

    python3 scripts/make_hf_logits.py         (needs torch, transformers, safetensors; a few seconds)
"""
import os
import subprocess
import sys
import tempfile

import torch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
KINDS = ["llama", "gpt2", "llama3", "mistral", "smollm", "qwen2", "qwen3"]
TOKENS = [(37 * i + 11) % 256 for i in range(48)]
ROWS = [11, 47]


def widened(function):
    """`function` with float64 wherever it is asked for float32."""
    def double(x):
        return torch.float64 if x is torch.float32 else x

    def call(*args, **kwargs):
        return function(*map(double, args), **{k: double(v) for k, v in kwargs.items()})

    return call


def compute_in_double():
    torch.set_default_dtype(torch.float64)
    torch.Tensor.to = widened(torch.Tensor.to)
    torch.Tensor.float = torch.Tensor.double
    torch.arange = widened(torch.arange)
    torch.nn.functional.softmax = widened(torch.nn.functional.softmax)


def logits_of(kind):
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        subprocess.check_call([sys.executable, os.path.join(FOLDER, "make_hf.py"), folder, "--kind", kind])
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    if any(info.values()):
        raise SystemExit(f"{kind}: {info}")
    with torch.no_grad():
        return model.eval()(torch.tensor([TOKENS])).logits[0, ROWS]


def main():
    compute_in_double()  # before transformers is imported, which keeps references to these functions
    import safetensors.torch
    import transformers

    torch.set_num_threads(1)
    tensors = {kind: logits_of(kind).clone() for kind in KINDS}
    tensors["tokens"] = torch.tensor(TOKENS, dtype=torch.int32)
    tensors["rows"] = torch.tensor(ROWS, dtype=torch.int32)
    path = os.path.normpath(os.path.join(FOLDER, "hf_logits.safetensors"))
    safetensors.torch.save_file(tensors, path, {"generator": "scripts/make_hf_logits.py", "torch": torch.__version__,
                                                "transformers": transformers.__version__})
    os.chmod(path, 0o644)
    print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
