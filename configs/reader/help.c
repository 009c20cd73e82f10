/* help.c -- prints the help of each key, every key with its default, and an index of keys. */
#include "configs/reader/options.h"
#include "configs/reader/print.h"
#include "model/core/check.h"
#include "model/core/terminal.h"
#include "model/core/text_wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void config_print_defaults(FILE *to)
{
    Printer p = {.to = to, .last = ""};
    fprintf(to,
            "// Every key with its default. Lines after // depend on the type that their section "
            "has.\n{\n");
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        int indent = print_section(&p, option->key);
        int width = fprintf(to, "%*s%s\"%s\": %s,", indent, "", option->types ? "// " : "",
                            print_leaf(option->key), option->fallback ? option->fallback : "null");
        fprintf(to, "%*s // ", width < 48 ? 48 - width : 0, "");
        if (option->derived != NULL) fprintf(to, "default: %s; ", option->derived);
        fprintf(to, "%s\n", option->help);
    }
    print_end(&p);
}

/* Returns the length of the key's section: the part before the first dot; 0 if it has none. */
static size_t section_of(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot ? (size_t)(dot - key) : 0;
}

/* Returns whether both keys are in the same section, or both in none. */
static bool same_section(const char *a, const char *b)
{
    size_t n = section_of(a);
    return section_of(b) == n && strncmp(a, b, n) == 0;
}

/* Prints one line about the section of option `first`: its name, the number of its keys, and as
 * many of their names as fit. Keys without a section are printed in full, because no other command
 * lists them. */
static void print_index_of(int first, FILE *to)
{
    enum { COLUMN = 35 };
    const char *section = option_table[first].key;
    size_t length = section_of(section), size;
    int n = 0;
    char *names;
    FILE *list = text_stream(&names, &size);
    for (int i = first; i < option_count; i++) {
        const char *key = option_table[i].key;
        if (!same_section(section, key)) continue;
        fprintf(list, "%s%s", n++ > 0 ? ", " : "", length > 0 ? key + length + 1 : key);
    }
    fclose(list);
    /* Four columns are kept free for " ...", which follows a list that does not fit. */
    char *lines = text_wrap(names, COLUMN + (length > 0 ? 4 : 0), COLUMN, WRAP_PROSE),
         *end = length > 0 ? strchr(lines, '\n') : NULL;
    if (end != NULL) *end = '\0';
    fprintf(to, "%-25.*s%3d key%s  %s%s\n", length > 0 ? (int)length : 12,
            length > 0 ? section : "(no section)", n, n == 1 ? " " : "s", lines,
            end != NULL ? " ..." : "");
    free(lines);
    free(names);
}

void config_print_index(FILE *to)
{
    for (int i = 0; i < option_count; i++) {
        int first = 0;
        while (!same_section(option_table[first].key, option_table[i].key))
            first++;
        if (first == i) print_index_of(i, to);
    }
    fprintf(to, "\n./train config explain SECTION (or KEY) says what the keys mean,\n"
                "./train config defaults --all prints every key with its default, as a config\n");
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
    enum { COLUMN = 13 };
    char expects[512];
    option_expects(option, expects, sizeof expects);
    fprintf(to, "%s\n", option->key);
    terminal_print(to, 4, "    %s", option->help);
    terminal_print(to, COLUMN, "    takes    %s%s", expects,
                   option->flags & OPTION_AUTO ? ", or \"auto\"" : "");
    terminal_print(to, COLUMN, "    default  %s",
                   option->derived ? option->derived : option->fallback);
    /* The list above omits known values that are not implemented, so print them here. */
    for (const Choice *c = option->choices; c != NULL && c->name != NULL; c++)
        if (c->value < 0) fprintf(to, "    known, not built yet: \"%s\"\n", c->name);
    if (option->built != NULL)
        terminal_print(to, 4, "    built so far: %.*s", option_first(option->built),
                       option->built + 1);
    terminal_print(to, COLUMN, "    resume   %s%s", effect_sentence(option->effect),
                   option->flags & OPTION_STATE ? ", and cannot change from or to 0" : "");
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
    fprintf(to, "%s\n", known->key);
    terminal_print(to, 4, "    a key of DeepSpeed's: %s (%s)", verdict[known->kind],
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
