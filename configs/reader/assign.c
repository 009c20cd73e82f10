/* assign.c -- walks through a document and handles each key: an option, a known DeepSpeed key, a
 * comment, or an error. */
#include "configs/reader/eval_sets.h"
#include "configs/reader/walk.h"
#include "model/core/check.h"
#include "model/core/json_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ConfigPlace place_of(const Walk *w, size_t offset)
{
    ConfigPlace place = {.set = w->set};
    if (w->set == 0) json_place(w->json, offset, &place.line, &place.column);
    return place;
}

ConfigPlace walk_key(const Walk *w, int node)
{
    return place_of(w, w->json->node[node].key_at);
}

ConfigPlace walk_value(const Walk *w, int node)
{
    return place_of(w, w->json->node[node].value_at);
}

void walk_join(char out[PATH_SIZE], const char *prefix, const char *key)
{
    snprintf(out, PATH_SIZE, "%.*s%s%s", PATH_SIZE / 2, prefix, *prefix ? "." : "", key);
}

static void assign_members(const Walk *w, int node, const char *path);

/* Records the position and value of a key in load->seen[number], and reports an error if the
 * document gives the key twice under two spellings: with dots in its name and as a nested section.
 * (refuse_duplicates finds keys that are spelt identically.) */
static void note_place(const Walk *w, int node, const char *path, int number)
{
    ConfigPlace *seen = &w->load->seen[number].place, here = walk_key(w, node);
    bool given = seen->set == w->set && (seen->set > 0 || seen->line > 0);
    if (given && w->set == 0)
        load_error(w->load, here, path, "given at %s:%d:%d, too; keep one of them", w->load->path,
                   seen->line, seen->column);
    else if (given)
        load_error(w->load, here, path, "given twice; keep one of them");
    w->load->seen[number] = (Seen){.place = here, .value = w->json->node[node].item};
}

/* Handles the value of an alias for which only `true` has a meaning: stores that meaning
 * (known->means) in option number `row`, and adds a notice that says so. null has no effect; any
 * other value is refused. */
static void assign_meaning(const Walk *w, int node, int row, const KnownKey *known)
{
    const cJSON *item = w->json->node[node].item;
    ConfigPlace at = walk_key(w, node);
    Json json;
    char err[200];
    size_t where;
    if (cJSON_IsNull(item)) return;
    if (!cJSON_IsTrue(item)) {
        load_error(w->load, walk_value(w, node), known->key, "%s does not fit; write true or false",
                   json_kind(item));
        load_remedy(w->load, "%s=null", known->key);
        return;
    }
    bool read = json_parse(&json, known->means, strlen(known->means), err, sizeof err, &where);
    CHECK(read, "%s: %s", known->key, err);
    assign_value(w->load, &json, 0, row, known->key, at, at);
    json_free(&json);
    load_notice(w->load, at, known->key, "read as %s %s", known->stands_for, known->means);
}

/* Stores the value of an alias in the option that the alias stands for. */
static void assign_alias(const Walk *w, int node, const KnownKey *known)
{
    int row = option_find(known->stands_for);
    /* An alias given by --set replaces the option's value, so earlier errors about that value are
     * dropped. */
    if (w->set > 0) load_forget(w->load, known->stands_for);
    if (known_is_inert(known, w->json->node[node].item)) {
        if (w->set == 0) return;
        /* In a file, an inert value has no effect; in a --set, it resets the option to its
         * default. */
        load_default(w->load, row);
        w->load->origin[row] = (Origin){0};
        return;
    }
    w->load->seen[option_count + (known - known_table)].asks =
        !cJSON_IsNull(w->json->node[node].item);
    if (known->means != NULL)
        assign_meaning(w, node, row, known);
    else
        assign_value(w->load, w->json, node, row, known->key, walk_key(w, node),
                     walk_value(w, node));
    bool *flag = option_field(&option_table[row], w->load->config);
    if (known->negated && cJSON_IsBool(w->json->node[node].item)) *flag = !*flag;
}

/* Refuses the value of a section if it is not an object. true and false were probably meant for the
 * section's key "enabled", a string for its key "type". */
static void refuse_section(const Walk *w, int node, const char *path)
{
    const cJSON *item = w->json->node[node].item;
    char key[PATH_SIZE];
    const char *leaf = cJSON_IsString(item) ? "type" : "enabled";
    walk_join(key, path, leaf);
    if (option_find(key) < 0 || !(cJSON_IsBool(item) || cJSON_IsString(item))) {
        load_error(w->load, walk_value(w, node), path, "%s does not fit; write an object: { ... }",
                   json_kind(item));
        load_remedy(w->load, "%s=null", path);
        return;
    }
    char *value = cJSON_PrintUnformatted(item);
    load_error(w->load, walk_value(w, node), path,
               "%s does not fit; write an object, such as {\"%s\": %.60s}", json_kind(item), leaf,
               value);
    load_remedy(w->load, "%s=null\n%s=%s", path, key, value);
    cJSON_free(value);
}

