/* utf8.c -- cleans, shortens and escapes text from outside (paths, host names, generated samples);
 * see utf8.h. */
#include "model/core/utf8.h"

#include "model/core/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

char *utf8_clean(const char *text)
{
    size_t left = strlen(text), n = 0;
    char *clean = must_alloc(3 * left + 1);
    while (left > 0) {
        uint32_t code;
        int length = utf8_decode((const uint8_t *)text, (int64_t)left, &code);
        if (length > 0)
            memcpy(clean + n, text, (size_t)length);
        else
            memcpy(clean + n, "\xEF\xBF\xBD", 3);
        n += length > 0 ? (size_t)length : 3;
        text += length > 0 ? length : 1;
        left -= length > 0 ? (size_t)length : 1;
    }
    clean[n] = '\0';
    return clean;
}

char *utf8_line(const char *text)
{
    char *line = utf8_clean(text);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return line;
}

/* Returns whether this byte is a UTF-8 continuation byte. */
static bool continues(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

void utf8_format(char *out, size_t n, const char *fmt, va_list args)
{
    static const char gap[] = "...";
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(out, n, fmt, args);
    char *whole = NULL;
    /* If malloc fails, or n is too small for the dots, keep only the beginning. */
    if (length >= 0 && (size_t)length >= n && n > 2 * sizeof gap)
        whole = malloc((size_t)length + 1);
    if (whole != NULL) {
        vsnprintf(whole, (size_t)length + 1, fmt, again);
        /* Give each end half of the room, then move both cuts to character boundaries: a split
         * character has at most three bytes on the wrong side. */
        size_t room = n - sizeof gap, first = room / 2;
        const char *last = whole + (size_t)length - (room - first);
        for (int i = 0; i < 3 && first > 0 && continues(whole[first]); i++)
            first--;
        for (int i = 0; i < 3 && continues(*last); i++)
            last++;
        memcpy(out, whole, first);
        memcpy(out + first, gap, sizeof gap - 1);
        memcpy(out + first + sizeof gap - 1, last, strlen(last) + 1);
        free(whole);
    }
    va_end(again);
}

/* Writes the first character of text[0..left) to out[0..4], escaped if it is not printable. A tab
 * is not escaped, and a line feed only if `lines` is false. Returns the length of the result and
 * stores that of the character in *taken. */
static size_t escape(char *out, const char *text, int64_t left, bool lines, int *taken)
{
    uint32_t code = 0;
    int length = utf8_decode((const uint8_t *)text, left, &code);
    bool plain = length > 0 && code >= 32 && (code < 127 || code >= 160);
    *taken = plain ? length : 1;
    if (!plain && *text != '\t' && !(lines && *text == '\n'))
        return (size_t)snprintf(out, 5, "\\x%02x", (unsigned char)*text);
    memcpy(out, text, (size_t)*taken);
    return (size_t)*taken;
}

size_t utf8_escape(char *out, const char *text, bool lines)
{
    char *end = out;
    int taken;
    for (int64_t left = (int64_t)strlen(text); left > 0; left -= taken, text += taken)
        end += escape(end, text, left, lines, &taken);
    *end = '\0';
    return (size_t)(end - out);
}

void utf8_print_escaped(FILE *to, const char *text)
{
    char out[5];
    int taken;
    for (int64_t left = (int64_t)strlen(text); left > 0; left -= taken, text += taken)
        fwrite(out, 1, escape(out, text, left, true, &taken), to);
}

char *utf8_escaped(const char *text)
{
    char *escaped = must_alloc(4 * strlen(text) + 1);
    utf8_escape(escaped, text, true);
    return escaped;
}
