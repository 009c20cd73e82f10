/* cmd_config.c -- ./train config check|show|explain|defaults|diff: the config room from the command
 * line. */
#include "configs/config.h"
#include "data/dataset.h"
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "parallel/commands/commands.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What stands behind the name of an action; the pointers are argv's. */
typedef struct {
    const char **sets, **words;
    int n_sets, n_words;
    bool verbose;
} Arguments;

typedef struct {
    const char *name, *usage, *help;
    int min_words, max_words;
    int n_options; /* of `options`: all where configs are read */
    int (*run)(const Arguments *);
} ConfigAction;

enum { SET, VERBOSE, N_OPTIONS };
static const ArgOption options[N_OPTIONS] = {
    [SET] = {"--set", ARG_SETTING}, [VERBOSE] = {"--verbose", ARG_FLAG}};

/* Loads and says what was found wrong or noticed; NULL, and the exit code, if it is not a good
 * config. */
static const Config *load_aloud(const char *path, const Arguments *a, int *code)
{
    ConfigReport report;
    const Config *config = config_load_for(path, a->n_sets, a->sets, session_on_cuda, &report);
    config_report_print(&report, a->verbose, stderr);
    if (config == NULL)
        fprintf(stderr, "%d error%s; nothing was started\n", report.n_errors,
                report.n_errors == 1 ? "" : "s");
    if (config == NULL) *code = config_report_code(&report);
    config_report_free(&report);
    return config;
}

static int run_check(const Arguments *a)
{
    int code = EXIT_OK;
    for (int i = 0; i < a->n_words; i++) {
        int trouble;
        ExitCode data_trouble = EXIT_MISSING;
        const Config *config = load_aloud(a->words[i], a, &trouble);
        char err[2048];
        if (config != NULL && data_check(config, err, sizeof err, &data_trouble)) {
            printf("%s: good\n", a->words[i]);
            trouble = EXIT_OK;
        } else if (config != NULL) {
            fprintf(stderr, "%s: the config is good, its data are not: %s\n", a->words[i], err);
            trouble = error_exit_code(err, data_trouble);
        }
        if (code == EXIT_OK || trouble == EXIT_CONFIG) code = trouble;
        config_free(config);
    }
    return code;
}

static int run_show(const Arguments *a)
{
    int code;
    const Config *config = load_aloud(a->words[0], a, &code);
    if (config == NULL) return code;
    config_print(config, stdout);
    config_free(config);
    return EXIT_OK;
}

static int run_explain(const Arguments *a)
{
    int code = EXIT_OK;
    for (int i = 0; i < a->n_words; i++) {
        char near[200];
        if (config_explain(a->words[i], stdout, near, sizeof near)) continue;
        char end[512];
        fprintf(stderr, "error[%d] there is no key \"%s\"%s\n", EXIT_USAGE, a->words[i],
                did_you_mean(end, sizeof end, near[0] ? near : NULL,
                             "./train config defaults lists all keys"));
        code = EXIT_USAGE;
    }
    return code;
}

static int run_defaults(const Arguments *a)
{
    (void)a;
    config_print_defaults(stdout);
    return EXIT_OK;
}

static int run_diff(const Arguments *a)
{
    static const char *const effect[] = {
        [EFFECT_NONE] = "harmless",
        [EFFECT_ROUNDING] = "rounding",
        [EFFECT_NUMBERS] = "changes the numbers",
        [EFFECT_IMPOSSIBLE] = "impossible in a resumed run",
    };
    int code = EXIT_OK;
    const Config *was = load_aloud(a->words[0], a, &code), *now = load_aloud(a->words[1], a, &code);
    if (code == EXIT_OK) {
        ConfigDifference *difference;
        int n = config_diff(was, now, &difference);
        for (int i = 0; i < n; i++)
            printf("%-44s %s -> %s  (%s)\n", difference[i].key, difference[i].was,
                   difference[i].now, effect[difference[i].effect]);
        printf("%d difference%s\n", n, n == 1 ? "" : "s");
        config_diff_free(difference, n);
    }
    config_free(was);
    config_free(now);
    return code;
}

