/* args.c -- parses command lines by their tables, and runs the commands; see args.h. */
#include "model/core/args.h"

#include "model/core/check.h"
#include "model/core/nearest.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMMANDS = 32, ERROR_BYTES = 512 };

/* The state of parsing one command line. */
typedef struct {
    const ArgCommand *command;
    int argc, at; /* argv[at] is the last argument that was parsed */
    char **argv;
    char *values;
    uint64_t given; /* bit i is set if option i was given */
    int n_words;
    bool only_words; /* "--" was seen, so no more options follow */
    char error[ERROR_BYTES];
} CommandLine;

/* Result of parsing one argument or the whole line. LINE_SHOWN: an option such as --help has
 * printed something, and the command is not run. */
typedef enum { LINE_GOOD, LINE_SHOWN, LINE_WRONG } LineState;

static void show_help(const ArgCommand *command)
{
    args_print_help(stdout, command);
}

/* Every command has this option. */
static const ArgOption help_option = {
    .name = "--help", .short_name = "-h", .kind = ARG_SHOW, .show = show_help};

bool args_is_help(const char *argument)
{
    return strcmp(argument, help_option.name) == 0 || strcmp(argument, help_option.short_name) == 0;
}

/* ---- options --------------------------------------------------------------------------------- */

/* Returns whether the name, which may be NULL, is the first n bytes of the argument. */
static bool is_name(const char *name, const char *argument, size_t n)
{
    return name && strlen(name) == n && memcmp(name, argument, n) == 0;
}

static bool is_named(const ArgOption *o, const char *argument, size_t n)
{
    if (o->kind == ARG_ALSO) return false;
    return is_name(o->name, argument, n) || is_name(o->short_name, argument, n) ||
           is_name(o->also, argument, n);
}

/* Returns the option that is named by the first n bytes of the argument, or NULL. */
static const ArgOption *find_option(const ArgCommand *c, const char *argument, size_t n)
{
    for (int i = 0; i < c->n_options; i++)
        if (is_named(&c->options[i], argument, n)) return &c->options[i];
    return is_named(&help_option, argument, n) ? &help_option : NULL;
}

/* Writes the end of an error message, "see ./train eval --help", to buf and returns buf. */
static const char *see_help(const ArgCommand *c, char *buf, size_t n)
{
    snprintf(buf, n, "see %s%s", c->see ? c->see : c->call, c->see ? "" : " --help");
    return buf;
}

static LineState unknown_option(CommandLine *l, const char *argument, size_t n)
{
    const ArgCommand *c = l->command;
    char advice[128], end[256], name[EDIT_FAR + 1];
    snprintf(name, sizeof name, "%.*s", (int)n, argument);
    const char *near = nearest_name(name, c->options, (size_t)c->n_options, sizeof *c->options);
    if (near == NULL) near = nearest_name(name, &help_option, 1, sizeof help_option);
    error_set(l->error, sizeof l->error, "%.*s: %s has no such option%s", n > 80 ? 80 : (int)n,
              argument, c->call,
              did_you_mean(end, sizeof end, near, see_help(c, advice, sizeof advice)));
    return LINE_WRONG;
}

/* Returns the option's value: the text after '=' or the next argument. Returns NULL and sets
 * l->error if the value is missing. */
static const char *value_of(CommandLine *l, const ArgOption *o, const char *equals)
{
    char advice[128];
    if (equals) return equals + 1;
    const char *next = l->at + 1 < l->argc ? l->argv[l->at + 1] : NULL;
    if (next == NULL) {
        error_set(l->error, sizeof l->error, "%s: its value is missing; %s", o->name,
                  see_help(l->command, advice, sizeof advice));
        return NULL;
    }
    if (strncmp(next, "--", 2) == 0) {
        error_set(l->error, sizeof l->error,
                  "%s: its value is missing, an option follows: %.80s (%s=%.80s if that is the "
                  "value)",
                  o->name, next, o->name, next);
        return NULL;
    }
    l->at++;
    return next;
}

/* Reads a number and checks it against the option's bounds. Whole numbers may be written like
 * "1e3". They are limited to 2^53, because a double cannot represent every larger integer. */
static bool read_number(CommandLine *l, const ArgOption *o, const char *text, double *x)
{
    static const double exact = 9007199254740992.0; /* 2^53 */
    const char *whole = o->kind == ARG_INTEGER ? "whole " : "";
    char *end;
    *x = strtod(text, &end);
    bool number = end != text && *end == '\0' && !isnan(*x) &&
                  (o->kind == ARG_REAL || (fabs(*x) <= exact && *x == floor(*x)));
    bool bounded = o->least < o->most;
    if (number && (!bounded || (*x >= o->least && *x <= o->most))) return true;
    if (!bounded)
        return error_set(l->error, sizeof l->error, "%s: \"%.200s\" is not a %snumber", o->name,
                         text, whole);
    const char *more = number && *x > o->most && o->beyond ? o->beyond : "";
    return error_set(l->error, sizeof l->error, "%s %.200s: give a %snumber from %.10g to %.10g%s",
                     o->name, text, whole, o->least, o->most, more);
}