/* Handles one key and its value; `path` is the key's full dotted name. */
static void assign_node(const Walk *w, int node, const char *path)
{
    const cJSON *item = w->json->node[node].item;
    int row = option_find(path), known = known_find(path);
    bool section = option_is_section(path);
    /* A --set replaces the file's value, so errors about that value are dropped. */
    if (w->set > 0 && (row >= 0 || !cJSON_IsObject(item))) load_forget(w->load, path);
    if (row >= 0 || known >= 0) note_place(w, node, path, row >= 0 ? row : option_count + known);
    if (row >= 0)
        assign_value(w->load, w->json, node, row, NULL, walk_key(w, node), walk_value(w, node));
    else if (section && cJSON_IsObject(item))
        assign_members(w, node, path);
    else if (known >= 0 && known_table[known].kind == KNOWN_SHORT && cJSON_IsBool(item))
        assign_node(w, node, known_table[known].stands_for);
    else if (known >= 0 && known_table[known].kind == KNOWN_ALIAS)
        assign_alias(w, node, &known_table[known]);
    else if (known >= 0)
        check_known(w, node, &known_table[known]);
    else if (section && !cJSON_IsNull(item))
        refuse_section(w, node, path);
    else if (!section && enclosing_tree(path) >= 0)
        check_inside(w, node, path, enclosing_tree(path));
    else if (!section && !eval_sets_refuse_part(w->load, walk_key(w, node), path))
        check_unknown(w, node, path);
}

/* If `path` is the section "bfloat16" (the old name of bf16) or a key in it, replaces that name by
 * "bf16". Returns whether it did. */
static bool rename_old(char path[PATH_SIZE])
{
    static const char old[] = "bfloat16", now[] = "bf16";
    size_t n = sizeof old - 1, m = sizeof now - 1;
    if (strncmp(path, old, n) != 0 || (path[n] != '.' && path[n] != '\0')) return false;
    memcpy(path, now, m);
    memmove(path + m, path + n, strlen(path + n) + 1);
    return true;
}

/* Like DeepSpeed, reads "bfloat16" only if "bf16" is absent; returns whether it is absent. */
static bool take_old_name(const Walk *w, int parent, int node)
{
    bool both = false;
    for (const cJSON *key = w->json->node[parent].item->child; key != NULL; key = key->next)
        both |= strncmp(key->string, "bf16", 4) == 0 &&
                (key->string[4] == '\0' || key->string[4] == '.');
    if (both)
        load_error(w->load, walk_key(w, node), "bfloat16",
                   "the old name of bf16, which is given too; keep bf16");
    else
        load_routine(w->load, walk_key(w, node), "bfloat16", "the old name of bf16, read as such");
    return !both;
}

/* Returns whether a --set KEY=null drops this key of the file. */
static bool is_dropped(const Walk *w, const char *path)
{
    Load *load = w->load;
    bool dropped = false;
    for (int i = 0; w->set == 0 && i < load->n_sets; i++) {
        const char *text = load->sets[i], *equals = strchr(text, '=');
        size_t n = equals ? (size_t)(equals - text) : 0;
        if (n == 0 || strcmp(equals, "=null") != 0 || strncmp(path, text, n) != 0 ||
            (path[n] != '\0' && path[n] != '.'))
            continue;
        load->dropped[i] = dropped = true;
    }
    return dropped;
}

static void assign_members(const Walk *w, int node, const char *path)
{
    for (int i = node + 1; i < w->json->node[node].end && w->load->n_errors < LOAD_MAX_ERRORS;
         i = w->json->node[i].end) {
        const char *key = w->json->node[i].item->string;
        char child[PATH_SIZE];
        /* "_comment" is for human readers; refuse_duplicates has already reported a repeated
         * key. */
        if (key[0] == '_' || json_duplicate(w->json, node, i)) continue;
        walk_join(child, path, key);
        if (is_dropped(w, child)) continue;
        if (rename_old(child) && !take_old_name(w, node, i)) continue;
        assign_node(w, i, child);
    }
}

/* Refuses every repeated key, at any depth, because JSON readers disagree about which of the two
 * values counts. */
