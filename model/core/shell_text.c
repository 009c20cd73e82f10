/* shell_text.c -- implements shell_text.h: chooses the quotes that a text needs and writes it in
 * them. */
#include "model/core/shell_text.h"

#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ways to quote a text, from least to most: not at all; "..." if it contains no character that is
 * special there; '...' in which only the single quote needs care; $'...' in which any byte can be
 * written as an escape. */
typedef enum { QUOTE_NONE, QUOTE_DOUBLE, QUOTE_SINGLE, QUOTE_BYTES } Quote;

/* Returns the length of the character at `text`, 1 for an invalid byte, and sets *least to the
 * least quoting that it needs. */
static int read_character(const char *text, Quote *least)
{
    uint32_t code = 0;
    int length = utf8_decode((const uint8_t *)text, (int64_t)strlen(text), &code);
    bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') ||
                  (code >= '0' && code <= '9');
    if (length == 0 || code < 0x20 || (code >= 0x7F && code < 0xA0))
        *least = QUOTE_BYTES;
    else if (letter || (code < 0x80 && strchr("_@%+=:,./-~", (int)code)))
        *least = QUOTE_NONE;
    else
        *least = code < 0x80 && strchr("\"$`\\!", (int)code) ? QUOTE_SINGLE : QUOTE_DOUBLE;
    return length > 0 ? length : 1;
}

static Quote quotes_for(const char *text)
{
    /* An empty word would vanish, and some shells expand a leading ~ or =. */
    Quote quote = *text == '\0' || *text == '~' || *text == '=' ? QUOTE_DOUBLE : QUOTE_NONE, least;
    for (const char *p = text; *p; p += read_character(p, &least)) {
        read_character(p, &least);
        if (least > quote) quote = least;
    }
    return quote;
}

/* Prints one character of `length` bytes as it must appear inside the quotes. */
static void put_character(FILE *f, Quote quote, const char *p, int length, bool plain)
{
    if (quote == QUOTE_SINGLE && *p == '\'')
        fputs("'\\''", f);
    else if (quote == QUOTE_BYTES && *p == '\n')
        fputs("\\n", f);
    else if (quote == QUOTE_BYTES && *p == '\t')
        fputs("\\t", f);
    else if (quote == QUOTE_BYTES && (!plain || strchr("'\\!", *p)))
        for (int i = 0; i < length; i++)
            fprintf(f, "\\%03o", (unsigned char)p[i]);
    else
        fwrite(p, 1, (size_t)length, f);
}

char *shell_quoted(const char *text)
{
    static const char *const begin[] = {"", "\"", "'", "$'"}, *const end[] = {"", "\"", "'", "'"};
    Quote quote = quotes_for(text), least;
    char *quoted;
    size_t size;
    FILE *f = text_stream(&quoted, &size);
    fputs(begin[quote], f);
    for (const char *p = text; *p;) {
        int length = read_character(p, &least);
        put_character(f, quote, p, length, least != QUOTE_BYTES);
        p += length;
    }
    fputs(end[quote], f);
    fclose(f);
    return quoted;
}

char *shell_quoted_path(const char *path)
{
    char *whole = text_format("%s%s", *path == '-' ? "./" : "", path);
    char *quoted = shell_quoted(whole);
    free(whole);
    return quoted;
}
