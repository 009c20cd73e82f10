/* args.c -- see args.h. */
#include "model/core/args.h"

#include "model/core/check.h"
#include "model/core/nearest.h"

#include <stdio.h>
#include <string.h>

/* The option of the first n bytes of the argument, or -1. */
static int find(const Args *a, const char *argument, size_t n)
{
    for (int i = 0; i < a->count; i++)
        if (strlen(a->options[i].name) == n && memcmp(a->options[i].name, argument, n) == 0)
            return i;
    return -1;
}

/* "see ./train eval --help": the end of a sentence. */
static const char *see_help(const Args *a, char *buf, size_t n)
{
    snprintf(buf, n, "see %s%s", a->help ? a->help : a->command, a->help ? "" : " --help");
    return buf;
}

static ArgsNext unknown(Args *a, const char *argument, size_t n)
{
    char advice[128], end[256], name[EDIT_FAR + 1];
    static const ArgOption help = {"--help", ARG_FLAG};
    snprintf(name, sizeof name, "%.*s", (int)n, argument);
    const char *near = nearest_name(name, a->options, (size_t)a->count, sizeof *a->options);
    if (near == NULL) near = nearest_name(name, &help, 1, sizeof help);
    error_set(a->error, sizeof a->error, "%.*s: %s has no such option%s", n > 80 ? 80 : (int)n,
              argument, a->command,
              did_you_mean(end, sizeof end, near, see_help(a, advice, sizeof advice)));
    return ARGS_WRONG;
}

/* The value behind an option, or NULL with a sentence. */
static const char *value_of(Args *a, const ArgOption *o, const char *equals)
{
    char advice[128];
    if (equals) return equals + 1;
    const char *next = a->at + 1 < a->argc ? a->argv[a->at + 1] : NULL;
    if (next == NULL) {
        error_set(a->error, sizeof a->error, "%s: its value is missing; %s", o->name,
                  see_help(a, advice, sizeof advice));
        return NULL;
    }
    if (strncmp(next, "--", 2) == 0) {
        error_set(a->error, sizeof a->error,
                  "%s: its value is missing, an option follows: %.80s (%s=%.80s if that is the "
                  "value)",
                  o->name, next, o->name, next);
        return NULL;
    }
    a->at++;
    return next;
}

/* Whether the option takes this value; else a sentence. */
static bool takes(Args *a, const ArgOption *o, const char *value)
{
    if (o->kind == ARG_VALUE && *value == '\0')
        return error_set(a->error, sizeof a->error, "%s: its value is empty", o->name);
    if (o->kind == ARG_SETTING && (strchr(value, '=') == NULL || *value == '='))
        return error_set(a->error, sizeof a->error,
                         "%s %.200s: this is not key=value; write for example %s "
                         "optimizer.params.lr=6e-4",
                         o->name, value, o->name);
    return true;
}

static ArgsNext take_option(Args *a, const char *argument)
{
    const char *equals = strchr(argument, '=');
    size_t n = equals ? (size_t)(equals - argument) : strlen(argument);
    a->option = find(a, argument, n);
    if (a->option < 0) return unknown(a, argument, n);
    const ArgOption *o = &a->options[a->option];
    a->value = NULL;
    if (o->kind == ARG_FLAG && equals == NULL) return ARGS_OPTION;
    if (o->kind == ARG_FLAG) {
        error_set(a->error, sizeof a->error, "%.200s: %s takes no value", argument, o->name);
        return ARGS_WRONG;
    }
    a->value = value_of(a, o, equals);
    return a->value && takes(a, o, a->value) ? ARGS_OPTION : ARGS_WRONG;
}

bool args_is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

ArgsNext args_next(Args *a)
{
    if (++a->at >= a->argc) return ARGS_END;
    const char *argument = a->argv[a->at];
    if (args_is_help(argument)) return ARGS_HELP;
    if (argument[0] == '-' && argument[1] != '\0') return take_option(a, argument);
    a->value = argument;
    return ARGS_WORD;
}
