/* json_escape.h -- decodes escape sequences in JSON strings. Both strict readers (json_scan.c,
 * json_cursor.c) use it and print their own error messages. */
#ifndef MODEL_CORE_JSON_ESCAPE_H
#define MODEL_CORE_JSON_ESCAPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    ESCAPE_GOOD,
    ESCAPE_UNKNOWN,   /* not an escape letter of JSON, or end of text */
    ESCAPE_NO_DIGIT,  /* fewer than four hexadecimal digits after \u */
    ESCAPE_HALF_PAIR, /* a surrogate without its other half */
    ESCAPE_NUL,       /* \u0000, which would end a C string */
} EscapeKind;

/* Decodes the escape at text[0..n), n >= 1, which begins with its backslash. Sets *code to the
 * character and *length to the number of bytes read; a surrogate pair is read as two escapes. On
 * error, *length is the number of bytes before the error. */
EscapeKind json_escape(const char *text, size_t n, uint32_t *code, size_t *length);

#endif
