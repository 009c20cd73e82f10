/* json.h -- a strict reader for JSON that people write. It uses cJSON and also records the position
 * of every key and value, for error messages.
 *
 * cJSON turns text into values. Before that, our own scanner (json_scan.c) allows comments (#, //,
 * slash-star) and trailing commas by overwriting them with spaces. It refuses everything that cJSON
 * would wrongly accept (01, NaN, NUL bytes, invalid UTF-8, text after the end), and records the
 * offset of every key and value. Independent of the locale.
 *
 * For other JSON there are json_tree.h (small files that programs write), json_cursor.h (headers of
 * checkpoints) and json_write.h (writing). A resumed run may find millions of lines in
 * metrics.jsonl, so parallel/report/metrics_file.c searches them for a few integers without
 * parsing; only this program writes them, with the keys in a fixed order. */
#ifndef MODEL_CORE_JSON_H
#define MODEL_CORE_JSON_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_MAX_BYTES ((size_t)1 << 20)
#define JSON_MAX_DEPTH 64
#define JSON_MAX_KEYS  1000 /* most keys in one object */

/* One value. Nodes are stored in the order of the text: the first child of node i is i + 1, and
 * `end` is the node after all of its children. */
typedef struct {
    const cJSON *item;
    size_t key_at;   /* offset of the key's opening quote, or of the value if there is no key */
    size_t value_at; /* offset of the value's first byte */
    int end;
} JsonNode;

typedef struct {
    char *text; /* input without byte order mark; comments and trailing commas blanked */
    size_t length;
    cJSON *root;
    JsonNode *node;
    int n_nodes;
    size_t place_at; /* json_place continues from the offset of its last call */
    int line, column;
} Json;

/* Parses one document. On the first error, returns false and sets err and the error's offset
 * *error_at. The caller must call json_free in both cases, because json_place needs json->text
 * after an error, too. Duplicate keys are not an error here; json_duplicate finds them, so that a
 * config can report them all. */
bool json_parse(Json *json, const char *text, size_t length, char *err, size_t n, size_t *error_at);
void json_free(Json *json);
/* Converts an offset to a line and a column, both counted from 1; columns count characters, not
 * bytes. Fast if offsets grow from call to call. */
void json_place(Json *json, size_t offset, int *line, int *column);
/* Returns whether an earlier key of the same object equals this node's key. `node` is a child of
 * the object `parent`. */
bool json_duplicate(const Json *json, int parent, int node);
/* Reads the value as an integer. Returns false unless it is integral, at most 2^53 in magnitude,
 * and converted without losing a digit. */
bool json_integer(const Json *json, int node, int64_t *out);
/* Returns the kind of a value for messages: "a string", "null", ... */
const char *json_kind(const cJSON *item);
/* Implemented in json_scan.c: checks the syntax and fills json->node, except for the `item`
 * fields. */
bool json_scan(Json *json, char *err, size_t n, size_t *error_at);

#endif
