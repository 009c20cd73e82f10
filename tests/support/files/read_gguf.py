#!/usr/bin/env python3
"""Compares a GGUF file with a folder in Hugging Face's layout (tests/golden/make_hf.py), by Python's standard library alone:

    python3 tests/support/files/read_gguf.py FILE DIR

Every tensor must have the values of the folder's tensor of that name: matrices of GPT-2 transposed, and in the architecture llama
the rows of q and k with the halves of each head interleaved. Both must hold f32. The file must have every tensor of the folder, and
its tokens must be those of tokenizer.json. Prints how many tensors and tokens are equal; exits with 1 and a message if not.
"""
import json
import struct
import sys

NUMBERS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}
GPT2 = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj", "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"}
LLAMA = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 9:
            kind, count = self.number("<I"), self.number("<Q")
            return [self.value(kind) for _ in range(count)]
        return self.text() if kind == 8 else self.number(NUMBERS[kind])


def read_gguf(path):
    """Returns the keys, and (dimensions with the outermost first, bytes) of each tensor, which must be f32."""
    with open(path, "rb") as file:
        r = Reader(file.read())
    if r.data[:4] != b"GGUF":
        sys.exit("no GGUF file")
    r.at = 4
    version, n_tensors, n_keys = r.number("<I"), r.number("<Q"), r.number("<Q")
    keys = {r.text(): r.value(r.number("<I")) for _ in range(n_keys)}
    infos = [(r.text(), [r.number("<Q") for _ in range(r.number("<I"))][::-1], r.number("<I"), r.number("<Q"))
             for _ in range(n_tensors)]
    start, tensors = -(-r.at // 32) * 32, {}
    for name, shape, kind, offset in infos:
        if kind != 0 or version != 3 or offset % 32:
            sys.exit(f"{name}: type {kind} at {offset}, version {version}")
        size = 4
        for d in shape:
            size *= d
        tensors[name] = (shape, r.data[start + offset:start + offset + size])
    return keys, tensors


def read_folder(folder):
    with open(folder + "/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(folder + "/tokenizer.json", encoding="utf-8") as file:
        tokenizer = json.load(file)
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return config, tokenizer, {
        name.removeprefix("transformer."): (t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
        for name, t in header.items() if not name.endswith(".attn.bias")}


def transposed(shape, data):
    rows, cols = shape
    return [cols, rows], b"".join(data[4 * (r * cols + c):4 * (r * cols + c) + 4] for c in range(cols) for r in range(rows))


def interleaved(shape, data, heads):
    row, head = len(data) // shape[0], shape[0] // heads
    order = [h * head + s * (head // 2) + i for h in range(heads) for i in range(head // 2) for s in range(2)]
    return shape, b"".join(data[k * row:(k + 1) * row] for k in order)


def main():
    keys, tensors = read_gguf(sys.argv[1])
    config, tokenizer, folder = read_folder(sys.argv[2])
    gpt2, used = config["model_type"] == "gpt2", set()
    heads = config.get("n_head") or config["num_attention_heads"]
    for name, tensor in tensors.items():
        if name == "rope_freqs.weight":
            continue
        *place, what, kind = name.split(".")
        theirs = (GPT2 if gpt2 else LLAMA)[what] + "." + kind
        if place:
            theirs = ("h." if gpt2 else "model.layers.") + place[1] + "." + theirs
        expected = folder[theirs]
        used.add(theirs)
        if gpt2 and place and len(expected[0]) == 2:
            expected = transposed(*expected)
        if keys["general.architecture"] == "llama" and what in ("attn_q", "attn_k"):
            expected = interleaved(*expected, heads if what == "attn_q" else config["num_key_value_heads"])
        if (list(expected[0]), expected[1]) != tensor:
            sys.exit(f"{name} is not {theirs}")
    if used != set(folder):
        sys.exit(f"missing: {set(folder) - used}")
    tokens = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    for text, number in tokens.items():
        if keys["tokenizer.ggml.tokens"][number] != text:
            sys.exit(f"token {number} is not {text}")
    print(f"{len(used)} tensors and {len(tokens)} tokens are equal")


main()