static bool is_setting(CommandLine *l, const ArgOption *o, const char *text)
{
    if (strchr(text, '=') != NULL && *text != '=') return true;
    return error_set(l->error, sizeof l->error,
                     "%s %.200s: this is not key=value; write for example %s "
                     "optimizer.params.lr=6e-4",
                     o->name, text, o->name);
}

/* Appends the text to a list. The list is allocated with room for every argument of the line. */
static void list_add(const CommandLine *l, ArgList *list, const char *text)
{
    if (list->item == NULL) list->item = must_calloc((size_t)l->argc, sizeof *list->item);
    list->item[list->count++] = text;
}

/* Parses the text and stores the value in the option's field. Returns false and sets l->error if
 * the value is not valid for this option. */
static bool store(CommandLine *l, const ArgOption *o, const char *text)
{
    void *field = l->values + o->at;
    double x;
    if ((o->kind == ARG_NAME || o->kind == ARG_NAMES) && *text == '\0')
        return error_set(l->error, sizeof l->error, "%s: its value is empty", o->name);
    switch (o->kind) {
    case ARG_FLAG: *(bool *)field = true; return true;
    case ARG_NAME:
    case ARG_TEXT: *(const char **)field = text; return true;
    case ARG_INTEGER:
        if (!read_number(l, o, text, &x)) return false;
        *(int64_t *)field = (int64_t)x;
        return true;
    case ARG_REAL: return read_number(l, o, text, field);
    case ARG_SETTINGS:
        if (!is_setting(l, o, text)) return false;
        list_add(l, field, text);
        return true;
    case ARG_NAMES: list_add(l, field, text); return true;
    case ARG_OWN: return o->parse(text, field, l->error, sizeof l->error);
    case ARG_SHOW:
    case ARG_ALSO: break;
    }
    return true;
}

static LineState take_option(CommandLine *l, const char *argument)
{
    const ArgCommand *c = l->command;
    const char *equals = strchr(argument, '='), *value = NULL;
    size_t n = equals ? (size_t)(equals - argument) : strlen(argument);
    const ArgOption *o = find_option(c, argument, n);
    if (o == NULL) return unknown_option(l, argument, n);
    bool plain = o->kind == ARG_FLAG || o->kind == ARG_SHOW;
    if (plain && equals) {
        error_set(l->error, sizeof l->error, "%.200s: %s takes no value", argument, o->name);
        return LINE_WRONG;
    }
    if (!plain && (value = value_of(l, o, equals)) == NULL) return LINE_WRONG;
    if (o->kind == ARG_SHOW) {
        o->show(c);
        return LINE_SHOWN;
    }
    l->given |= UINT64_C(1) << (o - c->options);
    return store(l, o, value) ? LINE_GOOD : LINE_WRONG;
}

/* ---- words (arguments that are not options) -------------------------------------------------- */

static LineState word_too_many(CommandLine *l, const char *word)
{
    const ArgCommand *c = l->command;
    const ArgWords *w = &c->words;
    char advice[128];
    if (w->most == 0 && c->n_options == 0)
        error_set(l->error, sizeof l->error, "%s takes no argument, not \"%s\"", c->call, word);
    else if (w->most == 0)
        error_set(l->error, sizeof l->error, "%s takes options only, not \"%s\"; %s", c->call, word,
                  see_help(c, advice, sizeof advice));
    else if (w->most == 1)
        error_set(l->error, sizeof l->error, "two %s, %s and %s: give one%s", w->plural,
                  *(const char **)(void *)(l->values + w->at), word, w->advice ? w->advice : "");
    else
        error_set(l->error, sizeof l->error, "%s: one word too many: %s", c->call, word);
    return LINE_WRONG;
}

static LineState take_word(CommandLine *l, const char *word)
{
    const ArgWords *w = &l->command->words;
    if (l->n_words >= w->most) return word_too_many(l, word);
    if (w->most == 1)
        *(const char **)(void *)(l->values + w->at) = word;
    else
        list_add(l, (ArgList *)(void *)(l->values + w->at), word);
    l->n_words++;
    return LINE_GOOD;
}

/* ---- the whole line -------------------------------------------------------------------------- */

