/* options.c -- looks up rows of the option table, reads their fields and describes the values they
 * accept; see options.h. */
#include "configs/reader/options.h"

#include "configs/reader/eval_sets.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int option_find(const char *key)
{
    for (int i = 0; i < option_count; i++)
        if (strcmp(option_table[i].key, key) == 0) return i;
    return -1;
}

int known_find(const char *key)
{
    for (int i = 0; i < known_count; i++)
        if (strcmp(known_table[i].key, key) == 0) return i;
    return -1;
}

static bool is_below(const char *key, const char *section, size_t n)
{
    return strncmp(key, section, n) == 0 && key[n] == '.';
}

bool option_is_section(const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < option_count; i++)
        if (is_below(option_table[i].key, key, n)) return true;
    for (int i = 0; i < known_count; i++)
        if (is_below(known_table[i].key, key, n)) return true;
    return false;
}

bool option_among(const char *list, const char *value)
{
    size_t n = strlen(value);
    /* Values are matched together with the bars on both sides, so that no value matches a part of
     * another. */
    for (const char *at = strchr(list, '|'); at != NULL && at[1] != '\0'; at = strchr(at + 1, '|'))
        if (strncmp(at + 1, value, n) == 0 && at[1 + n] == '|') return true;
    return false;
}

int option_first(const char *list)
{
    return (int)strcspn(list + 1, "|");
}

bool known_is_inert(const KnownKey *known, const cJSON *value)
{
    char *text = cJSON_PrintUnformatted(value);
    bool inert = known->inert != NULL && option_among(known->inert, text);
    cJSON_free(text);
    return inert || (known->positive_only && cJSON_IsNumber(value) && value->valuedouble < 0);
}

const char *known_example(const KnownKey *known)
{
    return known->inert != NULL ? known->inert + 1 : known->example ? known->example : "{}";
}

const char *option_choice_name(const Option *option, int value)
{
    for (const Choice *c = option->choices; c->name != NULL; c++)
        if (c->value == value) return c->name;
    return "?";
}

const char *option_type_key(const Option *option)
{
    static const char *const section[][2] = {{"optimizer", "optimizer.type"},
                                             {"model.rope_scaling", "model.rope_scaling.type"}};
    for (size_t i = 0; i < sizeof section / sizeof *section; i++)
        if (is_below(option->key, section[i][0], strlen(section[i][0]))) return section[i][1];
    return "scheduler.type";
}

int option_type(const Option *option, const Config *config)
{
    return *(const int *)option_field(&option_table[option_find(option_type_key(option))], config);
}

bool option_applies(const Option *option, const Config *config)
{
    return option->types == 0 || (option->types >> option_type(option, config) & 1u) != 0;
}

void *option_field(const Option *option, const Config *config)
{
    return (char *)(uintptr_t)config + option->offset;
}

static char *string_text(const char *text)
{
    if (text == NULL) return must_strdup("null");
    size_t n = 6 * strlen(text) + 16; /* each byte may become \u00XX */
    char *out = must_alloc(n);
    return json_quote(out, n, text);
}

static char *strings_text(const StringList *list)
{
    if (list->count == 0) return must_strdup("null");
    char *all = must_strdup("[");
    for (int i = 0; i < list->count; i++) {
        char *one = string_text(list->item[i]);
        char *more = text_format("%s%s%s", all, i ? ", " : "", one);
        free(all);
        free(one);
        all = more;
    }
    char *out = text_format("%s]", all);
    free(all);
    return out;
}

static char *integers_text(const IntegerList *list)
{
    if (list->count == 0) return must_strdup("null");
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    for (int i = 0; i < list->count; i++)
        fprintf(to, "%s%lld", i ? ", " : "[", (long long)list->item[i]);
    fprintf(to, "]");
    fclose(to);
    return text;
}

/* Returns whether the field's value means "not known": a number below the range, or no choice. */
static bool is_unknown(const Option *option, const void *field)
{
    if (option->fallback != NULL) return false;
    if (option->type == OPTION_INT) return *(const int64_t *)field < option->min;
    if (option->type == OPTION_CHOICE)
        return strcmp(option_choice_name(option, *(const int *)field), "?") == 0;
    return option->type == OPTION_NUMBER && *(const double *)field < option->min;
}

char *option_text(const Option *option, const Config *config)
{
    const void *field = option_field(option, config);
    char a[40], b[40];
    if (is_unknown(option, field)) return must_strdup("null");
    switch (option->type) {
    case OPTION_BOOL: return must_strdup(*(const bool *)field ? "true" : "false");
    case OPTION_INT: return text_format("%lld", (long long)*(const int64_t *)field);
    case OPTION_NUMBER: json_number(*(const double *)field, a, sizeof a); return must_strdup(a);
    case OPTION_BETAS:
        json_number(((const double *)field)[0], a, sizeof a);
        json_number(((const double *)field)[1], b, sizeof b);
        return text_format("[%s, %s]", a, b);
    case OPTION_STRING: return string_text(*(char *const *)field);
    case OPTION_STRINGS: return strings_text(field);
    case OPTION_INTEGERS: return integers_text(field);
    case OPTION_CHOICE: return string_text(option_choice_name(option, *(const int *)field));
    case OPTION_SETS: return eval_sets_text(field);
    }
    return must_strdup("null");
}

bool option_hides_limit(const Option *option)
{
    return option->max >= 1e6 && option->max <= 1e12;
}

static void number_expects(const Option *option, const char *what, char *out, size_t n)
{
    char low[40], high[40];
    /* Print integers without an exponent, however large they are. */
    bool whole = option->type == OPTION_INT || option->type == OPTION_INTEGERS;
    snprintf(low, sizeof low, "%.0f", option->min);
    snprintf(high, sizeof high, "%.0f", option->max);
    if (!whole) json_number(option->min, low, sizeof low);
    if (!whole) json_number(option->max, high, sizeof high);
    bool above = option->flags & OPTION_ABOVE, below = option->flags & OPTION_BELOW;
    if (option_hides_limit(option))
        snprintf(out, n, "%s %s %s", what, above ? "above" : "of at least", low);
    else
        snprintf(out, n, "%s %s %s %s %s", what, above ? "above" : "from", low,
                 below ? "to below" : "to", high);
}

void option_expects(const Option *option, char *out, size_t n)
{
    size_t at = 0;
    switch (option->type) {
    case OPTION_BOOL: snprintf(out, n, "true or false"); break;
    case OPTION_INT: number_expects(option, "an integer", out, n); break;
    case OPTION_NUMBER: number_expects(option, "a number", out, n); break;
    case OPTION_BETAS: number_expects(option, "a list of two numbers", out, n); break;
    case OPTION_STRING: snprintf(out, n, "a string"); break;
    case OPTION_STRINGS: snprintf(out, n, "a string or a list of strings"); break;
    case OPTION_INTEGERS: number_expects(option, "a list of integers, each", out, n); break;
    case OPTION_SETS: snprintf(out, n, "an object of sets by name"); break;
    /* List only implemented values; a known value that is not implemented gets an error of its
     * own. */
    case OPTION_CHOICE:
        at = (size_t)snprintf(out, n, "one of");
        for (const Choice *c = option->choices; c->name != NULL && at < n; c++)
            if (c->value >= 0)
                at += (size_t)snprintf(out + at, n - at, "%s \"%s\"",
                                       c == option->choices ? "" : ",", c->name);
        break;
    }
}
