/* value.c -- checks one JSON value against its row of the option table and stores it in the
 * Config's field; see options.h. */
#include "configs/reader/eval_sets.h"
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A JSON value that is being assigned to an option's field. */
typedef struct {
    Load *load;
    const Json *json;
    int node;
    const Option *option;
    ConfigPlace at;
} Assign;

/* Writes the value as the user wrote it, shortened for a message. */
static char *shown(const Assign *a, char out[72])
{
    const cJSON *item = a->json->node[a->node].item;
    if (cJSON_IsString(item)) return json_quote(out, 64, item->valuestring);
    if (cJSON_IsNumber(item)) { /* quote the text of the file, not a double printed again */
        const char *text = a->json->text + a->json->node[a->node].value_at;
        snprintf(out, 72, "%.*s", (int)strspn(text, "0123456789+-.eE"), text);
        return out;
    }
    /* A short list is quoted. A long list or an object is only named by its type. */
    char *list = cJSON_IsArray(item) ? cJSON_PrintUnformatted(item) : NULL;
    snprintf(out, 72, "%s", list && strlen(list) < 60 ? list : json_kind(item));
    cJSON_free(list);
    return out;
}

/* Adds the remedy for a value that does not fit: the value that was probably meant; or the default,
 * if the key is a flag, if its value was left to a trainer ("auto"), or if it does not affect
 * results. */
static void mend_value(const Assign *a)
{
    const cJSON *item = a->json->node[a->node].item;
    const char *key = a->option->key, *text = cJSON_GetStringValue(item);
    bool number = a->option->type == OPTION_INT || a->option->type == OPTION_NUMBER,
         flag = a->option->type == OPTION_BOOL;
    char *end = NULL;
    if (text != NULL && number) strtod(text, &end);
    if (end != NULL && end != text && *end == '\0')
        load_remedy(a->load, "%s=%s", key, text);
    else if (flag && text != NULL && strcasecmp(text, "true") == 0)
        load_remedy(a->load, "%s=true", key);
    else if (flag && cJSON_IsNumber(item))
        load_remedy(a->load, "%s=%s", key, item->valuedouble != 0 ? "true" : "false");
    else if (flag || a->option->effect == EFFECT_NONE ||
             (text != NULL && strcmp(text, "auto") == 0))
        load_remedy(a->load, "%s=null", key);
}

/* Reports that the key does not accept this value, and what to write instead. Returns false. */
static bool refuse(const Assign *a)
{
    const cJSON *item = a->json->node[a->node].item;
    char given[72], expects[512];
    option_expects(a->option, expects, sizeof expects);
    const char *remark = "";
    char limit[64];
    bool number = a->option->type == OPTION_INT || a->option->type == OPTION_NUMBER;
    /* Files for Hugging Face's trainer use "auto" for values that the trainer fills in. */
    if (cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0)
        remark = ", since no trainer fills it in here";
    else if (cJSON_IsString(item) && (number || a->option->type == OPTION_BOOL))
        remark = " without quotes";
    /* Messages usually omit this upper limit, but the value exceeds it, so name it. */
    if (cJSON_IsNumber(item) && item->valuedouble > a->option->max &&
        option_hides_limit(a->option)) {
        if (a->option->type == OPTION_INT)
            snprintf(limit, sizeof limit, " and at most %.0f", a->option->max);
        else
            snprintf(limit, sizeof limit, " and at most %g", a->option->max);
        remark = limit;
    }
    load_error(a->load, a->at, a->option->key, "%s does not fit; write %s%s", shown(a, given),
               expects, remark);
    mend_value(a);
    return false;
}

static bool in_range(const Option *option, double x)
{
    bool low = option->flags & OPTION_ABOVE ? x > option->min : x >= option->min;
    bool high = option->flags & OPTION_BELOW ? x < option->max : x <= option->max;
    return low && high;
}

/* One setter per type. Each returns false, reports an error and leaves the field unchanged if the
 * value is not valid. */
