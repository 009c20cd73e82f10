/* json_escape.c -- implements json_escape.h: decodes one escape sequence. */
#include "model/core/json_escape.h"

#include <stdbool.h>
#include <string.h>

/* Reads four hexadecimal digits from text[*at] and moves *at past them. Returns false at the first
 * character that is not a hexadecimal digit. */
static bool read_digits(const char *text, size_t n, size_t *at, uint32_t *out)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    *out = 0;
    for (int i = 0; i < 4; i++, ++*at) {
        const char *found = *at < n && text[*at] ? strchr(digits, text[*at]) : NULL;
        if (found == NULL) return false;
        *out = *out * 16 + (uint32_t)(found - digits) % 16;
    }
    return true;
}

EscapeKind json_escape(const char *text, size_t n, uint32_t *code, size_t *length)
{
    static const char letters[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    char c = n >= 2 ? text[1] : '\0';
    const char *letter = c ? strchr(letters, c) : NULL;
    *length = 0;
    if (letter == NULL && c != 'u') return ESCAPE_UNKNOWN;
    *length = 2;
    if (letter != NULL) {
        *code = (uint32_t)meaning[letter - letters];
        return ESCAPE_GOOD;
    }
    if (!read_digits(text, n, length, code)) return ESCAPE_NO_DIGIT;
    if (*code >= 0xdc00 && *code < 0xe000) return ESCAPE_HALF_PAIR;
    /* A character beyond 16 bits is written as two escapes that carry ten bits each. */
    if (*code >= 0xd800 && *code < 0xdc00) {
        uint32_t low;
        if (n - *length < 2 || text[*length] != '\\' || text[*length + 1] != 'u')
            return ESCAPE_HALF_PAIR;
        *length += 2;
        if (!read_digits(text, n, length, &low)) return ESCAPE_NO_DIGIT;
        if (low < 0xdc00 || low > 0xdfff) return ESCAPE_HALF_PAIR;
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    }
    return *code != 0 ? ESCAPE_GOOD : ESCAPE_NUL;
}
