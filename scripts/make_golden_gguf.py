#!/usr/bin/env python3
"""make_golden_gguf.py -- writes tests/golden/llama.gguf with the package gguf: a small Llama with Llama 3's scaling, and its
tokenizer. tests/model/test_gguf.c writes the same model and compares every byte. Needs the packages gguf and numpy.

    python3 scripts/make_golden_gguf.py [FILE]
"""
import math
import sys

import gguf
import numpy

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB, POSITIONS = 2, 4, 2, 1, 8, 4, 260, 16
THETA, FACTOR, LOW, HIGH, ORIGINAL = 500.0, 8.0, 1.0, 4.0, 64


def values(number, rows, cols):
    """Returns values that every type has exactly; a function of the tensor's number and the element."""
    elements = numpy.arange(rows * max(cols, 1))
    array = (((elements * 7 + number * 13) % 251) - 125).astype(numpy.float32) / 64
    return array.reshape((rows, cols) if cols else (rows,))


def interleaved(array, heads):
    """Returns the rows of each head with its halves interleaved."""
    shape = array.shape
    return array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def slowing():
    """Returns by what Llama 3's scaling divides each frequency."""
    factors = []
    for i in range(HEAD_DIM // 2):
        length = 2 * math.pi * THETA ** (2 * i / HEAD_DIM)
        if length < ORIGINAL / HIGH:
            factors.append(1.0)
        elif length > ORIGINAL / LOW:
            factors.append(FACTOR)
        else:
            kept = (ORIGINAL / length - LOW) / (HIGH - LOW)
            factors.append(1 / ((1 - kept) / FACTOR + kept))
    return numpy.array(factors, dtype=numpy.float32)


def characters():
    """Returns the characters that stand for the 256 bytes, in the order of GPT-2's ids."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def add(writer, name, array):
    """Adds a matrix as bf16, a vector as f32."""
    if array.ndim == 1:
        writer.add_tensor(name, array)
        return
    high = (array.view(numpy.uint32) >> 16).astype(numpy.uint16)
    writer.add_tensor(name, high.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_keys(writer):
    writer.add_name("golden")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_quantization_version(2)
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(THETA)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*characters(), "th", "the", "<|endoftext|>", "[PAD259]"])
    writer.add_token_types([1] * 258 + [3, 5])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/llama.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_keys(writer)
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    block = (("attn_norm", HIDDEN, 0), ("attn_q", query, HIDDEN), ("attn_k", key, HIDDEN), ("attn_v", key, HIDDEN),
             ("attn_output", HIDDEN, query), ("ffn_norm", HIDDEN, 0), ("ffn_gate", MLP, HIDDEN), ("ffn_up", MLP, HIDDEN),
             ("ffn_down", HIDDEN, MLP))
    shapes = [("token_embd", VOCAB, HIDDEN)]
    shapes += [(f"blk.{layer}.{name}", rows, cols) for layer in range(LAYERS) for name, rows, cols in block]
    shapes += [("output_norm", HIDDEN, 0), ("output", VOCAB, HIDDEN)]
    for number, (name, rows, cols) in enumerate(shapes):
        array = values(number, rows, cols)
        if name.endswith("attn_q"):
            array = interleaved(array, HEADS)
        if name.endswith("attn_k"):
            array = interleaved(array, KV_HEADS)
        add(writer, name + ".weight", array)
        if number == 0:
            writer.add_tensor("rope_freqs.weight", slowing())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
