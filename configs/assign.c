/* assign.c -- the walk through a document: every key is an option, a known key of DeepSpeed's, a
 * comment or an error. */
#include "configs/load.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_SIZE 256

typedef struct {
    Load *load;
    Json *json;
    int set; /* 0: the file */
} Walk;

static Place place_of(const Walk *w, size_t offset)
{
    Place place = {.set = w->set};
    if (w->set == 0) json_place(w->json, offset, &place.line, &place.column);
    return place;
}

static Place key_place(const Walk *w, int node)
{
    return place_of(w, w->json->node[node].key_at);
}

static Place value_place(const Walk *w, int node)
{
    return place_of(w, w->json->node[node].value_at);
}

static void path_join(char out[PATH_SIZE], const char *prefix, const char *key)
{
    snprintf(out, PATH_SIZE, "%.*s%s%s", PATH_SIZE / 2, prefix, *prefix ? "." : "", key);
}

static void refuse_unknown(const Walk *w, int node, const char *path)
{
    char near[PATH_SIZE] = "";
    suggest_key(path, near, sizeof near);
    if (*near)
        load_error(w->load, key_place(w, node), path, "unknown key; did you mean \"%s\"?", near);
    else
        load_error(w->load, key_place(w, node), path,
                   "unknown key; ./train config defaults lists all keys");
}

/* Known keys that are off as long as their "enabled" is false: what they hold does not matter then.
 */
static void check_switch(const Walk *w, int node, const KnownKey *known)
{
    const cJSON *item = w->json->node[node].item;
    if (cJSON_IsNull(item) || cJSON_IsFalse(item)) return;
    if (!cJSON_IsObject(item)) {
        load_error(w->load, value_place(w, node), known->key,
                   "%s is known, not built yet (%s); remove it", json_kind(item), known->why);
        return;
    }
    for (int i = node + 1; i < w->json->node[node].end; i = w->json->node[i].end) {
        const cJSON *child = w->json->node[i].item;
        if (strcmp(child->string, "enabled") != 0 || cJSON_IsFalse(child) || cJSON_IsNull(child))
            continue;
        char path[PATH_SIZE];
        path_join(path, known->key, "enabled");
        load_error(w->load, value_place(w, i), path, "known, not built yet (%s); write false",
                   known->why);
    }
}

static void check_known(const Walk *w, int node, const KnownKey *known)
{
    const cJSON *item = w->json->node[node].item;
    if (known->kind == KNOWN_SWITCH) {
        check_switch(w, node, known);
        return;
    }
    if (known->kind == KNOWN_WRONG) {
        load_error(w->load, key_place(w, node), known->key, "%s", known->why);
        return;
    }
    char *value = cJSON_PrintUnformatted(item);
    bool automatic = cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0;
    bool inert = cJSON_IsNull(item) || automatic || known->kind == KNOWN_QUIET ||
                 (known->inert != NULL && option_among(known->inert, value));
    if (known->kind == KNOWN_UNBUILT && !inert) {
        char instead[80] = "remove it";
        if (known->inert != NULL)
            snprintf(instead, sizeof instead, "write %.*s", (int)strcspn(known->inert + 1, "|"),
                     known->inert + 1);
        load_error(w->load, value_place(w, node), known->key,
                   "%.60s is known, not built yet (%s); %s", value, known->why, instead);
    } else if (!inert || known->kind == KNOWN_TREE) {
        load_notice(w->load, key_place(w, node), known->key, "accepted, without effect here (%s)",
                    known->why);
    }
    cJSON_free(value);
}

/* The known section with anything inside that `key` lies in, -1 if none. */
static int enclosing_tree(const char *key)
{
    char part[PATH_SIZE];
    for (const char *dot = strchr(key, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - key), key);
        int known = known_find(part);
        if (known >= 0 &&
            (known_table[known].kind == KNOWN_SWITCH || known_table[known].kind == KNOWN_TREE))
            return known;
    }
    return -1;
}

static void assign_members(const Walk *w, int node, const char *path);

/* One key with its value: `path` is its whole name. */
static void assign_node(const Walk *w, int node, const char *path)
{
    const cJSON *item = w->json->node[node].item;
    int row = option_find(path), known = known_find(path);
    bool section = option_is_section(path);
    if (w->set > 0 && !cJSON_IsObject(item)) load_forget(w->load, path);
    if (row >= 0)
        assign_value(w->load, w->json, node, row, key_place(w, node), value_place(w, node));
    else if (section && cJSON_IsObject(item))
        assign_members(w, node, path);
    else if (known >= 0)
        check_known(w, node, &known_table[known]);
    else if (section && !cJSON_IsNull(item))
        load_error(w->load, value_place(w, node), path, "%s does not fit; write an object: { ... }",
                   json_kind(item));
    else if (!section && enclosing_tree(path) < 0)
        refuse_unknown(w, node, path);
}

