/* print.c -- prints a Config as JSON with the origin of each value, prints the help of each key,
 * and lists the keys in which two Configs differ. */
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of the sections that two keys have in common, including the last dot. */
static size_t common_sections(const char *a, const char *b)
{
    size_t same = 0;
    for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
        if (a[i] == '.') same = i + 1;
    return same;
}

/* Returns the number of sections in the first n bytes of a key. */
static int depth_of(const char *key, size_t n)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++)
        depth += key[i] == '.';
    return depth;
}

/* Closes the sections of key `last` that `key` is not in and opens the new ones; returns the
 * indentation for `key`. */
static int change_section(const char *last, const char *key, FILE *to)
{
    size_t same = common_sections(last, key);
    for (int d = depth_of(last, strlen(last)); d > depth_of(key, same); d--)
        fprintf(to, "%*s},\n", 2 * d, "");
    /* A config may have trailing commas, so no line depends on whether another one follows. */
    int d = depth_of(key, same) + 1;
    for (const char *dot = strchr(key + same, '.'); dot != NULL; dot = strchr(key + same, '.')) {
        fprintf(to, "%*s\"%.*s\": {\n", 2 * d++, "", (int)(dot - key - (long)same), key + same);
        same = (size_t)(dot - key) + 1;
    }
    return 2 * d;
}

/* Returns the key without its sections. */
static const char *leaf_of(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Returns whether the value is printed only as a comment. That is so if it was derived from other
 * keys and must be derived again when they change, such as the schedule's lengths from
 * train_steps. */
static bool is_shown_only(const Option *option, const Origin *origin)
{
    bool follows = option->flags & OPTION_FOLLOWS || strncmp(option->key, "scheduler.", 10) == 0;
    return origin->kind == ORIGIN_DERIVED && follows && !origin->automatic;
}

/* Prints one line: the key, its value and the value's origin. A value derived from "auto" is
 * printed as "auto", with the value in the comment. */
static void print_value(const Option *option, const Config *config, int indent, FILE *to)
{
    const Origin *origin = (const Origin *)config->provenance + (option - option_table);
    char *value = option_text(option, config);
    bool automatic =
        origin->kind == ORIGIN_DERIVED && origin->automatic && option->flags & OPTION_FOLLOWS;
    int width =
        fprintf(to, "%*s%s\"%s\": %s,", indent, "", is_shown_only(option, origin) ? "// " : "",
                leaf_of(option->key), automatic ? "\"auto\"" : value);
    fprintf(to, "%*s // %s%s%s\n", width < 56 ? 56 - width : 0, "", origin->text,
            automatic ? ": " : "", automatic ? value : "");
    free(value);
}

void config_print(const Config *config, FILE *to)
{
    const char *last = "";
    fprintf(to, "{\n");
    /* Tells a reader how many ranks this run had. Keys that begin with "_" are comments. */
    if (config->world > 0) fprintf(to, "  \"_world\": %lld,\n", (long long)config->world);
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        /* The params of another optimizer or scheduler would be refused when the text is read
         * again. */
        if (!option_applies(option, config)) continue;
        print_value(option, config, change_section(last, option->key, to), to);
        last = option->key;
    }
    change_section(last, "", to);
    fprintf(to, "}\n");
}

char *config_text(const Config *config)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    config_print(config, to);
    fclose(to);
    return text;
}

void config_print_defaults(FILE *to)
{
    const char *last = "";
    fprintf(to, "// Every key with its default. Lines behind // depend on optimizer.type and "
                "scheduler.type.\n{\n");
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        int indent = change_section(last, option->key, to);
        int width = fprintf(to, "%*s%s\"%s\": %s,", indent, "", option->types ? "// " : "",
                            leaf_of(option->key), option->fallback ? option->fallback : "null");
        fprintf(to, "%*s // ", width < 48 ? 48 - width : 0, "");
        if (option->derived != NULL) fprintf(to, "default: %s; ", option->derived);
        fprintf(to, "%s\n", option->help);
        last = option->key;
    }
    change_section(last, "", to);
    fprintf(to, "}\n");
}

/* Returns how `config explain` describes the effect on a resumed run. */
static const char *effect_sentence(ConfigEffect effect)
{
    static const char *const sentence[] = {
        [EFFECT_NONE] = "may change when a run is resumed",
        [EFFECT_ROUNDING] = "may change when a run is resumed; results differ by rounding",
        [EFFECT_NUMBERS] = "changes the numbers of a resumed run",
        [EFFECT_IMPOSSIBLE] = "cannot change when a run is resumed",
    };
    return sentence[effect];
}

