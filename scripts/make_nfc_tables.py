#!/usr/bin/env python3
"""Writes what Unicode's canonical composition (NFC) needs: data/tokenizer/nfc_pairs.h and data/tokenizer/nfc_codes.h.

The properties are from Python's own unicodedata. Those of characters that PyPI's `tokenizers` (0.23.3) does not know yet are left
out, because text must be composed as the tokenizers of Qwen compose it: its Unicode is older than Python's.
Run in the repository's root: python3 scripts/make_nfc_tables.py
"""
import contextlib
import unicodedata

from tokenizers import normalizers

HANGUL = range(0xAC00, 0xD7A4)
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def table(kind, name, items):
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line)
            line = "   "
        line += f" {item},"
    print(line)
    print("};")


COMPOSE = normalizers.NFC().normalize_str
DECOMPOSE = normalizers.NFD().normalize_str
LAST_MARK = "\u0345"  # of the highest class


def combining_class(code):
    kind = unicodedata.combining(chr(code))
    known = chr(code) == LAST_MARK or COMPOSE(LAST_MARK + chr(code)) != LAST_MARK + chr(code)
    return kind if known else 0


def class_ranges():
    found = []
    for code in CODES:
        kind = combining_class(code)
        if kind and found and found[-1][1] == code - 1 and found[-1][2] == kind:
            found[-1][1] = code
        elif kind:
            found.append([code, code, kind])
    return [f"{{0x{first:x}, 0x{last:x}, {kind}}}" for first, last, kind in found]


def decompositions():
    """All canonical decompositions, one step each: a character is one or two others."""
    for code in CODES:
        parts = unicodedata.decomposition(chr(code))
        if parts and not parts.startswith("<") and code not in HANGUL and DECOMPOSE(chr(code)) != chr(code):
            yield code, [int(part, 16) for part in parts.split()]


def composes(code, parts):
    return len(parts) == 2 and COMPOSE("".join(map(chr, parts))) == chr(code)


def header(name, what):
    guard = f"DATA_TOKENIZER_{name.upper()}_H"
    print(f"""/* {name}.h -- {what},
 * ascending by code point; made by scripts/make_nfc_tables.py. */
#ifndef {guard}
#define {guard}

#include <stdint.h>
""")


def pairs_header(pairs):
    header("nfc_pairs", "canonical decompositions into two characters")
    print("""/* A character that is canonically equal to two others: `code` = `first` + `second`. */
typedef struct {
    uint32_t code, first, second;
} CodePair;

/* clang-format off */

/* Pairs that NFC composes. */""")
    table("CodePair", "composed_pairs",
          [f"{{0x{c:x}, 0x{p[0]:x}, 0x{p[1]:x}}}" for c, p in pairs if composes(c, p)])
    print("\n/* Pairs that it leaves apart. */")
    table("CodePair", "separate_pairs",
          [f"{{0x{c:x}, 0x{p[0]:x}, 0x{p[1]:x}}}" for c, p in pairs if len(p) == 2 and not composes(c, p)])
    print("/* clang-format on */\n\n#endif")


def codes_header(pairs):
    header("nfc_codes", "combining classes and canonical replacements of single characters")
    print("""/* Characters whose canonical combining class is not 0. */
typedef struct {
    uint32_t first, last; /* inclusive */
    uint8_t combining;
} CombiningRange;

/* A character that is canonically equal to another one, which replaces it. */
typedef struct {
    uint32_t code, other;
} CodeSingle;

/* clang-format off */
""")
    table("CombiningRange", "combining_ranges", class_ranges())
    print()
    table("CodeSingle", "replaced_codes", [f"{{0x{c:x}, 0x{p[0]:x}}}" for c, p in pairs if len(p) == 1])
    print("/* clang-format on */\n\n#endif")


every = list(decompositions())
for path, write in ("data/tokenizer/nfc_pairs.h", pairs_header), ("data/tokenizer/nfc_codes.h", codes_header):
    with open(path, "w") as file, contextlib.redirect_stdout(file):
        write(every)
