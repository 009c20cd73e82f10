/* json_text.h -- the JSON of checkpoint files: a cursor that takes it apart without building a
 * tree.
 *
 * model/core/json.h reads what people write; here headers of up to 64 MiB and integers of 64 bits
 * come from files that may be damaged or hostile. The first error sticks: later calls return false
 * and change nothing. */
#ifndef MODEL_CORE_JSON_TEXT_H
#define MODEL_CORE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *start, *at, *end;
    bool failed;
    char *err; /* receives the first error: "byte 17: ..." */
    size_t n;
} JsonCursor;

/* Whether the next character after white space is `c`; if so, goes past it. */
bool json_take(JsonCursor *j, char c);
/* The same; anything else is an error. */
bool json_expect(JsonCursor *j, char c);
/* An integer, exactly: no fraction, no exponent, within int64. */
bool json_take_int(JsonCursor *j, int64_t *out);
/* A string with its escapes resolved; strict UTF-8, no NUL. The caller frees; NULL on error. */
char *json_take_string(JsonCursor *j);
/* Only white space is left. */
bool json_expect_end(JsonCursor *j);
/* Notes an error at the cursor's place and returns false. */
bool json_error(JsonCursor *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes `text` in quotes. Whatever its bytes, the cursor reads it back: what is no UTF-8 (a path,
 * a host's name) becomes U+FFFD. */
void json_print_string(FILE *to, const char *text);
/* The same as a string; the caller frees. */
char *json_string(const char *text);

#endif
