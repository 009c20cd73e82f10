#!/usr/bin/env python3
"""Writes the weights of a small GPT-2 in Hugging Face's layout (make_hf.py --kind gpt2) as a model file of llm.c: f32
weights as its version 3, bf16 as version 5. It needs Python's standard library alone.

    python3 tests/golden/hf_to_llmc.py DIR FILE
"""
import json
import struct
import sys

VERSIONS = {"F32": (3, 4), "BF16": (5, 2)}


def read(folder):
    """Returns config.json and, by name, (type, shape, bytes) of each tensor."""
    with open(folder + "/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(folder + "/model.safetensors", "rb") as file:
        text = file.read()
    size, = struct.unpack("<Q", text[:8])
    header = json.loads(text[8:8 + size])
    header.pop("__metadata__", None)
    data = text[8 + size:]
    return config, {name.removeprefix("transformer."): (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
                    for name, t in header.items()}


def turned(shape, data, size):
    """Returns the bytes of the transposed matrix: Hugging Face's GPT-2 stores (in, out), llm.c (out, in)."""
    rows, cols = shape
    return b"".join(data[(r * cols + c) * size:(r * cols + c + 1) * size] for c in range(cols) for r in range(rows))


def main():
    config, tensors = read(sys.argv[1])
    layers, hidden, vocab = config["n_layer"], config["n_embd"], config["vocab_size"]
    version, size = VERSIONS[tensors["wte.weight"][0]]
    padded = (vocab + 127) // 128 * 128
    header = [20240326, version, config["n_positions"], vocab, layers, config["n_head"], hidden, padded]
    with open(sys.argv[2], "wb") as out:
        out.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        out.write(tensors["wte.weight"][2] + bytes((padded - vocab) * hidden * size))
        out.write(tensors["wpe.weight"][2])
        for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            for part in ("weight", "bias"):
                for layer in range(layers):
                    _, shape, data = tensors[f"h.{layer}.{name}.{part}"]
                    out.write(turned(shape, data, size) if len(shape) == 2 else data)
        out.write(tensors["ln_f.weight"][2] + tensors["ln_f.bias"][2])


main()
