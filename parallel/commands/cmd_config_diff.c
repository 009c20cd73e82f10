/* cmd_config_diff.c -- `./train config diff`: compares two configs. */
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/terminal.h"
#include "parallel/commands/cmd_config.h"

#include <stdio.h>
#include <string.h>

/* Prints the differences; returns their number. */
static int print_differences(const Config *was, const Config *now)
{
    static const char *const effect[] = {
        [EFFECT_NONE] = "harmless",
        [EFFECT_ROUNDING] = "rounding",
        [EFFECT_NUMBERS] = "changes the numbers",
        [EFFECT_IMPOSSIBLE] = "impossible in a resumed run",
    };
    ConfigDifference *difference;
    int n = config_diff(was, now, &difference), column = 0;
    for (int i = 0; i < n; i++)
        if (column < (int)strlen(difference[i].key) + 2)
            column = (int)strlen(difference[i].key) + 2;
    for (int i = 0; i < n; i++) {
        const ConfigDifference *d = &difference[i];
        terminal_print(stdout, column, "%-*s%s -> %s  (%s)", column, d->key, d->was, d->now,
                       effect[d->effect]);
    }
    printf("%d difference%s\n", n, n == 1 ? "" : "s");
    config_diff_free(difference, n);
    return n;
}

static int run_diff(const void *values)
{
    const ConfigArguments *a = values;
    int n = a->words.count, code = EXIT_OK;
    if (n == 1 && a->set.count == 0)
        return error_print(EXIT_USAGE,
                           "compared with what? give a second config, or --set KEY=VALUE to "
                           "compare %s with itself so changed",
                           a->words.item[0]);
    const char *path[] = {a->words.item[0], a->words.item[n - 1]};
    const Config *config[2];
    int64_t world = a->world;
    /* A run folder is read first, and then the other config for the same number of ranks. Otherwise
     * a run on four ranks would differ from the config that it was started with. */
    int first = fs_is_folder(path[1]) && !fs_is_folder(path[0]);
    for (int k = 0; k < 2; k++) {
        int side = k == 0 ? first : 1 - first;
        config[side] = cmd_config_load(path[side], side == 1 ? a->set : (ArgList){0}, world,
                                       a->verbose, &code);
        if (world == 0 && config[side] != NULL) world = config[side]->world;
    }
    if (code == EXIT_OK && print_differences(config[0], config[1]) > 0) code = EXIT_DIFFERENT;
    config_free(config[0]);
    config_free(config[1]);
    return code;
}

static const ArgOption options[] = {CONFIG_OPTIONS(
    "change one key of the second config; of the only one, to\ncompare it with itself so changed")};

const ArgCommand cmd_config_diff = {
    .name = "diff",
    .call = "./train config diff",
    .usage = "A [B] [options]",
    .summary = "what two configs differ in, and what that means for a resumed run",
    .about = "Prints the keys in which two configs differ, and what each difference means for\n"
             "a resumed run. A and B are configs or run folders. Ends with 1 if they differ,\n"
             "as diff does.",
    .notes = cmd_config_notes,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 2,
              .at = offsetof(ConfigArguments, words),
              .missing = "which two configs? ./train config diff configs/demo.json my.json"},
    .size = sizeof(ConfigArguments),
    .run = run_diff,
};
