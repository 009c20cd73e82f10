/* json_tree.h -- small JSON files that programs write (meta.json, tokenizer.json, result.json,
 * lines of a text in JSONL) as cJSON's tree, without places: a bad one is refused as a whole.
 *
 * cJSON alone would let through text after the value, and cut a string at a NUL. (What people
 * write: json.h; checkpoint headers: json_cursor.h.) */
#ifndef MODEL_CORE_JSON_TREE_H
#define MODEL_CORE_JSON_TREE_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* The one JSON value in text[0..size), white space around it allowed; NULL if it is anything else,
 * or has the escape \u0000. Free with cJSON_Delete. */
cJSON *json_tree_parse(const char *text, size_t size);
/* Whether a text of JSON has the escape \u0000, for those who say so. */
bool json_has_nul(const char *text, size_t size);

#endif
