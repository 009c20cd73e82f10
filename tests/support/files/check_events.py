"""check_events.py FOLDER METRICS [tbparse]: checks that the TensorBoard event files of a run hold each figure and sample of its
metrics.jsonl once, at its number of samples. Reads the files by their definition, or with the module tbparse."""
import glob
import json
import math
import os
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Yields the number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size
        yield key >> 3, value


def records(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        (size, crc) = struct.unpack("<QI", data[at : at + 12])
        assert crc == masked(data[at : at + 8]), (path, at)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0] == masked(body), (path, at)
        at += 16 + size
        yield body


def read(folder):
    """Returns (tag, samples, value) of every figure and text."""
    found = []
    for path in sorted(glob.glob(folder + "/*tfevents*")):
        for number, body in enumerate(records(path)):
            event = dict(fields(body))
            assert (number == 0) == (event.get(3) == b"brain.Event:2"), (path, number)
            for _, summary in fields(event.get(5, b"")):
                value = dict(fields(summary))
                if 8 in value:  # a tensor of one string, for the plugin "text"
                    assert value[9] == b"\x0a\x06\x0a\x04text"
                    tensor = dict(fields(value[8]))
                    assert (tensor[1], tensor[2]) == (7, b"\x12\x02\x08\x01")
                    found.append((value[1].decode(), event[2], tensor[8].decode()))
                else:
                    found.append((value[1].decode(), event[2], struct.unpack("<f", value[2])[0]))
    return found


def read_with_tbparse(folder):
    from tbparse import SummaryReader

    reader = SummaryReader(folder)
    return [(row.tag, row.step, row.value) for table in (reader.scalars, reader.text) for row in table.itertuples()]


def expected(metrics):
    tags = {
        "train": {"train_loss": "loss", "lr": "lr", "grad_norm": "grad_norm"},
        "speed": {"tokens_per_second": "tokens_per_second"},
        "val": {"loss": "loss", "bits_per_byte": "bits_per_byte"},
        "val_set": {"loss": "loss", "bits_per_byte": "bits_per_byte"},
    }
    for line in map(json.loads, open(metrics)):
        for tag, key in tags.get(line["event"], {}).items():
            group = "Validation" if "val" in line["event"] else "Train"
            name = line["set"] + "/" if "set" in line else ""
            yield f"{group}/Samples/{name}{tag}", line["samples"], struct.unpack("<f", struct.pack("<f", line[key]))[0]
        if line["event"] == "sample":
            yield "Train/Samples/text", line["samples"], line["prompt"] + line["text"]


folder, metrics = sys.argv[1:3]
found = sorted((read_with_tbparse if sys.argv[3:] else read)(folder))
wanted = sorted(expected(metrics))
assert [f[:2] for f in found] == [w[:2] for w in wanted], (found, wanted)
for f, w in zip(found, wanted):
    assert f[2] == w[2] if isinstance(w[2], str) else math.isclose(f[2], w[2], rel_tol=1e-6), (f, w)
texts = sum(isinstance(f[2], str) for f in found)
print(len(found) - texts, "figures and", texts, "samples in", len(os.listdir(folder)), "files")