static bool set_integer(const Assign *a, int64_t *field)
{
    const cJSON *item = a->json->node[a->node].item;
    int64_t x;
    if (cJSON_IsBool(item) && a->option->flags & OPTION_BOOL_INT) x = cJSON_IsTrue(item);
    /* This must come before json_integer, which refuses the largest integer that DeepSpeed writes,
     * because no double holds it exactly. */
    else if (a->option->flags & OPTION_CLAMPED && cJSON_IsNumber(item) &&
             item->valuedouble > a->option->max)
        x = (int64_t)a->option->max;
    else if (!json_integer(a->json, a->node, &x))
        return refuse(a);
    if (!in_range(a->option, (double)x)) return refuse(a);
    *field = x;
    return true;
}

static bool set_bool(const Assign *a, bool *field)
{
    const cJSON *item = a->json->node[a->node].item;
    bool quoted = a->option->flags & OPTION_QUOTED && cJSON_IsString(item), yes = false;
    if (quoted) yes = strcmp(item->valuestring, "true") == 0;
    if (quoted && !yes && strcmp(item->valuestring, "false") != 0) return refuse(a);
    if (!quoted && !cJSON_IsBool(item)) return refuse(a);
    *field = quoted ? yes : cJSON_IsTrue(item);
    return true;
}

static bool set_betas(const Assign *a, double *field)
{
    const cJSON *item = a->json->node[a->node].item;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return refuse(a);
    for (int i = 0; i < 2; i++) {
        const cJSON *x = cJSON_GetArrayItem(item, i);
        if (!cJSON_IsNumber(x) || !in_range(a->option, x->valuedouble)) return refuse(a);
        field[i] = x->valuedouble;
    }
    return true;
}

static bool set_integers(const Assign *a, IntegerList *field)
{
    const JsonNode *list = &a->json->node[a->node];
    int count = cJSON_IsArray(list->item) ? cJSON_GetArraySize(list->item) : 0;
    if (count == 0) return refuse(a);
    /* Parse into a new list, so that a bad number leaves the old list unchanged. */
    int64_t *item = must_calloc((size_t)count + 1, sizeof *item);
    int n = 0;
    for (int i = a->node + 1; i < list->end; i = a->json->node[i].end, n++)
        if (!json_integer(a->json, i, &item[n]) || !in_range(a->option, (double)item[n])) break;
    if (n < count) {
        free(item);
        return refuse(a);
    }
    free(field->item);
    *field = (IntegerList){.count = count, .item = item};
    return true;
}

static bool set_strings(const Assign *a, StringList *field)
{
    const cJSON *item = a->json->node[a->node].item, *first = item;
    int count = 1;
    if (cJSON_IsArray(item)) {
        count = cJSON_GetArraySize(item);
        first = item->child;
        if (count == 0) return refuse(a);
    }
    /* Check all strings before storing any. An empty path would name the folder itself. */
    for (const cJSON *x = first; x != NULL; x = cJSON_IsArray(item) ? x->next : NULL)
        if (!cJSON_IsString(x) || x->valuestring[0] == '\0') return refuse(a);
    string_list_free(field);
    for (const cJSON *x = first; field->count < count; x = x->next)
        string_list_add(field, x->valuestring);
    return true;
}

/* Returns whether the text is the choice's name. A name that ends with a colon matches any text
 * that begins with it. */
static bool is_choice(const Choice *choice, const char *text)
{
    size_t n = strlen(choice->name);
    if (choice->name[n - 1] == ':') return strncasecmp(choice->name, text, n) == 0;
    return (choice->any_case ? strcasecmp : strcmp)(choice->name, text) == 0;
}

/* Adds the remedy for a choice that is not implemented. 1-bit Adam and 0/1 Adam are replaced by
 * Adam, from which they differ only in the number of bits sent. A key that changes results by
 * rounding at most is reset to its default. In other cases, such as another optimizer, the user
 * must choose. */
static void mend_choice(const Assign *a, const char *text)
{
    bool adam = strcasecmp(text, "OneBitAdam") == 0 || strcasecmp(text, "ZeroOneAdam") == 0;
    if (adam)
        load_remedy(a->load, "%s=Adam", a->option->key);
    else if (a->option->effect < EFFECT_NUMBERS)
        load_remedy(a->load, "%s=null", a->option->key);
}

