/* assign_known.c -- handles DeepSpeed keys that are known but not implemented here: which values
 * are accepted silently, which give a notice, and which are refused. */
#include "configs/reader/walk.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether an unknown key is accepted, as it is by DeepSpeed: it is at the top level of a
 * file that was written for DeepSpeed, where launchers and trainers keep their own keys, and it is
 * not a misspelling of a known key. */
static bool is_of_others(const Walk *w, const char *path)
{
    Suggestion near;
    return w->load->foreign && w->set == 0 && strchr(path, '.') == NULL &&
           !suggest_sibling(path, NULL, &near);
}

/* Returns whether the object whose first member is `item` has a key of this name. */
static bool has_sibling(const cJSON *item, const char *name)
{
    for (; item != NULL; item = item->next)
        if (item->string != NULL && strcmp(item->string, name) == 0) return true;
    return false;
}

/* Adds the remedy for an unknown key of a file. If it is probably a misspelling, its value is given
 * to the key that was meant, unless the file gives that key, too. Otherwise the key is removed. The
 * user must choose in two cases: two keys are equally similar; or the file is for this program, and
 * another program uses this name for one of the keys. */
static void mend_unknown(const Walk *w, int node, const char *path)
{
    const cJSON *item = w->json->node[node].item;
    const char *dot = strrchr(path, '.');
    int section = dot ? (int)(dot + 1 - path) : 0;
    Suggestion near;
    const cJSON *first = item;
    while (first->prev != NULL && first->prev->next != NULL)
        first = first->prev;
    if (w->set > 0) return;
    bool misspelt = suggest_sibling(path, item, &near);
    if (misspelt && near.other[0] != '\0') return;
    if (misspelt && !has_sibling(first, near.key)) {
        char *value = cJSON_PrintUnformatted(item);
        load_remedy(w->load, "%s=null\n%.*s%s=%s", path, section, path, near.key, value);
        cJSON_free(value);
    } else if (misspelt || w->load->foreign || suggest_alias(path) == NULL)
        load_remedy(w->load, "%s=null", path);
}

static void refuse_unknown(const Walk *w, int node, const char *path)
{
    Suggestion near;
    suggest_key(path, w->json->node[node].item, &near);
    if (near.other[0] != '\0')
        load_error(w->load, walk_key(w, node), path, "unknown key; did you mean \"%s\" or \"%s\"?",
                   near.key, near.other);
    else if (near.key[0] != '\0')
        load_error(w->load, walk_key(w, node), path, "unknown key; did you mean \"%s\"?", near.key);
    else
        load_error(w->load, walk_key(w, node), path,
                   "unknown key; ./train config defaults lists all keys");
    mend_unknown(w, node, path);
}

void check_unknown(const Walk *w, int node, const char *path)
{
    const char *own = suggest_alias(path);
    if (is_of_others(w, path) && own != NULL) {
        load_notice(w->load, walk_key(w, node), path,
                    "unknown key, without effect (DeepSpeed does not read it either); here it is "
                    "\"%s\"",
                    own);
        return;
    }
    if (is_of_others(w, path)) {
        load_idle(w->load, walk_key(w, node), path,
                  "unknown key, without effect (DeepSpeed does not read it either)");
        return;
    }
    refuse_unknown(w, node, path);
}

static bool is_switch(const KnownKey *known)
{
    return known->kind == KNOWN_SWITCH || known->kind == KNOWN_ON_SWITCH ||
           known->kind == KNOWN_TOOL || known->kind == KNOWN_DEEP_SWITCH;
}

/* Returns whether the key, usually a section, is refused whatever its value. */
static bool is_unbuilt_section(const KnownKey *known)
{
    return known->kind == KNOWN_UNBUILT && known->inert == NULL;
}

static bool is_off(const cJSON *item)
{
    return cJSON_IsFalse(item) || cJSON_IsNull(item);
}

static void notice_ignored(const Walk *w, int node, const char *path, const KnownKey *known)
{
    load_idle(w->load, walk_key(w, node), path, "accepted, without effect here (%s)",
              known_why(known));
}

