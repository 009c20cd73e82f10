#!/usr/bin/env python3
"""Reads a .safetensors file with the standard library alone, by the format's description and nothing of this program's:

    python3 tests/support/read_safetensors.py FILE

Eight bytes little-endian: the header's length, a multiple of 8 so that data are aligned; a JSON object of names, each with
"dtype", "shape" and "data_offsets" in the bytes behind it; "__metadata__" maps strings to strings. Tensors cover the data
without gap or overlap. Prints NAME DTYPE SHAPE HEX for each, by name; exits with 1 and a sentence where the file differs.
"""
import json
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U16": 2, "U8": 1}


def pairs_once(pairs):
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        sys.exit("a name stands twice in %s" % names)
    return dict(pairs)


def main(path):
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
    for name, t in sorted(header.items()):
        begin, stop = t["data_offsets"]
        print(name, t["dtype"], "x".join(map(str, t["shape"])), data[begin:stop].hex())


main(sys.argv[1])