static LineState take_argument(CommandLine *l)
{
    const char *argument = l->argv[l->at];
    bool hyphen = argument[0] == '-' && argument[1] != '\0';
    if (l->only_words || !hyphen) return take_word(l, argument);
    if (strcmp(argument, "--") != 0) return take_option(l, argument);
    l->only_words = true;
    return LINE_GOOD;
}

/* Checks at the end of the line that all required words and options were given. */
static LineState end_of_line(CommandLine *l)
{
    const ArgCommand *c = l->command;
    if (l->n_words < c->words.least) {
        error_set(l->error, sizeof l->error, "%s", c->words.missing);
        return LINE_WRONG;
    }
    for (int i = 0; i < c->n_options; i++) {
        const ArgOption *o = &c->options[i];
        if (!o->required || l->given >> i & 1) continue;
        error_set(l->error, sizeof l->error, "%s needs %s %s", c->call, o->name, o->value);
        return LINE_WRONG;
    }
    return LINE_GOOD;
}

/* Returns whether --help follows the argument with the first error. If so, the caller prints the
 * help instead of the error message. */
static bool help_follows(const CommandLine *l)
{
    if (l->only_words) return false;
    for (int i = l->at + 1; i < l->argc && strcmp(l->argv[i], "--") != 0; i++)
        if (args_is_help(l->argv[i])) return true;
    return false;
}

bool args_read(const ArgCommand *c, int argc, char **argv, void *values, int *code)
{
    CHECK(c->n_options <= 64, "%s has %d options", c->call, c->n_options);
    CommandLine l = {.command = c, .argc = argc, .argv = argv, .values = values};
    LineState state = LINE_GOOD;
    if (c->defaults)
        memcpy(values, c->defaults, c->size);
    else if (c->size > 0)
        memset(values, 0, c->size);
    while (state == LINE_GOOD && ++l.at < argc)
        state = take_argument(&l);
    if (state == LINE_GOOD) state = end_of_line(&l);
    if (state == LINE_GOOD) return true;
    *code = EXIT_OK;
    if (state == LINE_WRONG && help_follows(&l))
        args_print_help(stdout, c);
    else if (state == LINE_WRONG)
        *code = error_print(EXIT_USAGE, "%s", l.error);
    args_free(c, values);
    return false;
}

void args_free(const ArgCommand *c, void *values)
{
    for (int i = 0; i < c->n_options; i++)
        if (c->options[i].kind == ARG_SETTINGS || c->options[i].kind == ARG_NAMES)
            free(((ArgList *)(void *)((char *)values + c->options[i].at))->item);
    if (c->words.most > 1) free(((ArgList *)(void *)((char *)values + c->words.at))->item);
}

/* ---- commands -------------------------------------------------------------------------------- */

const ArgCommand *args_find(const ArgCommand *const *commands, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

const char *args_nearest(const ArgCommand *const *commands, int n, const char *word)
{
    const char *name[MOST_COMMANDS];
    CHECK(n <= MOST_COMMANDS, "%d commands", n);
    for (int i = 0; i < n; i++)
        name[i] = commands[i]->name;
    return nearest_name(word, name, (size_t)n, sizeof *name);
}

/* Writes the names of the group's commands, such as "list, inspect and verify", to buf and returns
 * buf. `last` (" and " or " or ") is written between the last two names. */
static const char *names_of(const ArgCommand *group, const char *last, char *buf, size_t n)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < group->n_commands && at < n; i++) {
        const char *before = i == 0 ? "" : i + 1 < group->n_commands ? ", " : last;
        at += (size_t)snprintf(buf + at, n - at, "%s%s", before, group->commands[i]->name);
    }
    return buf;
}

static int run_group(const ArgCommand *group, int argc, char **argv)
{
    char names[256], advice[300], end[400];
    if (argc < 2)
        return error_print(EXIT_USAGE, "%s needs a command: %s", group->call,
                           names_of(group, " or ", names, sizeof names));
    if (args_is_help(argv[1])) {
        args_print_help(stdout, group);
        return EXIT_OK;
    }
    const ArgCommand *command = args_find(group->commands, group->n_commands, argv[1]);
    if (command) return args_run(command, argc - 1, argv + 1);
    const char *near = args_nearest(group->commands, group->n_commands, argv[1]);
    snprintf(advice, sizeof advice, "it has %s", names_of(group, " and ", names, sizeof names));
    return error_print(EXIT_USAGE, "%s has no command \"%.200s\"%s", group->call, argv[1],
                       did_you_mean(end, sizeof end, near, advice));
}

int args_run(const ArgCommand *c, int argc, char **argv)
{
    int code;
    if (c->n_commands > 0) return run_group(c, argc, argv);
    void *values = must_calloc(1, c->size + 1);
    if (args_read(c, argc, argv, values, &code)) {
        code = c->run(values);
        args_free(c, values);
    }
    free(values);
    return code;
}