/* Refuses a key or section as a whole. */
static void refuse_present(const Walk *w, int node, const char *path, const KnownKey *known)
{
    load_error(w->load, walk_key(w, node), path, "known, not built yet (%s); remove it%s%s",
               known_why(known), known->helps ? "; " : "", known->helps ? known->helps : "");
    load_remedy(w->load, "%s=null", path);
}

static void refuse_enabled(const Walk *w, int node, const KnownKey *known)
{
    char path[PATH_SIZE];
    walk_join(path, known->key, "enabled");
    if (known->kind == KNOWN_TOOL) {
        notice_ignored(w, node, path, known);
        return;
    }
    load_error(w->load, walk_value(w, node), path, "known, not built yet (%s); write false",
               known_why(known));
    load_remedy(w->load, "%s=false", path);
}

/* Returns whether the value is an "enabled" that is true, or contains one at any depth. */
static bool enables(const cJSON *item)
{
    bool named = item->string != NULL && strcmp(item->string, "enabled") == 0;
    if (named && !cJSON_IsObject(item) && !is_off(item)) return true;
    for (const cJSON *child = item->child; child != NULL; child = child->next)
        if (enables(child)) return true;
    return false;
}

/* Checks a feature that is off unless its "enabled" is true. If it is off, its other keys do not
 * matter, unless one looks like a misspelt "enabled". */
static void check_switch(const Walk *w, int node, const KnownKey *known)
{
    const cJSON *item = w->json->node[node].item;
    bool named = false; /* the section contains "enabled" */
    if (is_off(item)) return;
    if (known->kind == KNOWN_DEEP_SWITCH && cJSON_IsObject(item)) {
        if (enables(item)) refuse_present(w, node, known->key, known);
        return;
    }
    /* DeepSpeed ignores a feature whose value is not an object, so the user meant something
     * else. */
    if (!cJSON_IsObject(item)) {
        if (known->kind == KNOWN_TOOL) {
            notice_ignored(w, node, known->key, known);
            return;
        }
        load_error(w->load, walk_value(w, node), known->key,
                   "%s is known, not built yet (%s); remove it", json_kind(item), known_why(known));
        load_remedy(w->load, "%s=null", known->key);
        return;
    }
    for (int i = node + 1; i < w->json->node[node].end; i = w->json->node[i].end) {
        const cJSON *child = w->json->node[i].item;
        char path[PATH_SIZE];
        walk_join(path, known->key, child->string);
        bool enabled = strcmp(child->string, "enabled") == 0;
        named |= enabled;
        /* The other keys are not checked: a feature that is off does not read them. */
        if (enabled && !is_off(child))
            refuse_enabled(w, i, known);
        else if (!enabled && suggest_is_near(child->string, "enabled"))
            load_error(w->load, walk_key(w, i), path, "unknown key; did you mean \"enabled\"?");
    }
    if (known->kind != KNOWN_ON_SWITCH || named) return;
    char path[PATH_SIZE];
    walk_join(path, known->key, "enabled");
    load_error(w->load, walk_value(w, node), path,
               "true is its default, and it is known, not built yet (%s); write false",
               known_why(known));
    load_remedy(w->load, "%s=false", path);
}

/* Returns whether the value has the type that the key takes. */
static bool is_of_type(const cJSON *item, const char *example)
{
    if (*example == '"') return cJSON_IsString(item);
    if (*example == 't' || *example == 'f') return cJSON_IsBool(item);
    return cJSON_IsNumber(item);
}

static const char *type_name(const char *example)
{
    return *example == '"'                      ? "a string"
           : *example == 't' || *example == 'f' ? "true or false"
                                                : "a number";
}

/* Returns whether DeepSpeed drops a key with the value "auto" in this section, so that its default
 * is used. In other sections the string "auto" reaches code that cannot handle it. */
static bool drops_auto(const char *key)
{
    static const char *const sections[] = {
        "zero_optimization", "fp16",   "bf16",   "csv_monitor", "wandb", "comet", "comms_logger",
        "tensor_parallel",   "timers", "compile"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        size_t n = strlen(sections[i]);
        if (strncmp(key, sections[i], n) == 0 && key[n] == '.') return true;
    }
    return false;
}

