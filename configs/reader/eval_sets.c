/* eval_sets.c -- see eval_sets.h. */
#include "configs/reader/eval_sets.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

static const char key[] = "eval.sets";
static const char example[] = "{\"code\": {\"text\": \"code.txt\"}, \"news\": {\"shards\": "
                              "\"news_*.bin\"}}";

void eval_sets_free(EvalSets *sets)
{
    for (int i = 0; i < sets->count; i++) {
        free(sets->item[i].name);
        string_list_free(&sets->item[i].text);
        string_list_free(&sets->item[i].shards);
    }
    free(sets->item);
    *sets = (EvalSets){0};
}

/* Returns whether the text can be the name of a set. Names are used in console lines, in
 * TensorBoard's tags and in names of folders. */
static bool is_name(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t n = strlen(name);
    return n >= 1 && n <= EVAL_SET_NAME_MOST && strspn(name, letters) == n;
}

/* Reads a string or a list of strings. Returns false if it is neither, or if a string is empty. */
static bool read_strings(const cJSON *item, StringList *out)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : item;
    for (const cJSON *x = first; x != NULL; x = cJSON_IsArray(item) ? x->next : NULL) {
        if (!cJSON_IsString(x) || x->valuestring[0] == '\0') return false;
        string_list_add(out, x->valuestring);
    }
    return out->count > 0;
}

/* Reads {"text": ...} or {"shards": ...}. Returns false if it is neither. */
static bool read_source(const cJSON *item, EvalSet *set)
{
    const cJSON *source = cJSON_IsObject(item) ? item->child : NULL;
    if (source == NULL || source->next != NULL) return false;
    if (strcmp(source->string, "text") == 0) return read_strings(source, &set->text);
    return strcmp(source->string, "shards") == 0 && read_strings(source, &set->shards);
}

static bool refuse(Load *load, ConfigPlace at, const char *what)
{
    load_error(load, at, key, "%s; write an object of sets by name, such as %s", what, example);
    load_remedy(load, "%s=null", key);
    return false;
}

static bool is_paths(const cJSON *item)
{
    StringList paths = {0};
    bool good = !cJSON_IsObject(item) && item->string[0] != '_' && read_strings(item, &paths);
    string_list_free(&paths);
    return good;
}

/* Returns the set `first` and, if `all`, the sets after it, as JSON text. A set given as paths
 * alone is written as {"text": PATHS}. The caller frees the text. */
static char *with_texts(const cJSON *first, bool all)
{
    cJSON *sets = cJSON_CreateObject();
    for (const cJSON *x = first; x != NULL; x = all ? x->next : NULL) {
        cJSON *set = cJSON_Duplicate(x, true), *text = is_paths(x) ? cJSON_CreateObject() : NULL;
        if (text) cJSON_AddItemToObject(text, "text", set);
        cJSON_AddItemToObject(sets, x->string, text ? text : set);
    }
    char *out = cJSON_PrintUnformatted(sets);
    cJSON_Delete(sets);
    return out;
}

/* Refuses a set that is neither {"text": ...} nor {"shards": ...}. Paths alone, as in {"NAME":
 * "FILE"}, most likely name a text. */
static bool refuse_source(Load *load, ConfigPlace at, const cJSON *object, const cJSON *item)
{
    char what[200];
    snprintf(what, sizeof what, "%s is neither a text nor shards", item->string);
    if (!is_paths(item)) return refuse(load, at, what);
    char *set = with_texts(item, false), *sets = with_texts(object->child, true);
    load_error(load, at, key, "%s; write %s, or \"shards\" for token files", what, set);
    load_remedy(load, "%s=%s", key, sets);
    cJSON_free(set);
    cJSON_free(sets);
    return false;
}

bool eval_sets_assign(Load *load, const Json *json, int node, ConfigPlace at, EvalSets *sets)
{
    const JsonNode *object = &json->node[node];
    char what[200];
    EvalSets read = {0};
    snprintf(what, sizeof what, "%s does not fit", json_kind(object->item));
    bool good = cJSON_IsObject(object->item) || refuse(load, at, what);
    for (int i = node + 1; good && i < object->end; i = json->node[i].end) {
        const cJSON *item = json->node[i].item;
        if (item->string[0] == '_') continue;
        if (!is_name(item->string)) {
            snprintf(what, sizeof what,
                     "\"%.60s\" is no name of a set: it has letters, digits, - and _, at most %d",
                     item->string, (int)EVAL_SET_NAME_MOST);
            good = refuse(load, at, what);
        } else if (read.count == EVAL_SETS_MOST) {
            snprintf(what, sizeof what, "more than %d sets", (int)EVAL_SETS_MOST);
            good = refuse(load, at, what);
        } else {
            read.item = must_realloc(read.item, (size_t)(read.count + 1) * sizeof *read.item);
            read.item[read.count] = (EvalSet){.name = must_strdup(item->string)};
            good = read_source(item, &read.item[read.count++]) ||
                   refuse_source(load, at, object->item, item);
        }
    }
    if (!good) {
        eval_sets_free(&read);
        return false;
    }
    eval_sets_free(sets);
    *sets = read;
    return true;
}

bool eval_sets_refuse_part(Load *load, ConfigPlace at, const char *path)
{
    size_t n = strlen(key);
    if (strncmp(path, key, n) != 0 || path[n] != '.') return false;
    load_error(load, at, path, "a part of %s, which is given as a whole, such as %s", key, example);
    return true;
}

static void print_strings(FILE *to, const char *name, const StringList *list)
{
    fprintf(to, "{\"%s\": [", name);
    for (int i = 0; i < list->count; i++) {
        fputs(i ? ", " : "", to);
        json_print_string(to, list->item[i]);
    }
    fputs("]}", to);
}

char *eval_sets_text(const EvalSets *sets)
{
    char *text;
    size_t size;
    if (sets->count == 0) return must_strdup("null");
    FILE *to = text_stream(&text, &size);
    for (int i = 0; i < sets->count; i++) {
        const EvalSet *set = &sets->item[i];
        fprintf(to, "%s\"%s\": ", i ? ", " : "{", set->name);
        if (set->text.count > 0)
            print_strings(to, "text", &set->text);
        else
            print_strings(to, "shards", &set->shards);
    }
    fputs("}", to);
    fclose(to);
    return text;
}
