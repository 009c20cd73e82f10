/* json_tree.h -- parses small JSON texts that programs write (meta.json, tokenizer.json,
 * result.json, lines of a JSONL text) into a cJSON tree. No positions are recorded: an invalid text
 * is refused as a whole.
 *
 * cJSON alone would accept text after the value, and would cut a string at a NUL. (JSON that people
 * write: json.h; headers of checkpoints: json_cursor.h.) */
#ifndef MODEL_CORE_JSON_TREE_H
#define MODEL_CORE_JSON_TREE_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses the single JSON value in text[0..size), which may have white space around it. Returns NULL
 * if the text is anything else or contains the escape \u0000. Free the result with cJSON_Delete. */
cJSON *json_tree_parse(const char *text, size_t size);
/* Sets *out to the member `key` of an object, which must be a whole number from 0 to 2^53, because
 * a double cannot hold every larger integer. If it is anything else, returns false and does not
 * change *out. */
bool json_tree_count(const cJSON *object, const char *key, int64_t *out);
/* Returns whether a JSON text contains the escape \u0000, so that a caller can report it. */
bool json_has_nul(const char *text, size_t size);

#endif
