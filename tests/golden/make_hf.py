#!/usr/bin/env python3
"""Writes a small folder in Hugging Face's layout, for tests of import and export: config.json, the weights in
safetensors (one file, or several with their index), tokenizer.json, LICENSE, and choices.bin, a multiple-choice file in
llm.c's evaluation format. It needs Python's standard library alone, and the same arguments give the same bytes on every
machine.

    python3 tests/golden/make_hf.py DIR [--kind KIND] [--dtype f32|f16|bf16] [--shards N] [--spelling new|old]

KIND is llama (grouped-query attention, a head of its own; the default), gpt2, llama3 (RoPE scaling), mistral (its keys
with a sliding window that is off), smollm (digits are split one by one), qwen2 (biases on q, k and v alone; more rows in
the token table than the tokenizer has tokens, as Qwen's models have) or qwen3 (QK-norm, heads whose sizes do not add up
to hidden_size). `--spelling old` writes the keys and merges as before transformers 5 and tokenizers 0.20.

Weights are what makes mistakes visible: norms around 1, biases around 0, and no two tensors of different kinds with the
same shape where the architecture allows it.
"""
import argparse
import functools
import json
import math
import os
import random
import struct

LAYERS, POSITIONS, THETA, SEED = 2, 64, 10000.0, 28

