/* json_cursor.c -- implements json_cursor.h: parses one JSON token after the other. */
#include "model/core/json_cursor.h"

#include "model/core/check.h"
#include "model/core/json_escape.h"
#include "model/core/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool json_error(JsonCursor *j, const char *fmt, ...)
{
    if (j->failed) return false;
    j->failed = true;
    char what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return error_set(j->err, j->n, "byte %td: %s", j->at - j->start, what);
}

static void skip_space(JsonCursor *j)
{
    while (j->at < j->end && strchr(" \t\r\n", *j->at) != NULL && *j->at != '\0')
        j->at++;
}

bool json_take(JsonCursor *j, char c)
{
    if (j->failed) return false;
    skip_space(j);
    if (j->at == j->end || *j->at != c) return false;
    j->at++;
    return true;
}

/* Returns the byte at the cursor in printable form for an error message. */
static const char *shown(const JsonCursor *j, char out[16])
{
    if (j->at == j->end) return "the end";
    unsigned char c = (unsigned char)*j->at;
    snprintf(out, 16, c > 32 && c < 127 ? "%c" : "\\x%02x", c);
    return out;
}

bool json_expect(JsonCursor *j, char c)
{
    char buf[16];
    return json_take(j, c) || json_error(j, "%c is needed here, not %s", c, shown(j, buf));
}

bool json_expect_end(JsonCursor *j)
{
    char buf[16];
    if (j->failed) return false;
    skip_space(j);
    return j->at == j->end ||
           json_error(j, "the text should end here, not go on with %s", shown(j, buf));
}

bool json_take_int(JsonCursor *j, int64_t *out)
{
    if (j->failed) return false;
    skip_space(j);
    const char *p = j->at;
    bool negative = p < j->end && *p == '-';
    int64_t value = 0;
    int digits = 0;
    for (p += negative; p < j->end && *p >= '0' && *p <= '9'; p++, digits++) {
        int digit = *p - '0';
        if (digits == 1 && value == 0) return json_error(j, "an integer has no leading zero");
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, negative ? -digit : digit, &value))
            return json_error(j, "this integer does not fit into 64 bits");
    }
    bool fraction = p < j->end && (*p == '.' || *p == 'e' || *p == 'E');
    if (digits == 0 || fraction) return json_error(j, "an integer is needed here");
    j->at = p;
    *out = value;
    return true;
}

/* Decodes one character of a string, with escapes resolved, into out. Returns its length in out, 0
 * on error. */
static size_t take_character(JsonCursor *j, char *out)
{
    uint32_t code;
    if ((unsigned char)*j->at < 0x20) return json_error(j, "a raw control character in a string");
    if (*j->at != '\\') {
        int length = utf8_decode((const uint8_t *)j->at, j->end - j->at, &code);
        if (length == 0) return json_error(j, "this is not UTF-8");
        memcpy(out, j->at, (size_t)length);
        j->at += length;
        return (size_t)length;
    }
    size_t length;
    EscapeKind kind = json_escape(j->at, (size_t)(j->end - j->at), &code, &length);
    j->at += length;
    switch (kind) {
    case ESCAPE_UNKNOWN: return json_error(j, "there is no such escape");
    case ESCAPE_NO_DIGIT: return json_error(j, "four hexadecimal digits are needed after \\u");
    case ESCAPE_HALF_PAIR: return json_error(j, "half of a surrogate pair");
    case ESCAPE_NUL: return json_error(j, "a NUL character in a string");
    case ESCAPE_GOOD: break;
    }
    return (size_t)utf8_encode(code, out);
}

char *json_take_string(JsonCursor *j)
{
    if (!json_expect(j, '"')) return NULL;
    /* Find the closing quote first, so that the buffer is no larger than the text. */
    const char *close = j->at;
    while (close < j->end && *close != '"')
        close += *close == '\\' && close + 1 < j->end ? 2 : 1;
    if (close >= j->end) {
        json_error(j, "this string does not end");
        return NULL;
    }
    /* An escape sequence is never shorter than the character it stands for, so this size is
     * enough. */
    char *text = must_alloc((size_t)(close - j->at) + 5);
    size_t n = 0;
    while (j->at < close) {
        size_t length = take_character(j, text + n);
        if (length == 0) {
            free(text);
            return NULL;
        }
        n += length;
    }
    j->at = close + 1;
    text[n] = '\0';
    return text;
}