static void check_unbuilt(const Walk *w, int node, const KnownKey *known, const char *value)
{
    bool automatic = strcmp(value, "\"auto\"") == 0;
    int n = known->inert ? option_first(known->inert) : 0;
    const char *first = known->inert ? known->inert + 1 : "";
    char instead[200] = "remove it";
    if (known->inert != NULL) snprintf(instead, sizeof instead, "write %.*s", n, first);
    if (known->helps != NULL)
        snprintf(instead + strlen(instead), sizeof instead - strlen(instead), "; %s", known->helps);
    if (automatic && drops_auto(known->key))
        load_routine(w->load, walk_key(w, node), known->key,
                     "\"auto\" is read as the default, which is %.*s (%s is not built yet)",
                     known->inert ? n : 6, known->inert ? first : "absent", known_why(known));
    else if (value[0] == '{' || value[0] == '[')
        refuse_present(w, node, known->key, known);
    else {
        load_error(w->load, walk_value(w, node), known->key,
                   "%.60s is known, not built yet (%s); %s", value, known_why(known), instead);
        load_remedy(w->load, "%s=null", known->key);
    }
}

static void check_ignored(const Walk *w, int node, const KnownKey *known, const char *value)
{
    const cJSON *item = w->json->node[node].item;
    const char *example = known_example(known);
    if (known->kind == KNOWN_IGNORED && strcmp(value, "\"auto\"") == 0) return;
    /* A value of the wrong type was probably meant for another key, so this is an error, not a
     * notice. */
    if (known->kind != KNOWN_IGNORED || is_of_type(item, example)) {
        notice_ignored(w, node, known->key, known);
        return;
    }
    load_error(w->load, walk_value(w, node), known->key, "%.60s does not fit; write %s",
               cJSON_IsObject(item) || cJSON_IsArray(item) ? json_kind(item) : value,
               type_name(example));
    load_remedy(w->load, "%s=null", known->key);
}

/* Refuses a key that has no valid value. GPT-NeoX's files name the 16-bit type in fp16.type; if
 * that is bf16, the remedy enables bf16. */
static void refuse_wrong(const Walk *w, int node, const KnownKey *known)
{
    const char *word = cJSON_GetStringValue(w->json->node[node].item);
    bool bf16 = strcmp(known->key, "fp16.type") == 0 && word != NULL && strncmp(word, "bf", 2) == 0;
    load_error(w->load, walk_key(w, node), known->key, "%s", known_why(known));
    load_remedy(w->load, bf16 ? "fp16=null\nbf16.enabled=true" : "%s=null", known->key);
}

void check_known(const Walk *w, int node, const KnownKey *known)
{
    const cJSON *item = w->json->node[node].item;
    char *value = cJSON_PrintUnformatted(item);
    /* In DeepSpeed, null has the same effect as leaving the key out. */
    bool inert = cJSON_IsNull(item) || known_is_inert(known, item);
    switch (known->kind) {
    /* An alias has already been read as its option. */
    case KNOWN_QUIET:
    case KNOWN_ALIAS: break;
    case KNOWN_SWITCH:
    case KNOWN_ON_SWITCH:
    case KNOWN_TOOL:
    case KNOWN_DEEP_SWITCH: check_switch(w, node, known); break;
    case KNOWN_WRONG: refuse_wrong(w, node, known); break;
    /* true and false were already stored as the key inside the section, and an object was read like
     * any other section. Other values are refused. */
    case KNOWN_SHORT:
        if (!inert)
            load_error(w->load, walk_value(w, node), known->key,
                       "%.60s does not fit; write an object: { ... }, or true or false", value);
        break;
    case KNOWN_UNBUILT:
        if (!inert) check_unbuilt(w, node, known, value);
        break;
    case KNOWN_IGNORED:
    case KNOWN_TREE:
        if (!inert) check_ignored(w, node, known, value);
        break;
    }
    cJSON_free(value);
}

/* Returns whether the section may contain keys that have no row of their own; only its "enabled"
 * may have one. */
static bool holds_anything(const KnownKey *known)
{
    return is_switch(known) || known->kind == KNOWN_TREE || is_unbuilt_section(known);
}

int enclosing_tree(const char *key)
{
    char part[PATH_SIZE];
    for (const char *dot = strchr(key, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - key), key);
        int known = known_find(part);
        if (known >= 0 && holds_anything(&known_table[known])) return known;
    }
    return -1;
}