static const ConfigAction actions[] = {
    {"check", "check CONFIG... [--set KEY=VALUE]... [--verbose]",
     "says all that is wrong with a config, with the place of each, and whether\n"
     "      its data are there",
     1, 1000, N_OPTIONS, run_check},
    {"show", "show CONFIG [--set KEY=VALUE]... [--verbose]",
     "every key with its value and where the value comes from", 1, 1, N_OPTIONS, run_show},
    {"explain", "explain KEY...",
     "what a key means, takes and does; a section explains all its keys", 1, 1000, 0, run_explain},
    {"defaults", "defaults", "every key with its default, as a config with comments", 0, 0, 0,
     run_defaults},
    {"diff", "diff A B [--set KEY=VALUE]... [--verbose]",
     "what two configs differ in, and what that means for a resumed run", 2, 2, N_OPTIONS,
     run_diff},
};
#define N_ACTIONS (sizeof actions / sizeof *actions)

static void print_help(FILE *to, const ConfigAction *only)
{
    fprintf(to, "usage:\n");
    for (size_t i = 0; i < N_ACTIONS; i++)
        if (only == NULL || only == &actions[i])
            fprintf(to, "  ./train config %s\n      %s\n", actions[i].usage, actions[i].help);
    if (only != NULL && only->n_options == 0) return;
    fprintf(to, "A CONFIG of - is read from standard input. Exit codes: 0, 64 (command line), 66\n"
                "(something is missing), 78 (config); of check also 65 (data damaged).\n");
}

static int refuse(const char *sentence)
{
    fprintf(stderr, "error[%d] %s\n", EXIT_USAGE, sentence);
    return EXIT_USAGE;
}

static int misuse(const ConfigAction *action, const char *what, const char *word)
{
    fprintf(stderr, "error[%d] ./train config%s%s: %s%s\n", EXIT_USAGE, action ? " " : "",
            action ? action->name : "", what, word);
    print_help(stderr, action);
    return EXIT_USAGE;
}

/* What the command line asks for; the exit code. */
static int run_action(const ConfigAction *action, Args *args, Arguments *a)
{
    for (;;) {
        switch (args_next(args)) {
        case ARGS_OPTION:
            if (args->option == SET)
                a->sets[a->n_sets++] = args->value;
            else
                a->verbose = true;
            break;
        case ARGS_WORD: a->words[a->n_words++] = args->value; break;
        case ARGS_HELP: print_help(stdout, action); return EXIT_OK;
        case ARGS_WRONG: return refuse(args->error);
        case ARGS_END:
            if (a->n_words < action->min_words) return misuse(action, "something is missing", "");
            if (a->n_words > action->max_words)
                return misuse(action, "one word too many: ", a->words[action->max_words]);
            return action->run(a);
        }
    }
}

/* The subcommand; argv[0] is "config". Returns the exit code of the program. */
int cmd_config(int argc, char **argv)
{
    if (argc < 2) return misuse(NULL, "an action is missing", "");
    if (args_is_help(argv[1])) {
        print_help(stdout, NULL);
        return EXIT_OK;
    }
    for (size_t i = 0; i < N_ACTIONS; i++) {
        if (strcmp(argv[1], actions[i].name) != 0) continue;
        char *command = text_format("./train config %s", argv[1]);
        Args args = {.command = command,
                     .options = options,
                     .count = actions[i].n_options,
                     .argc = argc - 1,
                     .argv = argv + 1};
        Arguments a = {.sets = must_calloc((size_t)argc, sizeof *a.sets),
                       .words = must_calloc((size_t)argc, sizeof *a.words)};
        int code = run_action(&actions[i], &args, &a);
        free(a.sets);
        free(a.words);
        free(command);
        return code;
    }
    char sentence[512], end[256];
    const char *near = nearest_name(argv[1], actions, N_ACTIONS, sizeof *actions);
    did_you_mean(end, sizeof end, near, "see ./train config --help");
    snprintf(sentence, sizeof sentence, "./train config has no action \"%.200s\"%s", argv[1], end);
    return refuse(sentence);
}
