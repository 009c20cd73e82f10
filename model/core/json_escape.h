/* json_escape.h -- the escapes in strings of JSON, for the strict readers; each has its own words
 * for what is wrong with one. */
#ifndef MODEL_CORE_JSON_ESCAPE_H
#define MODEL_CORE_JSON_ESCAPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    ESCAPE_GOOD,
    ESCAPE_UNKNOWN,   /* another letter than those of JSON, or the text ends */
    ESCAPE_NO_DIGIT,  /* fewer than four hexadecimal digits after \u */
    ESCAPE_HALF_PAIR, /* a surrogate without its other half names no character */
    ESCAPE_NUL,       /* \u0000: strings here end at a NUL */
} EscapeKind;

/* Reads the escape at text[0..n), n >= 1, which begins with its backslash: *code is the character
 * that it stands for, *length the bytes it takes, which are those of two escapes for a surrogate
 * pair. Where it is none, *length is how far it was read, up to what is wrong. */
EscapeKind json_escape(const char *text, size_t n, uint32_t *code, size_t *length);

#endif
