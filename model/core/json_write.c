/* json_write.c -- implements json_write.h: quotes strings and formats numbers. */
#include "model/core/json_write.h"

#include "model/core/check.h"
#include "model/core/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Writes one byte as it appears inside quotes to out and returns its length. JSON requires escapes
 * for control characters; DEL is escaped because terminals act on it. */
static size_t escape_byte(unsigned char c, char out[8])
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *special = strchr(plain, c);
    if (special) return (size_t)snprintf(out, 8, "\\%c", letter[special - plain]);
    if (c < 0x20 || c == 0x7f) return (size_t)snprintf(out, 8, "\\u%04x", c);
    out[0] = (char)c;
    return 1;
}

void json_print_string(FILE *to, const char *text)
{
    char *clean = utf8_clean(text), piece[8];
    fputc('"', to);
    for (const char *c = clean; *c; c++)
        fwrite(piece, 1, escape_byte((unsigned char)*c, piece), to);
    fputc('"', to);
    free(clean);
}

char *json_string(const char *text)
{
    char *quoted;
    size_t size;
    FILE *to = text_stream(&quoted, &size);
    json_print_string(to, text);
    fclose(to);
    return quoted;
}

char *json_quote(char *out, size_t n, const char *text)
{
    size_t at = 0;
    char piece[8];
    CHECK(n >= 8, "a buffer of %zu bytes for a quoted string", n);
    out[at++] = '"';
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        size_t m = escape_byte(*c, piece);
        if (at + m + 5 > n) { /* room for the dots, the quote and the zero byte */
            for (; (*c & 0xc0u) == 0x80u; c--)
                at--; /* do not cut a character in two */
            memcpy(out + at, "...", 3);
            at += 3;
            break;
        }
        memcpy(out + at, piece, m);
        at += m;
    }
    out[at++] = '"';
    out[at] = '\0';
    return out;
}

bool json_print_number(FILE *to, double x)
{
    bool finite = isfinite(x);
    if (finite)
        fprintf(to, "%.17g", x);
    else
        fputs("null", to);
    return finite;
}

void json_number(double x, char *out, size_t n)
{
    /* 17 digits are enough to identify every double; most need fewer. */
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, n, "%.*g", digits, x);
        if (strtod(out, NULL) == x) break;
    }
    for (char *c = out; *c; c++)
        if (*c == ',') *c = '.';
}
