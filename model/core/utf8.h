/* utf8.h -- strict UTF-8 decoding (no overlong forms, no surrogates, nothing above U+10FFFF), and
 * functions that make text from outside valid UTF-8 and safe to print on a terminal. */
#ifndef MODEL_CORE_UTF8_H
#define MODEL_CORE_UTF8_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Decodes the character at s into *code and returns its length in bytes, 1 to 4. Returns 0 if the
 * `n` >= 1 bytes there do not begin with a valid character. */
static inline int utf8_decode(const uint8_t *s, int64_t n, uint32_t *code)
{
    uint32_t c = s[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (c < 0xC2 || n < 2 || (s[1] & 0xC0) != 0x80) return 0;
    if (c < 0xE0) {
        *code = (c & 0x1F) << 6 | (s[1] & 0x3Fu);
        return 2;
    }
    if (n < 3 || (s[2] & 0xC0) != 0x80) return 0;
    uint32_t tail = (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    if (c < 0xF0) {
        *code = (c & 0xF) << 12 | tail;
        return *code < 0x800 || (*code >= 0xD800 && *code < 0xE000) ? 0 : 3;
    }
    if (n < 4 || (s[3] & 0xC0) != 0x80) return 0;
    *code = (c & 7) << 18 | tail << 6 | (s[3] & 0x3Fu);
    return c > 0xF4 || *code < 0x10000 || *code > 0x10FFFF ? 0 : 4;
}

/* Returns the offset of the first byte that is not part of a valid character, or -1 if there is
 * none. */
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

/* Writes a valid code point as UTF-8 and returns its length, 1 to 4. */
static inline int utf8_encode(uint32_t code, char *out)
{
    static const uint32_t lead[5] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[n] | code);
    return n;
}

/* Returns the text with each invalid byte replaced by U+FFFD; the caller frees. */
char *utf8_clean(const char *text);
/* Like utf8_clean, but every control character becomes '?', so that the result is one line, for a
 * comment or a message. */
char *utf8_line(const char *text);
/* Like vsnprintf, but a text that does not fit into out[0..n) loses its middle, cut between
 * characters: "first part...last part". Error messages begin with what was tried and end with the
 * reason, so both are kept. */
void utf8_format(char *out, size_t n, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Prints arbitrary text so that it cannot control the terminal: control characters (also the 8-bit
 * ones) and invalid bytes are printed as \xNN; line feeds and tabs are kept. */
void utf8_print_escaped(FILE *to, const char *text);
/* Like utf8_print_escaped, but returns the text; the caller frees. */
char *utf8_escaped(const char *text);
/* Like utf8_escaped, but writes to out, which has room for 4 * strlen(text) + 1 bytes, and
 * allocates nothing. Unless `lines`, line feeds are printed as \x0a, too. Returns the length. */
size_t utf8_escape(char *out, const char *text, bool lines);

#endif
