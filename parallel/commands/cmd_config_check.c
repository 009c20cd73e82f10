/* cmd_config_check.c -- `./train config check`: reports all that is wrong with configs, and whether
 * their data exist. */
#include "data/dataset.h"
#include "model/core/check.h"
#include "model/core/shell_text.h"
#include "parallel/commands/cmd_config.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static void print_remedy(const char *path, const ConfigArguments *a)
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
    const ConfigArguments *a = values;
    int code = EXIT_OK;
    for (int i = 0; i < a->words.count; i++) {
        int trouble;
        ExitCode data_trouble = EXIT_MISSING;
        const Config *config =
            cmd_config_load(a->words.item[i], a->set, a->world, a->verbose, &trouble);
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

static const ArgOption options[] = {
    CONFIG_OPTIONS("override one key of each config; may be repeated")};

const ArgCommand cmd_config_check = {
    .name = "check",
    .call = "./train config check",
    .usage = "CONFIG... [options]",
    .summary = "says all that is wrong with a config, with the place of each, and whether\n"
               "its data are there",
    .notes = cmd_config_notes,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = ARGS_ANY,
              .at = offsetof(ConfigArguments, words),
              .missing = "which config? ./train config check configs/demo.json"},
    .size = sizeof(ConfigArguments),
    .run = run_check,
};
