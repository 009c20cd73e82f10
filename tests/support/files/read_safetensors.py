#!/usr/bin/env python3
"""Reads a .safetensors file with Python's standard library, written from the format's description alone, to check this program's files:

    python3 tests/support/files/read_safetensors.py FILE|INDEX.json

The format: eight little-endian bytes hold the length of the header, which must be a multiple of 8, so the data are aligned.
The header is a JSON object. It maps each tensor's name to its "dtype", "shape" and "data_offsets" in the bytes after the header;
"__metadata__" maps strings to strings. The tensors cover the data without gaps or overlaps. If there are several files,
INDEX.json has a "weight_map", which maps each tensor to its file in the same folder, and "metadata": {"total_size"}, the bytes of
all tensors. Prints NAME DTYPE SHAPE HEX for each tensor, sorted by name. If a file violates the format, prints an error message
and exits with 1.
"""
import json
import os
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U16": 2, "U8": 1}


def pairs_once(pairs):
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        sys.exit("a name is twice in %s" % names)
    return dict(pairs)


def read(path):
    """Returns the tensors of one file: {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as f:
        whole = f.read()
    (length,) = struct.unpack("<Q", whole[:8])
    if length % 8 or 8 + length > len(whole):
        sys.exit("a header of %d bytes in a file of %d" % (length, len(whole)))
    header = json.loads(whole[8:8 + length].decode("utf-8"), object_pairs_hook=pairs_once)
    data = whole[8 + length:]
    for key, value in header.pop("__metadata__", {}).items():
        if not isinstance(value, str):
            sys.exit("__metadata__: %s is no string" % key)
    end = 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        size = SIZES[t["dtype"]]
        for n in t["shape"]:
            size *= n
        if begin != end or stop - begin != size:
            sys.exit("%s: bytes %d to %d for %s %s, after %d" % (name, begin, stop, t["dtype"], t["shape"], end))
        end = stop
    if end != len(data):
        sys.exit("%d bytes of data, of which tensors take %d" % (len(data), end))
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}


def read_index(path):
    """Returns the tensors of all files of an index."""
    with open(path, encoding="utf-8") as f:
        index = json.load(f, object_pairs_hook=pairs_once)
    files = {name: read(os.path.join(os.path.dirname(path), name)) for name in set(index["weight_map"].values())}
    if sum(map(len, files.values())) != len(index["weight_map"]):
        sys.exit("the index names %d tensors, the files hold others" % len(index["weight_map"]))
    tensors = {name: files[file][name] for name, file in index["weight_map"].items()}
    total = sum(len(data) for _, _, data in tensors.values())
    if total != index["metadata"]["total_size"]:
        sys.exit("total_size is %d, not %d" % (index["metadata"]["total_size"], total))
    return tensors


def main(path):
    tensors = read_index(path) if path.endswith(".json") else read(path)
    for name, (dtype, shape, data) in sorted(tensors.items()):
        print(name, dtype, "x".join(map(str, shape)), data.hex())


main(sys.argv[1])
