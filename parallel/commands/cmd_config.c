/* cmd_config.c -- `./train config check|show|explain|defaults|diff`: checks, prints, explains and
 * compares configs. */
#include "configs/config.h"
#include "data/dataset.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "model/core/shell_text.h"
#include "parallel/commands/commands.h"
#include "parallel/grid/launch.h"
#include "parallel/run/print_ranks.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *config; /* for show */
    ArgList words;      /* configs or keys, for the other commands */
    ArgList set;
    int64_t world; /* ranks; 0: not given */
    bool verbose;
    bool schedule; /* for show */
} Arguments;

/* Loads a config and prints its errors and warnings. Returns NULL and sets *code if it has errors.
 */
static const Config *load_aloud(const char *path, const Arguments *a, int *code)
{
    ConfigReport report;
    const ConfigContext context = {.on_cuda = session_on_cuda, .world = a->world};
    const Config *config = config_load(path, a->set.count, a->set.item, &context, &report);
    config_report_print(&report, a->verbose, stderr);
    if (config == NULL)
        fprintf(stderr, "%d error%s; nothing was started\n", report.n_errors,
                report.n_errors == 1 ? "" : "s");
    if (config == NULL) *code = config_report_code(&report);
    config_report_free(&report);
    return config;
}

/* Writes to out[0..n) for how many ranks a config was checked, such as "on 4 ranks", and returns
 * out. */
static const char *looked_at(const Config *config, int64_t asked, char *out, size_t n)
{
    long long world = config->world, least = grid_ranks(config_grid(config, 0));
    if (world > LAUNCH_MAX_RANKS)
        snprintf(out, n,
                 "on %lld ranks, as its batch or parallel.data says; a run has no more than %d yet",
                 world, LAUNCH_MAX_RANKS);
    else if (asked > 0)
        snprintf(out, n, "on %lld rank%s", world, world == 1 ? "" : "s");
    else if (world > 0)
        snprintf(out, n, "on %lld rank%s, as its batch or parallel.data says", world,
                 world == 1 ? "" : "s");
    else if (least > 1)
        snprintf(out, n, "on %lld ranks; --world N looks whether its batch fits N of them", least);
    else
        snprintf(out, n, "on one rank; --world N looks whether its batch fits N of them");
    return out;
}

/* Returns text about a check that only a run can make, because it opens the model; else "". */
static const char *left_open(const Config *config)
{
    if (config->zero_optimization.stage < 3 || config->world < 2) return "";
    return "; --dry-run says whether stage3_max_live_parameters has room for the model's units";
}

/* Prints the command with which a config that has errors trains, if its errors say enough. */
static void print_remedy(const char *path, const Arguments *a)
{
    const ConfigContext context = {.on_cuda = session_on_cuda, .world = a->world};
    if (strcmp(path, "-") == 0) return; /* standard input can be read only once */
    char *words = config_remedy(path, a->set.count, a->set.item, &context);
    char *file = shell_quoted_path(path);
    if (words != NULL)
        fprintf(stderr, "with what is suggested above, it trains:\n    ./train %s%s\n", file,
                words);
    free(file);
    free(words);
}

static int run_check(const void *values)
{
    const Arguments *a = values;
    int code = EXIT_OK;
    for (int i = 0; i < a->words.count; i++) {
        int trouble;
        ExitCode data_trouble = EXIT_MISSING;
        const Config *config = load_aloud(a->words.item[i], a, &trouble);
        char err[2048], ranks[100];
        if (config != NULL && data_check(config, err, sizeof err, &data_trouble)) {
            printf("%s: good %s%s\n", a->words.item[i],
                   looked_at(config, a->world, ranks, sizeof ranks), left_open(config));
            trouble = EXIT_OK;
        } else if (config != NULL) {
            fprintf(stderr, "%s: the config is good, its data are not: %s\n", a->words.item[i],
                    err);
            trouble = error_exit_code(err, data_trouble);
        } else if (trouble == EXIT_CONFIG) {
            print_remedy(a->words.item[i], a);
        }
        if (code == EXIT_OK || trouble == EXIT_CONFIG) code = trouble;
        config_free(config);
    }
    return code;
}

/* Prints the layers [from, to) of the model, such as "embedding, blocks 0 to 2". Layer 0 is the
 * embedding; the layer after the last block is the head. */
static void print_layers(int64_t blocks, int from, int to)
{
    int64_t first = from > 0 ? from - 1 : 0, last = to - 2 < blocks ? to - 2 : blocks - 1;
    if (from == 0) printf("embedding, ");
    if (first == last)
        printf("block %lld", (long long)first);
    else
        printf("blocks %lld to %lld", (long long)first, (long long)last);
    if (to == blocks + 2) printf(", head");
}

/* Prints the layers of each stage and the schedule of a step. If the vocabulary is not known before
 * the data are opened, assumes a likely size, because the cost of the head depends on it. */
static int show_schedule(const Config *config)
{
    enum { WIDTH = 80 };
    char text[256];
    bool known = config->model.vocab_size > 0;
    const Config *c = config;
    if (!known) c = config_settle(c, &(ConfigFacts){.vocab_size = config_likely_vocab(c)}, NULL, 0);
    /* The code below calls the same functions as a run, so it prints the schedule of that run. */
    const ScheduleSpec spec = step_spec(c);
    int runs = spec.stages * spec.chunks, *border = session_borders(c, runs),
        digits = snprintf(NULL, 0, "%d", spec.stages - 1);
    printf("%s\n", run_schedule_text(c, text, sizeof text));
    /* The chunks of layers are assigned round-robin: stage s has chunks s, s + stages, ... */
    for (int stage = 0; stage < spec.stages; stage++) {
        printf("stage %-*d  ", digits, stage);
        for (int run = stage; run < runs; run += spec.stages) {
            if (run > stage) printf("; ");
            if (spec.chunks > 1) printf("%c: ", schedule_chunk_letter(run / spec.stages));
            print_layers(c->model.num_layers, border[run], border[run + 1]);
        }
        printf("\n");
    }
    schedule_draw(&spec, stdout, WIDTH);
    if (!known && runs > 1 && c->parallel.pipeline_split.count == 0)
        printf("(cut for a vocabulary of %lld, before the data are there)\n",
               (long long)c->model.vocab_size);
    free(border);
    config_free(c);
    return EXIT_OK;
}

