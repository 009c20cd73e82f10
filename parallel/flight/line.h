/* line.h -- reads the keys and values of a line of a flight recorder's file, one after the other.
 * The keys come in a fixed order. After an error all calls return false (json_cursor.h). */
#ifndef PARALLEL_FLIGHT_LINE_H
#define PARALLEL_FLIGHT_LINE_H

#include "model/core/json_cursor.h"

/* Reads a key, the comma or opening brace before it, and the colon after it. */
bool line_take_key(JsonCursor *j, const char *key);
/* Each of these reads a key and its value. line_take_text: a text of printable ASCII that needs no
 * escape and is shorter than `size`. line_take_int, line_take_small: an integer from `least` to
 * `most`. line_take_name: one of `count` names, of which the index is stored. line_take_seconds: a
 * decimal number. line_take_seconds_or_null: a decimal number or null, which is stored as NaN. */
bool line_take_text(JsonCursor *j, const char *key, char *out, size_t size);
bool line_take_int(JsonCursor *j, const char *key, int64_t least, int64_t most, int64_t *out);
bool line_take_small(JsonCursor *j, const char *key, int least, int most, int *out);
bool line_take_name(JsonCursor *j, const char *key, const char *const *name, int count, int *out);
bool line_take_seconds(JsonCursor *j, const char *key, double *out);
bool line_take_seconds_or_null(JsonCursor *j, const char *key, double *out);
/* Reads the closing brace; nothing may follow it on the line. */
bool line_end(JsonCursor *j);

#endif
