#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_classes.h: the letters and numbers of Unicode as code-point ranges.

Needs PyPI's `tokenizers`, whose classes these are (version 0.23.3, Unicode 16; tiktoken 0.14.0 has the same): text must be split
as those split it. A newer Unicode has more letters.
Run: python3 scripts/make_unicode_classes.py > data/tokenizer/unicode_classes.h
"""
from tokenizers import Regex, pre_tokenizers


def ranges(pattern):
    without = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str
    found, first = [], None
    for code in range(0x110001):
        inside = code < 0x110000 and not 0xD800 <= code < 0xE000 and not without(chr(code))
        if inside and first is None:
            first = code
        if not inside and first is not None:
            found.append((first, code - 1))
            first = None
    return found


def table(name, found):
    print(f"static const CodeRange {name}[] = {{")
    line = "   "
    for first, last in found:
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


print("""/* unicode_classes.h -- code points of the classes \\p{L} and \\p{N} of Unicode 16, ascending; made by
 * scripts/make_unicode_classes.py. */
#ifndef DATA_TOKENIZER_UNICODE_CLASSES_H
#define DATA_TOKENIZER_UNICODE_CLASSES_H

#include <stdint.h>

typedef struct {
    uint32_t first, last; /* inclusive */
} CodeRange;

/* clang-format off */""")
table("unicode_letters", ranges(r"\p{L}"))
print()
table("unicode_numbers", ranges(r"\p{N}"))
print("""/* clang-format on */

#endif""")