static void refuse_duplicates(const Walk *w, int node, const char *path)
{
    const JsonNode *self = &w->json->node[node];
    for (int i = node + 1; i < self->end && w->load->n_errors < LOAD_MAX_ERRORS;
         i = w->json->node[i].end) {
        char child[PATH_SIZE];
        const char *key = w->json->node[i].item->string;
        walk_join(child, path, key ? key : "[]");
        if (is_dropped(w, child)) continue;
        if (key != NULL && json_duplicate(w->json, node, i))
            load_error(w->load, walk_key(w, i), child, "given twice; keep one of them");
        refuse_duplicates(w, i, child);
    }
}

/* Returns whether the document has no key of the section "model". DeepSpeed has none, so the
 * document was written for DeepSpeed. */
static bool lacks_model(const Json *json)
{
    static const char model[] = "model";
    for (const cJSON *key = json->root->child; key != NULL; key = key->next) {
        size_t n = sizeof model - 1;
        if (strncmp(key->string, model, n) == 0 &&
            (key->string[n] == '\0' || key->string[n] == '.'))
            return false;
    }
    return true;
}

/* Returns the number of ranks the config was printed for ("_world", see config_print); 0 if it has
 * none. */
static int64_t printed_world(const Json *json)
{
    int64_t world;
    return json_tree_count(json->root, "_world", &world) && world <= 1000000 ? world : 0;
}

void assign_document(Load *load, Json *json)
{
    Walk w = {.load = load, .json = json};
    /* Errors about missing keys point here. */
    load->root = walk_value(&w, 0);
    if (!cJSON_IsObject(json->root)) {
        load->unreadable = true;
        load_error(load, load->root, "", "%s is not a config; write an object: { ... }",
                   json_kind(json->root));
        return;
    }
    refuse_duplicates(&w, 0, "");
    /* The number of ranks is set before any key is read, because values that a stored config leaves
     * out are derived for its own number of ranks. */
    if (load->context.stored || (load->context.resumed && load->context.world == 0))
        load->context.world = printed_world(json);
    load->foreign = lacks_model(json);
    assign_members(&w, 0, "");
    check_other_names(load, false);
    const cJSON *shard = cJSON_GetObjectItemCaseSensitive(json->root, "_shard");
    if (cJSON_IsString(shard)) read_shard_name(load, shard->valuestring);
}

/* Parses the value of a --set: as JSON if it is valid JSON, else as a string. For keys that take
 * only a string, it is always a string. */
static bool read_set_value(Load *load, ConfigPlace at, const char *key, const char *value,
                           Json *json)
{
    char err[200], again[200];
    size_t where;
    int row = option_find(key);
    /* --set seed=1 gives a number, but --set data.text=1 gives a path. */
    bool wants_string = row >= 0 && option_table[row].type == OPTION_STRING;
    bool read = json_parse(json, value, strlen(value), err, sizeof err, &where);
    if (read && !(wants_string && !cJSON_IsString(json->root) && !cJSON_IsNull(json->root)))
        return true;
    /* true: the value is valid JSON except for a number too large for a double. Read as a string,
     * it would be refused with the wrong reason. */
    bool beyond = !read && json->root != NULL && row >= 0 && !wants_string &&
                  option_table[row].type != OPTION_STRINGS;
    json_free(json);
    if (beyond) {
        load_error(load, at, key, "%s: %s", value, err);
        return false;
    }
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

static void assign_set(Load *load, int set)
{
    const char *text = load->sets[set - 1], *equals = strchr(text, '=');
    ConfigPlace at = {.set = set};
    char key[PATH_SIZE];
    Json *json = &load->set_value[set - 1];
    if (equals == NULL || equals == text || equals - text >= PATH_SIZE) {
        load_error(load, at, "",
                   "this is not KEY=VALUE; write for example --set optimizer.params.lr=6e-4");
        return;
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    if (rename_old(key)) load_routine(load, at, "bfloat16", "the old name of bf16, read as such");
    if (!read_set_value(load, at, key, equals + 1, json)) return;
    Walk w = {.load = load, .json = json, .set = set};
    /* A --set KEY=null has already had its effect if it has dropped the file's key. Only an option
     * is assigned nevertheless, because an earlier --set may have given it. */
    if (!load->dropped[set - 1] || option_find(key) >= 0) assign_node(&w, 0, key);
    refuse_duplicates(&w, 0, key);
}

void assign_sets(Load *load)
{
    load->set_value = must_calloc((size_t)load->n_sets + 1, sizeof *load->set_value);
    for (int i = 1; i <= load->n_sets; i++)
        assign_set(load, i);
    check_other_names(load, true);
    for (int i = 0; i < load->n_sets; i++)
        json_free(&load->set_value[i]);
    free(load->set_value);
}
