/* json_cursor.h -- reads the JSON headers of checkpoint files token by token, without building a
 * tree.
 *
 * For texts of up to 64 MiB that may be damaged or hostile, and whose keys have a known order or an
 * order that does not matter. The caller asks for each value by its type; integers have 64 bits.
 * After the first error, all later calls return false and change nothing. (JSON that people write:
 * json.h; small files that programs write: json_tree.h.) */
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

/* Skips white space and returns whether the next character is `c`; if so, moves past it. */
bool json_take(JsonCursor *j, char c);
/* Like json_take, but any other character is an error. */
bool json_expect(JsonCursor *j, char c);
/* Reads an exact integer: no fraction, no exponent, within the range of int64. */
bool json_take_int(JsonCursor *j, int64_t *out);
/* Reads a string and resolves its escapes. Invalid UTF-8 and NUL characters are errors. The caller
 * frees the result; NULL on error. */
char *json_take_string(JsonCursor *j);
/* Checks that only white space is left. */
bool json_expect_end(JsonCursor *j);
/* Records an error at the cursor's position, unless there is one already, and returns false. */
bool json_error(JsonCursor *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