void check_inside(const Walk *w, int node, const char *path, int tree)
{
    const KnownKey *known = &known_table[tree];
    const char *name = path + strlen(known->key) + 1;
    bool enabled = strcmp(name, "enabled") == 0, off = is_off(w->json->node[node].item);
    Suggestion near;
    if (enabled && off && !is_unbuilt_section(known)) return;
    if (known->kind == KNOWN_DEEP_SWITCH) {
        const char *last = strrchr(name, '.');
        bool named = strcmp(last ? last + 1 : name, "enabled") == 0 && !off;
        if (named || enables(w->json->node[node].item)) refuse_present(w, node, path, known);
    } else if (enabled && is_switch(known))
        refuse_enabled(w, node, known);
    else if (!enabled && !is_unbuilt_section(known) &&
             (suggest_is_near(name, "enabled") || suggest_sibling(path, NULL, &near)))
        load_error(w->load, walk_key(w, node), path, "unknown key; did you mean \"%s\"?",
                   suggest_is_near(name, "enabled") ? "enabled" : near.key);
    else if (known->kind == KNOWN_ON_SWITCH || is_unbuilt_section(known))
        refuse_present(w, node, path, known);
    else
        notice_ignored(w, node, path, known);
}

/* Returns whether this value of an alias is ignored, as if the alias were absent. */
static bool says_nothing(const KnownKey *known, const cJSON *value)
{
    return known->kind == KNOWN_ALIAS && value != NULL && known_is_inert(known, value);
}

/* Returns whether the key was given by a --set (if `sets`) or in the file (if not). A --set with
 * null does not count: it only undoes what was given before. */
static bool is_given_by(const Seen *seen, bool sets)
{
    return sets ? seen->place.set > 0 && !cJSON_IsNull(seen->value) : seen->place.line > 0;
}

/* Returns whether the key `known` with the value `here` means the same as its other name with the
 * value `there`. */
static bool same_meaning(const KnownKey *known, const cJSON *here, const cJSON *there)
{
    if (known->means == NULL || !cJSON_IsTrue(here))
        return cJSON_Compare(here, there, true) != known->negated;
    char *text = cJSON_PrintUnformatted(there);
    bool same = strcmp(text, known->means) == 0;
    cJSON_free(text);
    return same;
}

/* Reports two names of one key with different values: row `i` of the known keys, and the name
 * `other`, which is given at `there`. A --set replaces the file's value under any name, so a name
 * in the file never contradicts one in a --set. */
static void check_names(Load *load, bool sets, int i, const Seen *there, const char *other)
{
    const KnownKey *known = &known_table[i];
    const Seen *here = &load->seen[option_count + i];
    char where[PATH_SIZE];
    if (!is_given_by(here, sets) || !is_given_by(there, sets)) return;
    int by_user = load->n_sets - load->context.own_sets;
    if (here->place.set > by_user || there->place.set > by_user) return;
    if (says_nothing(known, here->value) || same_meaning(known, here->value, there->value)) return;
    if (sets)
        snprintf(where, sizeof where, "by --set %.200s", load->sets[there->place.set - 1]);
    else
        snprintf(where, sizeof where, "at %.200s:%d:%d", load->path, there->place.line,
                 there->place.column);
    load_error(load, here->place, known->key,
               "another name of %s, which is given %s; keep one of them", other, where);
    if (!sets) load_remedy(load, "%s=null", known->key);
}

void check_other_names(Load *load, bool sets)
{
    for (int i = 0; i < known_count; i++) {
        const char *key = known_table[i].stands_for;
        if (known_table[i].kind == KNOWN_SHORT || key == NULL) continue;
        int row = option_find(key);
        check_names(load, sets, i, &load->seen[row >= 0 ? row : option_count + known_find(key)],
                    key);
        /* Two aliases of one key contradict each other even if the key itself is not given. */
        for (int j = 0; j < i; j++) {
            const KnownKey *other = &known_table[j];
            if (other->stands_for == NULL || other->kind == KNOWN_SHORT) continue;
            const Seen *there = &load->seen[option_count + j];
            if (strcmp(other->stands_for, key) == 0 && is_given_by(there, sets) &&
                !says_nothing(other, there->value))
                check_names(load, sets, i, there, other->key);
        }
    }
}
