/* json_cursor.h -- taking the JSON of checkpoint files apart without building a tree.
 *
 * For texts whose order of keys the reader knows or does not care about, up to 64 MiB, with
 * integers of 64 bits, from files that may be damaged or hostile: every value is asked for by its
 * type. The first error sticks: later calls return false and change nothing. (What people write:
 * json.h; small files of programs: json_tree.h.) */
#ifndef MODEL_CORE_JSON_CURSOR_H
#define MODEL_CORE_JSON_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
