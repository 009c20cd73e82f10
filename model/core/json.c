/* json.c -- combines cJSON's values with the text positions that json_scan finds; see json.h. */
#include "model/core/json.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sets the item of `node` and of all its children, and returns the next node. Nodes and cJSON's
 * tree are both in the order of the text, so one walk matches them. */
static int attach(Json *json, int node, const cJSON *item)
{
    json->node[node].item = item;
    int next = node + 1;
    for (const cJSON *child = item->child; child != NULL; child = child->next)
        next = attach(json, next, child);
    CHECK(next == json->node[node].end, "%d nodes in the scan, %d in cJSON", json->node[node].end,
          next);
    return next;
}

/* Returns whether every number fits into a double; otherwise sets err and *error_at. */
static bool numbers_fit(const Json *json, char *err, size_t n, size_t *error_at)
{
    for (int i = 0; i < json->n_nodes; i++) {
        const cJSON *item = json->node[i].item;
        if (!cJSON_IsNumber(item)) continue;
        const char *digits = json->text + json->node[i].value_at;
        /* Too small: cJSON reads zero although the number has a nonzero digit, as in 1e-400. */
        bool large = !isfinite(item->valuedouble), small = item->valuedouble == 0 &&
                                                           digits[strspn(digits, "-0.")] >= '1' &&
                                                           digits[strspn(digits, "-0.")] <= '9';
        if (!large && !small) continue;
        *error_at = json->node[i].value_at;
        return error_set(err, n,
                         large ? "this number is larger than any that a double holds"
                               : "this number is smaller than any that a double holds, and would "
                                 "be read as 0; write 0 if that is meant");
    }
    return true;
}

bool json_parse(Json *json, const char *text, size_t length, char *err, size_t n, size_t *error_at)
{
    *json = (Json){0};
    *error_at = 0;
    bool marked = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
    text += marked ? 3 : 0;
    length -= marked ? 3 : 0;
    json->text = must_alloc(length + 1);
    memcpy(json->text, text, length);
    json->text[length] = '\0';
    json->length = length;
    if (length > JSON_MAX_BYTES)
        return error_set(err, n, "larger than 1 MiB; this is not a config");
    if (!json_scan(json, err, n, error_at)) return false;
    json->root = cJSON_ParseWithLengthOpts(json->text, length + 1, NULL, true);
    if (json->root == NULL) {
        const char *where = cJSON_GetErrorPtr();
        *error_at =
            where >= json->text && where < json->text + length ? (size_t)(where - json->text) : 0;
        return error_set(err, n, "this is not JSON");
    }
    attach(json, 0, json->root);
    return numbers_fit(json, err, n, error_at);
}

void json_free(Json *json)
{
    cJSON_Delete(json->root);
    free(json->node);
    free(json->text);
    *json = (Json){0};
}

void json_place(Json *json, size_t offset, int *line, int *column)
{
    if (json->line == 0 || offset < json->place_at) {
        json->place_at = 0;
        json->line = json->column = 1;
    }
    for (; json->place_at < offset && json->place_at < json->length; json->place_at++) {
        unsigned char c = (unsigned char)json->text[json->place_at];
        json->line += c == '\n';
        json->column = c == '\n' ? 1 : json->column + ((c & 0xc0u) != 0x80u);
    }
    *line = json->line;
    *column = json->column;
}

bool json_duplicate(const Json *json, int parent, int node)
{
    const char *key = json->node[node].item->string;
    for (int i = parent + 1; i < node; i = json->node[i].end)
        if (strcmp(json->node[i].item->string, key) == 0) return true;
    return false;
}

bool json_integer(const Json *json, int node, int64_t *out)
{
    const JsonNode *self = &json->node[node];
    if (!cJSON_IsNumber(self->item)) return false;
    double x = self->item->valuedouble;
    if (!(fabs(x) <= 0x1p53) || x != floor(x)) return false;
    *out = (int64_t)x;
    /* 2^53 + 1 is read as the double 2^53. So if the number is written as an integer, compare its
     * digits with the result. */
    const char *digits = json->text + self->value_at;
    char *end;
    long long exact = strtoll(digits, &end, 10);
    bool plain = *end != '.' && *end != 'e' && *end != 'E';
    return !plain || exact == *out;
}

const char *json_kind(const cJSON *item)
{
    if (cJSON_IsString(item)) return "a string";
    if (cJSON_IsNumber(item)) return "a number";
    if (cJSON_IsBool(item)) return cJSON_IsTrue(item) ? "true" : "false";
    if (cJSON_IsArray(item)) return "a list";
    if (cJSON_IsObject(item)) return "an object";
    return "null";
}
