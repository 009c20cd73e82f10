/* json.h -- JSON that people write: a strict reader over cJSON that knows where everything is.
 *
 * cJSON turns text into values. Around it, one scan of our own accepts comments (#, //, slash-star)
 * and trailing commas by blanking them in place, refuses all that cJSON would let through (01, NaN,
 * duplicate keys, NUL bytes, invalid UTF-8, text after the end) and notes the offset of every key
 * and value. Independent of the locale.
 *
 * Other JSON: json_tree.h for small files that programs write, json_cursor.h for headers of
 * checkpoints, json_write.h for writing. The lines of metrics.jsonl, of which a resumed run may
 * find millions, are searched for their few integers where they lie
 * (parallel/report/metrics_file.c): this program alone writes them, their keys in one order. */
#ifndef MODEL_CORE_JSON_H
#define MODEL_CORE_JSON_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_MAX_BYTES ((size_t)1 << 20)
#define JSON_MAX_DEPTH 64
#define JSON_MAX_KEYS  1000 /* in one object */

/* One value. Nodes lie in the order of the text: the first child of node i is i + 1, the node after
 * all of its children is `end`. */
typedef struct {
    const cJSON *item;
    size_t key_at;   /* offset of the key's opening quote; that of the value if there is no key */
    size_t value_at; /* offset of the value's first byte */
    int end;
} JsonNode;

typedef struct {
    char *text; /* the input without byte order mark, comments and trailing commas blanked */
    size_t length;
    cJSON *root;
    JsonNode *node;
    int n_nodes;
    size_t place_at; /* json_place goes on from where it was asked last */
    int line, column;
} Json;

/* Reads one document. False on the first error, with a sentence in err and its offset in *error_at.
 * json_free is due in either case: json_place needs json->text after an error, too. Duplicate keys
 * are not an error here: json_duplicate finds them, so that a config can name them all. */
bool json_parse(Json *json, const char *text, size_t length, char *err, size_t n, size_t *error_at);
void json_free(Json *json);
/* Line and column, both from 1, of an offset; columns count characters, not bytes.
 * Cheap for offsets that grow from call to call. */
void json_place(Json *json, size_t offset, int *line, int *column);
/* Whether an earlier key of the same object is the same; `node` is a child of `parent`, an object.
 */
bool json_duplicate(const Json *json, int parent, int node);
/* The value as an integer if it is one exactly: integral, at most 2^53 in size, no digit lost. */
bool json_integer(const Json *json, int node, int64_t *out);
/* What kind of value this is, for messages: "a string", "null", ... */
const char *json_kind(const cJSON *item);
/* json_scan.c: the scan of our own. Fills json->node but for `item`. */
bool json_scan(Json *json, char *err, size_t n, size_t *error_at);

#endif