static void explain_option(const Option *option, FILE *to)
{
    char expects[512];
    option_expects(option, expects, sizeof expects);
    fprintf(to, "%s\n    %s\n    takes    %s%s\n", option->key, option->help, expects,
            option->flags & OPTION_AUTO ? ", or \"auto\"" : "");
    fprintf(to, "    default  %s\n", option->derived ? option->derived : option->fallback);
    /* The list above omits known values that are not implemented, so print them here. */
    for (const Choice *c = option->choices; c != NULL && c->name != NULL; c++)
        if (c->value < 0) fprintf(to, "    known, not built yet: \"%s\"\n", c->name);
    if (option->built != NULL)
        fprintf(to, "    built so far: %.*s\n", option_first(option->built), option->built + 1);
    fprintf(to, "    resume   %s\n", effect_sentence(option->effect));
}

static void explain_known(const KnownKey *known, FILE *to)
{
    static const char *const verdict[] = {
        [KNOWN_IGNORED] = "accepted, without effect here",
        [KNOWN_QUIET] = "accepted, without effect here",
        [KNOWN_UNBUILT] = "not built yet",
        [KNOWN_SWITCH] = "not built yet; passes as long as its \"enabled\" is false",
        [KNOWN_ON_SWITCH] = "not built yet; passes when its \"enabled\" is false",
        [KNOWN_TOOL] = "accepted, without effect here",
        [KNOWN_DEEP_SWITCH] = "not built yet; passes as long as every \"enabled\" in it is false",
        [KNOWN_SHORT] = "read",
        [KNOWN_ALIAS] = "read",
        [KNOWN_TREE] = "accepted, without effect here",
        [KNOWN_WRONG] = "refused",
    };
    fprintf(to, "%s\n    a key of DeepSpeed's: %s (%s)\n", known->key, verdict[known->kind],
            known_why(known));
    if (known->kind == KNOWN_UNBUILT && known->inert != NULL)
        fprintf(to, "    passes   %.*s\n", option_first(known->inert), known->inert + 1);
}

bool config_explain(const char *key, FILE *to, char *suggestion, size_t n)
{
    size_t length = strlen(key);
    int found = 0;
    /* A section explains every key in it, this program's own keys first. */
    for (int i = 0; i < option_count + known_count; i++) {
        const char *other =
            i < option_count ? option_table[i].key : known_table[i - option_count].key;
        bool below =
            strncmp(other, key, length) == 0 && (other[length] == '.' || other[length] == '\0');
        if (!below) continue;
        found++;
        if (i < option_count)
            explain_option(&option_table[i], to);
        else
            explain_known(&known_table[i - option_count], to);
    }
    if (n > 0) suggestion[0] = '\0';
    if (found == 0) suggest_path(key, suggestion, n);
    return found > 0;
}

/* Returns whether the two configs give the same number of steps, one as a ratio and one as a
 * number. */
static bool comes_to_the_same(const Option *option, const Config *was, const Config *now)
{
    if (option->settles == NULL) return false;
    /* A run that was started with a ratio may be resumed with the steps written out, or the
     * reverse. */
    const Option *steps = &option_table[option_find(option->settles)];
    char *a = option_text(steps, was), *b = option_text(steps, now);
    bool same = option_applies(steps, was) && option_applies(steps, now) && strcmp(a, b) == 0;
    free(a);
    free(b);
    return same;
}

int config_diff(const Config *was, const Config *now, ConfigDifference **out)
{
    int n = 0;
    *out = must_calloc((size_t)option_count, sizeof **out);
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        /* Skip keys that neither config's optimizer or scheduler reads. */
        if (!option_applies(option, was) && !option_applies(option, now)) continue;
        char *a = option_text(option, was), *b = option_text(option, now);
        if (strcmp(a, b) != 0 && !comes_to_the_same(option, was, now)) {
            const Origin *origin = (const Origin *)now->provenance + i;
            (*out)[n++] = (ConfigDifference){.key = option->key,
                                             .effect = option->effect,
                                             .derived = origin->kind == ORIGIN_DERIVED,
                                             .was = a,
                                             .now = b};
            continue;
        }
        free(a);
        free(b);
    }
    return n;
}

void config_diff_free(ConfigDifference *differences, int n)
{
    for (int i = 0; i < n; i++) {
        free(differences[i].was);
        free(differences[i].now);
    }
    free(differences);
}