static bool set_choice(const Assign *a, int *field)
{
    const cJSON *item = a->json->node[a->node].item;
    if (!cJSON_IsString(item)) return refuse(a);
    const char *text = item->valuestring;
    for (const Choice *c = a->option->choices; c->name != NULL; c++) {
        if (!is_choice(c, text)) continue;
        if (c->value >= 0) {
            *field = c->value;
            return true;
        }
        char expects[512], given[72];
        option_expects(a->option, expects, sizeof expects);
        load_error(a->load, a->at, a->option->key, "%s is known, not built yet; write %s",
                   shown(a, given), expects);
        mend_choice(a, text);
        return false;
    }
    const char *near = suggest_choice(a->option->choices, text);
    if (near == NULL) return refuse(a);
    char given[72];
    load_error(a->load, a->at, a->option->key, "there is no %s; did you mean \"%s\"?",
               shown(a, given), near);
    load_remedy(a->load, "%s=%s", a->option->key, near);
    return false;
}

static bool set_field(const Assign *a)
{
    const cJSON *item = a->json->node[a->node].item;
    void *field = option_field(a->option, a->load->config);
    switch (a->option->type) {
    case OPTION_BOOL: return set_bool(a, field);
    case OPTION_INT: return set_integer(a, field);
    case OPTION_NUMBER:
        if (!cJSON_IsNumber(item) || !in_range(a->option, item->valuedouble)) return refuse(a);
        *(double *)field = item->valuedouble;
        return true;
    case OPTION_BETAS: return set_betas(a, field);
    case OPTION_STRING:
        if (!cJSON_IsString(item)) return refuse(a);
        free(*(char **)field);
        *(char **)field = must_strdup(item->valuestring);
        return true;
    case OPTION_STRINGS: return set_strings(a, field);
    case OPTION_INTEGERS: return set_integers(a, field);
    case OPTION_CHOICE: return set_choice(a, field);
    case OPTION_SETS: return eval_sets_assign(a->load, a->json, a->node, a->at, field);
    }
    return false;
}

/* Returns whether the value that was just stored is implemented; if not, reports an error. */
static bool is_built(const Assign *a)
{
    if (a->option->built == NULL) return true;
    char *value = option_text(a->option, a->load->config);
    bool built = option_among(a->option->built, value);
    if (!built) {
        load_error(a->load, a->at, a->option->key, "%s is known, not built yet; write %.*s", value,
                   option_first(a->option->built), a->option->built + 1);
        load_remedy(a->load, "%s=%.*s", a->option->key, option_first(a->option->built),
                    a->option->built + 1);
    }
    free(value);
    return built;
}

bool assign_field(Load *load, const Json *json, int node, int row, ConfigPlace at)
{
    Assign a = {load, json, node, &option_table[row], at};
    return set_field(&a);
}

void assign_value(Load *load, const Json *json, int node, int row, const char *alias,
                  ConfigPlace key_at, ConfigPlace value_at)
{
    Assign a = {load, json, node, &option_table[row], value_at};
    const cJSON *item = json->node[node].item;
    Origin *origin = &load->origin[row];
    /* If the option does not accept "auto", this word is refused like any other string. */
    bool automatic = (a.option->flags & OPTION_AUTO) != 0 && cJSON_IsString(item) &&
                     strcmp(item->valuestring, "auto") == 0;
    *origin = (Origin){.kind = key_at.set ? ORIGIN_SET : ORIGIN_FILE,
                       .place = key_at,
                       .automatic = automatic,
                       .alias = alias};
    bool null = cJSON_IsNull(item);
    /* null and "auto" reset the key to the value that it has if the file leaves it out. Its
     * position is kept for messages. */
    if (automatic || null) {
        if (null && key_at.set == 0 && a.option->fallback != NULL)
            load_notice(load, value_at, a.option->key, "null is read as the default, %s%s%s",
                        alias ? a.option->key : "", alias ? " " : "", a.option->fallback);
        load_default(load, row);
        origin->kind = ORIGIN_DEFAULT;
    } else {
        origin->wrong = !(set_field(&a) && is_built(&a));
    }
}
