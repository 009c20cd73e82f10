/* utf8.h -- one step of strict UTF-8 decoding (no overlong forms, no surrogates, nothing above
 * U+10FFFF), and text from outside made to fit where UTF-8 is demanded or a terminal reads. */
#ifndef MODEL_CORE_UTF8_H
#define MODEL_CORE_UTF8_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

/* Length in bytes (1 ... 4) of the character at s, its code point in *code; 0 if the `n` >= 1 bytes
 * there are not one. */
static inline int utf8_decode(const uint8_t *s, int64_t n, uint32_t *code)
{
    uint32_t c = s[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    int length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (c < 0xC2 || c > 0xF4 || n < length) return 0;
    c &= 0x7Fu >> length;
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    if (c < least || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    *code = c;
    return length;
}

/* Offset of the first byte that is not part of a valid character; -1 if there is none. */
static inline int64_t utf8_invalid(const uint8_t *s, int64_t n)
{
    for (int64_t at = 0; at < n;) {
        uint32_t code;
        int length = utf8_decode(s + at, n - at, &code);
        if (length == 0) return at;
        at += length;
    }
    return -1;
}

/* Writes a valid code point and returns its length, 1 ... 4. */
static inline int utf8_encode(uint32_t code, char *out)
{
    static const uint32_t lead[5] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[n] | code);
    return n;
}

/* The text with every byte that is no UTF-8 replaced by U+FFFD; the caller frees. */
char *utf8_clean(const char *text);
/* The same with every control character as '?': one line, as a comment or a message needs it. */
char *utf8_line(const char *text);
/* vsnprintf, but what does not fit into out[0..n) loses its middle, between characters: "first
 * part...last part". Sentences begin with what was tried and end in why it failed. */
void utf8_format(char *out, size_t n, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Prints text that may hold anything, so that it cannot drive the terminal: control characters
 * (those of eight bits too) and bytes that are no UTF-8 come as \xNN; line feeds and tabs pass. */
void utf8_print_escaped(FILE *to, const char *text);
/* What that prints; the caller frees. */
char *utf8_escaped(const char *text);

#endif