KINDS = {
    "llama": {"hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 12, "mlp": 80, "tied": False, "extra_rows": 0},
    "gpt2": {"hidden": 32, "heads": 4, "kv_heads": 4, "head_dim": 8, "mlp": 128, "tied": True, "extra_rows": 0},
    "llama3": {"hidden": 32, "heads": 4, "kv_heads": 1, "head_dim": 16, "mlp": 72, "tied": True, "extra_rows": 0},
    "mistral": {"hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 12, "mlp": 80, "tied": False, "extra_rows": 0},
    "smollm": {"hidden": 36, "heads": 3, "kv_heads": 1, "head_dim": 12, "mlp": 64, "tied": True, "extra_rows": 0},
    "qwen2": {"hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 12, "mlp": 80, "tied": True, "extra_rows": 13},
    "qwen3": {"hidden": 40, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 72, "tied": True, "extra_rows": 13},
}
# With 16 elements in a head and theta 10000, the wavelengths are 6.3, 19.9, 62.8, ...: at a length of 32 the first is kept,
# the second is in the band between, and the others are divided.
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}

SPECIALS = {
    "llama": ["<|endoftext|>"],
    "gpt2": ["<|endoftext|>"],
    "mistral": ["<unk>", "<s>", "</s>"],
    "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}
# "_" is the space before a word.
MERGES = ["_ t", "h e", "_t he", "_ a", "i n", "a n", "_a n", "_an d", "_ s", "e r", "o u", "_ w", "r e", "o n", "_ o",
          "_o f"]
SPLITS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+",
}

LICENSE = """These weights are random numbers, and the tokenizer was written by hand for tests.
Anyone may use them for any purpose.
"""


@functools.lru_cache(maxsize=None)
def byte_names():
    """The character that stands for each byte in the vocabulary, in the order of their ids (GPT-2's)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [(b, chr(b)) for b in plain] + [(b, chr(256 + i)) for i, b in enumerate(others)]


@functools.lru_cache(maxsize=None)
def vocabulary(kind):
    """Tokens in the order of their ids, as the vocabulary spells them, with the merges, and the special tokens."""
    space = dict(byte_names())[ord(" ")]
    pairs = [tuple(part.replace("_", space) for part in merge.split(" ")) for merge in MERGES]
    return [name for _, name in byte_names()] + [a + b for a, b in pairs], pairs, SPECIALS[kind]


def encode(kind, word):
    """Ids of one word of ASCII letters, with a space before it if it has one: the merges in their order."""
    tokens, pairs, _ = vocabulary(kind)
    parts = [dict(byte_names())[b] for b in word.encode()]
    for a, b in pairs:
        i = 0
        while i + 1 < len(parts):
            if (parts[i], parts[i + 1]) == (a, b):
                parts[i : i + 2] = [a + b]
            i += 1
    return [tokens.index(part) for part in parts]


def tokenizer(kind, spelling):
    tokens, pairs, specials = vocabulary(kind)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    before = level
    if kind == "smollm":
        before = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}
    elif kind not in ("llama", "gpt2", "mistral"):
        split = {"type": "Split", "pattern": {"Regex": SPLITS["llama3" if kind == "llama3" else "qwen"]},
                 "behavior": "Isolated", "invert": False}
        before = {"type": "Sequence", "pretokenizers": [split, {**level, "use_regex": False}]}
    added = [{"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(specials)]
    merges = [" ".join(pair) if spelling == "old" else list(pair) for pair in pairs]
    vocab = {token: i for i, token in enumerate(tokens)}
    if kind == "gpt2":  # GPT-2's file has its special token in both lists
        vocab[specials[0]] = len(tokens)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"} if kind.startswith("qwen") else None, "pre_tokenizer": before,
            "post_processor": {**level, "trim_offsets": False}, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": kind == "llama3", "vocab": vocab, "merges": merges}}


def vocab_size(kind):
    tokens, _, specials = vocabulary(kind)
    return len(tokens) + len(specials) + KINDS[kind]["extra_rows"]


def config(kind, dtype, spelling):
    k = KINDS[kind]
    words = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype]
    first = len(vocabulary(kind)[0]) + (kind == "mistral")
    out = {"vocab_size": vocab_size(kind), "tie_word_embeddings": k["tied"], "initializer_range": 0.02,
           "use_cache": True, "bos_token_id": first, "eos_token_id": first + (kind in ("llama3", "mistral")),
           "torch_dtype" if spelling == "old" else "dtype": words,
           "transformers_version": "4.44.0" if spelling == "old" else "5.0.0"}
    if kind == "gpt2":
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": POSITIONS, "n_ctx": POSITIONS,
                "n_embd": k["hidden"], "n_layer": LAYERS, "n_head": k["heads"], "n_inner": None,
                "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
                "resid_pdrop": 0.1, "scale_attn_weights": True, **out}
    out.update({"hidden_size": k["hidden"], "intermediate_size": k["mlp"], "num_hidden_layers": LAYERS,
                "num_attention_heads": k["heads"], "num_key_value_heads": k["kv_heads"], "hidden_act": "silu",
                "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-6, "attention_dropout": 0.0})
    if k["head_dim"] * k["heads"] != k["hidden"] or spelling == "new":
        out["head_dim"] = k["head_dim"]
    scaling = SCALING if kind == "llama3" else None
    if spelling == "old":
        out.update({"rope_theta": THETA, "rope_scaling": scaling})
    else:
        out["rope_parameters"] = {"rope_theta": THETA, **(scaling or {"rope_type": "default"})}
    if kind == "mistral":
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, **out}
    if kind in ("llama", "llama3", "smollm"):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
                "pretraining_tp": 1, **out}
    out.update({"use_sliding_window": False, "sliding_window": POSITIONS // 2, "max_window_layers": LAYERS})
    if kind == "qwen2":
        return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **out}
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, **out}


def gpt2_shapes(k, rows):
    """Names and shapes of GPT-2's file on the hub: no prefix, matrices of blocks (in, out), and the causal masks, which
    are no weights."""
    c, f = k["hidden"], k["mlp"]
    out = {"wte.weight": (rows, c), "wpe.weight": (POSITIONS, c)}
    for i in range(LAYERS):
        p = f"h.{i}."
        out[p + "attn.bias"] = (1, 1, POSITIONS, POSITIONS)
        for norm in ("ln_1", "ln_2"):
            out[p + norm + ".weight"] = out[p + norm + ".bias"] = (c,)
        for name, shape in (("attn.c_attn", (c, 3 * c)), ("attn.c_proj", (c, c)), ("mlp.c_fc", (c, f)),
                            ("mlp.c_proj", (f, c))):
            out[p + name + ".weight"], out[p + name + ".bias"] = shape, (shape[1],)
    out["ln_f.weight"] = out["ln_f.bias"] = (c,)
    return out


def llama_shapes(kind, k, rows):
    c, f, d = k["hidden"], k["mlp"], k["head_dim"]
    out = {"model.embed_tokens.weight": (rows, c)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (c,)
        for name, heads in (("q", k["heads"]), ("k", k["kv_heads"]), ("v", k["kv_heads"])):
            out[p + f"self_attn.{name}_proj.weight"] = (heads * d, c)
            if kind == "qwen2":
                out[p + f"self_attn.{name}_proj.bias"] = (heads * d,)
            if kind == "qwen3" and name != "v":
                out[p + f"self_attn.{name}_norm.weight"] = (d,)
        out[p + "self_attn.o_proj.weight"] = (c, k["heads"] * d)
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = (f, c)
        out[p + "mlp.down_proj.weight"] = (c, f)
    out["model.norm.weight"] = (c,)
    if not k["tied"]:
        out["lm_head.weight"] = (rows, c)
    return out


def values(source, name, shape):
    """Numbers that are nearly normal. Only sums and products of Random.random, which Python promises to keep, go into
    them, so that they do not depend on a machine's mathematical library."""
    if len(shape) == 4:  # GPT-2's causal mask
        return [float(column <= row) for row in range(shape[2]) for column in range(shape[3])]
    count = math.prod(shape)
    drawn = [(source.random() + source.random() + source.random() - 1.5) * 2.0 for _ in range(count)]
    if len(shape) > 1:
        return [0.15 * x for x in drawn]
    is_norm = name.endswith("weight")
    return [0.1 * x + (1.0 if is_norm else 0.0) for x in drawn]


def packed(numbers, dtype):
    """The bytes of `numbers` in `dtype`, rounded to the nearest, ties to even."""
    if dtype != "bf16":
        return struct.pack(f"<{len(numbers)}{'f' if dtype == 'f32' else 'e'}", *numbers)
    bits = struct.unpack(f"<{len(numbers)}I", struct.pack(f"<{len(numbers)}f", *numbers))
    return struct.pack(f"<{len(numbers)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def write_safetensors(path, tensors, dtype):
    """Writes `tensors`, name -> (shape, bytes); returns the number of data bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))
    return at


def write_weights(folder, kind, dtype, shards):
    k, rows, source = KINDS[kind], vocab_size(kind), random.Random(SEED)
    shapes = gpt2_shapes(k, rows) if kind == "gpt2" else llama_shapes(kind, k, rows)
    tensors = {name: (shape, packed(values(source, name, shape), dtype)) for name, shape in shapes.items()}
    if shards == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors, dtype)
        return
    names, total, where = list(tensors), 0, {}
    for s in range(shards):
        part = names[len(names) * s // shards : len(names) * (s + 1) // shards]
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        total += write_safetensors(os.path.join(folder, file), {name: tensors[name] for name in part}, dtype)
        where.update({name: file for name in part})
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def write_choices(path, kind):
    """llm.c's evaluation format: a header of 256 int32, then a stream of uint16 for each example: 65535, its bytes, its
    number, the label, the number of completions, the context, the completions, each after its number of tokens."""
    source = random.Random(SEED + 1)
    words = ["the", "hand", "of", "a", "winter", "and", "stone", "in", "hours", "we", "rest", "on", "other", "answer"]

    def phrase(least, most):
        chosen = [words[int(source.random() * len(words))] for _ in range(least + int(source.random() * (most - least + 1)))]
        return [i for word in chosen for i in encode(kind, " " + word)]

    examples = []
    for number in range(12):
        stream = [65535, 0, number, int(source.random() * 4), 4]
        for part in [phrase(2, 5)] + [phrase(1, 3) for _ in range(4)]:
            stream += [len(part), *part]
        stream[1] = 2 * len(stream)
        examples.append(stream)
    header = [20240522, 1, len(examples), max(2 * len(stream) for stream in examples)]
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * 252))
        for stream in examples:
            file.write(struct.pack(f"<{len(stream)}H", *stream))


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description="writes a small folder in Hugging Face's layout")
    parser.add_argument("folder")
    parser.add_argument("--kind", choices=list(KINDS), default="llama")
    parser.add_argument("--dtype", choices=["f32", "f16", "bf16"], default="f32")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--spelling", choices=["new", "old"], default="new")
    a = parser.parse_args()
    if a.shards < 1:
        parser.error("--shards must be at least 1")
    os.makedirs(a.folder, exist_ok=True)
    write_json(a.folder, "config.json", config(a.kind, a.dtype, a.spelling))
    write_json(a.folder, "tokenizer.json", tokenizer(a.kind, a.spelling))
    write_weights(a.folder, a.kind, a.dtype, a.shards)
    write_choices(os.path.join(a.folder, "choices.bin"), a.kind)
    with open(os.path.join(a.folder, "LICENSE"), "w", encoding="utf-8", newline="\n") as file:
        file.write(LICENSE)


if __name__ == "__main__":
    main()