static int run_show(const void *values)
{
    const Arguments *a = values;
    int code;
    const Config *config = load_aloud(a->config, a, &code);
    if (config == NULL) return code;
    if (a->schedule) return show_schedule(config);
    config_print(config, stdout);
    config_free(config);
    return EXIT_OK;
}

static int run_explain(const void *values)
{
    const Arguments *a = values;
    int code = EXIT_OK;
    for (int i = 0; i < a->words.count; i++) {
        char near[200];
        if (config_explain(a->words.item[i], stdout, near, sizeof near)) continue;
        char end[512];
        code = error_print(EXIT_USAGE, "there is no key \"%s\"%s", a->words.item[i],
                           did_you_mean(end, sizeof end, near[0] ? near : NULL,
                                        "./train config defaults lists all keys"));
    }
    return code;
}

static int run_defaults(const void *values)
{
    (void)values;
    config_print_defaults(stdout);
    return EXIT_OK;
}

static int run_diff(const void *values)
{
    const Arguments *a = values;
    static const char *const effect[] = {
        [EFFECT_NONE] = "harmless",
        [EFFECT_ROUNDING] = "rounding",
        [EFFECT_NUMBERS] = "changes the numbers",
        [EFFECT_IMPOSSIBLE] = "impossible in a resumed run",
    };
    int code = EXIT_OK;
    const Config *was = load_aloud(a->words.item[0], a, &code),
                 *now = load_aloud(a->words.item[1], a, &code);
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

#define SHARED_OPTIONS                                                                             \
    {.name = "--set",                                                                              \
     .value = "KEY=VALUE",                                                                         \
     .help = "override one key of each config; may be repeated",                                   \
     .kind = ARG_SETTINGS,                                                                         \
     .at = offsetof(Arguments, set)},                                                              \
        {.name = "--world",                                                                        \
         .also = "--ranks",                                                                        \
         .value = "N",                                                                             \
         .help = "read the config for so many ranks, as a run with --ranks N\n"                    \
                 "does; without it for one, unless it says how many",                              \
         .kind = ARG_INTEGER,                                                                      \
         .at = offsetof(Arguments, world),                                                         \
         .least = 1,                                                                               \
         .most = LAUNCH_MAX_RANKS},                                                                \
    {                                                                                              \
        .name = "--verbose", .help = "print routine notices, too", .kind = ARG_FLAG,               \
        .at = offsetof(Arguments, verbose)                                                         \
    }

static const ArgOption options[] = {SHARED_OPTIONS};
/* The shared options, and one that only show takes. */
static const ArgOption show_options[] = {
    SHARED_OPTIONS,
    {.name = "--schedule",
     .help = "instead of the keys: which layers each stage of the\npipeline has, and when it does "
             "what in a step",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, schedule)},
};

static const char notes[] =
    "A CONFIG of - is read from standard input. Exit codes: 0, 64 (command line), 66\n"
    "(something is missing), 78 (config); of check also 65 (data damaged).";

static const ArgCommand check = {
    .name = "check",
    .call = "./train config check",
    .usage = "CONFIG... [options]",
    .summary = "says all that is wrong with a config, with the place of each, and whether\n"
               "its data are there",
    .notes = notes,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = ARGS_ANY,
              .at = offsetof(Arguments, words),
              .missing = "which config? ./train config check configs/demo.json"},
    .size = sizeof(Arguments),
    .run = run_check,
};

static const ArgCommand show = {
    .name = "show",
    .call = "./train config show",
    .usage = "CONFIG [options]",
    .summary = "every key with its value and where the value comes from, or a pipeline's\n"
               "schedule",
    .notes = notes,
    .options = show_options,
    .n_options = ARG_ROWS(show_options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, config),
              .missing = "which config? ./train config show configs/demo.json",
              .plural = "configs"},
    .size = sizeof(Arguments),
    .run = run_show,
};

static const ArgCommand explain = {
    .name = "explain",
    .call = "./train config explain",
    .usage = "KEY...",
    .summary = "what a key means, takes and does; a section explains all its keys",
    .words = {.least = 1,
              .most = ARGS_ANY,
              .at = offsetof(Arguments, words),
              .missing = "which key? ./train config explain optimizer.params.lr"},
    .size = sizeof(Arguments),
    .run = run_explain,
};

static const ArgCommand defaults = {
    .name = "defaults",
    .call = "./train config defaults",
    .summary = "every key with its default, as a config with comments",
    .run = run_defaults,
};

static const ArgCommand diff = {
    .name = "diff",
    .call = "./train config diff",
    .usage = "A B [options]",
    .summary = "what two configs differ in, and what that means for a resumed run",
    .notes = notes,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 2,
              .most = 2,
              .at = offsetof(Arguments, words),
              .missing = "which two configs? ./train config diff configs/demo.json my.json"},
    .size = sizeof(Arguments),
    .run = run_diff,
};

static const ArgCommand *const commands[] = {&check, &show, &explain, &defaults, &diff};

const ArgCommand cmd_config = {
    .name = "config",
    .call = "./train config",
    .summary = "check, show, explain or compare configs",
    .notes = notes,
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
