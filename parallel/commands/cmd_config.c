/* cmd_config.c -- `./train config`: the table of its subcommands, and the subcommands `explain` and
 * `defaults`. */
#include "parallel/commands/cmd_config.h"

#include "configs/config.h"
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/nearest.h"
#include "parallel/commands/commands.h"
#include "parallel/trainer/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const Config *cmd_config_read(const char *path, ArgList set, const ConfigContext *context,
                              ConfigReport *report, int *code)
{
    char *stored = fs_is_folder(path) ? text_format("%s/config.json", path) : NULL;
    struct stat info;
    *report = (ConfigReport){0};
    /* Checked before the config is read, so a wrong folder gets its own error message. */
    if (stored != NULL && stat(stored, &info) != 0) {
        *code = error_print(EXIT_MISSING, "%s is not the folder of a run: %s: %s", path, stored,
                            strerror(errno));
        free(stored);
        return NULL;
    }
    ConfigContext own = *context;
    own.stored = stored != NULL;
    const Config *config = config_load(stored ? stored : path, set.count, set.item, &own, report);
    if (config == NULL) *code = config_report_code(report);
    free(stored);
    return config;
}

void cmd_config_report(const ConfigReport *report, bool verbose)
{
    config_report_print(report, verbose, stderr);
    if (report->n_errors > 0)
        fprintf(stderr, "%d error%s; nothing was started\n", report->n_errors,
                report->n_errors == 1 ? "" : "s");
}

const Config *cmd_config_load(const char *path, ArgList set, int64_t world, bool verbose, int *code)
{
    ConfigReport report;
    ConfigContext context = session_context(world);
    const Config *config = cmd_config_read(path, set, &context, &report, code);
    cmd_config_report(&report, verbose);
    config_report_free(&report);
    return config;
}

static int run_explain(const void *values)
{
    const ConfigArguments *a = values;
    int code = EXIT_OK;
    if (a->words.count == 0) config_print_index(stdout);
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
    const ConfigArguments *a = values;
    if (a->all)
        config_print_defaults(stdout);
    else
        config_print_index(stdout);
    return EXIT_OK;
}

const char cmd_config_notes[] =
    "A CONFIG of - is read from standard input. Exit codes: 0, 64 (command line), 66\n"
    "(something is missing), 78 (config); of check also 65 (data damaged), of diff\n"
    "also 1 (they differ).";

static const ArgCommand explain = {
    .name = "explain",
    .call = "./train config explain",
    .usage = "[KEY...]",
    .summary = "what a key means, takes and does; a section explains all its keys;\n"
               "without KEY lists all keys by section",
    .words = {.most = ARGS_ANY, .at = offsetof(ConfigArguments, words)},
    .size = sizeof(ConfigArguments),
    .run = run_explain,
};

static const ArgOption defaults_options[] = {
    {.name = "--all",
     .help = "every key with its default, as a config with comments",
     .kind = ARG_FLAG,
     .at = offsetof(ConfigArguments, all)},
};

static const ArgCommand defaults = {
    .name = "defaults",
    .call = "./train config defaults",
    .usage = "[--all]",
    .summary = "all keys by section; with --all with their defaults, as a config",
    .options = defaults_options,
    .n_options = ARG_ROWS(defaults_options),
    .size = sizeof(ConfigArguments),
    .run = run_defaults,
};

static const ArgCommand *const commands[] = {&cmd_config_check, &cmd_config_show, &explain,
                                             &defaults, &cmd_config_diff};

const ArgCommand cmd_config = {
    .name = "config",
    .call = "./train config",
    .summary = "check, show, explain or compare configs",
    .notes = cmd_config_notes,
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