/* DeepSpeed reads "bfloat16" where "bf16" is absent. */
static bool is_old_name(const Walk *w, int parent, int node, const char *path)
{
    if (strcmp(path, "bfloat16") != 0) return false;
    if (cJSON_GetObjectItemCaseSensitive(w->json->node[parent].item, "bf16") != NULL)
        load_error(w->load, key_place(w, node), path,
                   "the old name of bf16, which is given too; keep bf16");
    else
        load_notice(w->load, key_place(w, node), path, "the old name of bf16, read as such");
    return true;
}

static void assign_members(const Walk *w, int node, const char *path)
{
    for (int i = node + 1; i < w->json->node[node].end && w->load->n_errors < LOAD_MAX_ERRORS;
         i = w->json->node[i].end) {
        const char *key = w->json->node[i].item->string;
        char child[PATH_SIZE];
        if (key[0] == '_' || json_duplicate(w->json, node, i)) continue;
        path_join(child, path, key);
        if (is_old_name(w, node, i, child)) snprintf(child, sizeof child, "bf16");
        assign_node(w, i, child);
    }
}

/* A key that is given twice, anywhere, is refused: readers of JSON disagree about which one counts.
 */
static void refuse_duplicates(const Walk *w, int node, const char *path)
{
    const JsonNode *self = &w->json->node[node];
    for (int i = node + 1; i < self->end && w->load->n_errors < LOAD_MAX_ERRORS;
         i = w->json->node[i].end) {
        char child[PATH_SIZE];
        const char *key = w->json->node[i].item->string;
        path_join(child, path, key ? key : "[]");
        if (key != NULL && json_duplicate(w->json, node, i))
            load_error(w->load, key_place(w, i), child, "given twice; keep one of them");
        refuse_duplicates(w, i, child);
    }
}

void assign_document(Load *load, Json *json)
{
    Walk w = {.load = load, .json = json};
    load->root = value_place(&w, 0);
    if (!cJSON_IsObject(json->root)) {
        load->unreadable = true;
        load_error(load, load->root, "", "%s is not a config; write an object: { ... }",
                   json_kind(json->root));
        return;
    }
    refuse_duplicates(&w, 0, "");
    assign_members(&w, 0, "");
}

/* The value of a --set is JSON where it reads as JSON, else a string; a string always for keys that
 * take only one. */
static bool read_set_value(Load *load, Place at, const char *key, const char *value, Json *json)
{
    char err[200], again[200];
    size_t where;
    int row = option_find(key);
    bool wants_string = row >= 0 && option_table[row].type == OPTION_STRING;
    bool read = json_parse(json, value, strlen(value), err, sizeof err, &where);
    if (read && !(wants_string && !cJSON_IsString(json->root) && !cJSON_IsNull(json->root)))
        return true;
    json_free(json);
    if (!read && value[0] != '\0' && strchr("{[\"", value[0]) != NULL) {
        load_error(load, at, key, "the value is not JSON at character %zu: %s", where + 1, err);
        return false;
    }
    size_t n = 6 * strlen(value) + 16;
    char *quoted = must_alloc(n);
    json_quote(quoted, n, value);
    read = json_parse(json, quoted, strlen(quoted), again, sizeof again, &where);
    free(quoted);
    if (read) return true;
    json_free(json);
    load_error(load, at, key, "%s", again);
    return false;
}

void assign_set(Load *load, int set)
{
    const char *text = load->sets[set - 1], *equals = strchr(text, '=');
    Place at = {.set = set};
    char key[PATH_SIZE];
    Json json;
    if (equals == NULL || equals == text || equals - text >= PATH_SIZE) {
        load_error(load, at, "",
                   "this is not KEY=VALUE; write for example --set optimizer.params.lr=6e-4");
        return;
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    if (!read_set_value(load, at, key, equals + 1, &json)) return;
    Walk w = {.load = load, .json = &json, .set = set};
    int tree = enclosing_tree(key);
    if (tree >= 0) load_forget(load, key);
    if (tree < 0)
        assign_node(&w, 0, key);
    else if (strcmp(strrchr(key, '.'), ".enabled") == 0 && !cJSON_IsFalse(json.root))
        load_error(load, at, key, "known, not built yet (%s); write false", known_table[tree].why);
    refuse_duplicates(&w, 0, key);
    json_free(&json);
}
