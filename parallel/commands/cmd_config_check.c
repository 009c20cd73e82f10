/* cmd_config_check.c -- `./train config check`: reports all errors of configs, and whether their
 * data exist. For a file that was written for another program, also prints the defaults of keys
 * that it omits, and the command that starts a run. */
#include "configs/advice.h"
#include "data/dataset.h"
#include "model/core/check.h"
#include "model/core/shell_text.h"
#include "model/core/terminal.h"
#include "parallel/commands/cmd_config.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes to out[0..n) for how many ranks a config was checked, such as "on 4 ranks", and returns
 * out. */
static const char *looked_at(const Config *config, int64_t asked, char *out, size_t n)
{
    long long world = config->world, least = config_ranks_needed(config);
    const char *says = asked == 0 && world > 0 ? ", as its batch or parallel.data says" : "";
    if (least > CONFIG_MAX_RANKS)
        snprintf(out, n, "on %lld ranks%s; a run has no more than %d", least, says,
                 CONFIG_MAX_RANKS);
    else if (least > LAUNCH_MAX_RANKS)
        snprintf(out, n, "on %lld ranks%s; more than %d need a launcher, such as srun", least, says,
                 LAUNCH_MAX_RANKS);
    else if (world > 0)
        snprintf(out, n, "on %lld rank%s%s", world, world == 1 ? "" : "s", says);
    else if (least > 1)
        snprintf(out, n, "on %lld ranks; --world N looks whether its batch fits N of them", least);
    else
        snprintf(out, n, "on one rank; --world N looks whether its batch fits N of them");
    return out;
}

/* If there is a check that only a run can make, because it opens the model, returns text about it;
 * otherwise "". */
static const char *left_open(const Config *config)
{
    if (config->zero_optimization.stage < 3 || config->world < 2) return "";
    return "; --dry-run says whether stage3_max_live_parameters has room for the model's units";
}

/* ---- a file that was written for another program --------------------------------------------- */

/* Prints the defaults of the keys that the file omits. */
static void print_taken(const Config *config)
{
    ConfigTaken *taken;
    int n = config_taken(config, &taken), column = 0;
    for (int i = 0; i < n; i++)
        if (column < (int)strlen(taken[i].key) + 2) column = (int)strlen(taken[i].key) + 2;
    terminal_field(stdout, "not in the file", "taken here", column);
    for (int i = 0; i < n; i++) {
        const char *remark = taken[i].remark;
        char *text = text_format(*remark != '\0' ? "%s (%s)" : "%s", taken[i].value, remark);
        terminal_field(stdout, taken[i].key, text, column);
        free(text);
    }
    config_taken_free(taken, n);
    fflush(stdout); /* so that the notices on stderr come after this table */
}

/* Returns whether the config's file names data that do not exist. */
static bool lacks_data(const Config *config)
{
    static const char *const source[] = {"data.train", "data.text", "data.corpus"};
    char err[2048];
    ExitCode code = EXIT_MISSING;
    for (size_t i = 0; i < sizeof source / sizeof *source; i++)
        if (strcmp(config_origin(config, source[i]), "--set") == 0) return false;
    return !data_check(config, err, sizeof err, &code) && code == EXIT_MISSING;
}

/* Prints the heading, and the command that starts a run of this file, with these options (each with
 * a space before it). If the data of the file do not exist, the command has options for other data,
 * and for a file of another program, options for the size of the model and of the run. */
static void print_command(const char *path, const char *options, const Config *config,
                          const char *heading)
{
    StringList more = {0};
    size_t size;
    char *command, *file = shell_quoted_path(path);
    FILE *to = text_stream(&command, &size);
    if (lacks_data(config)) string_list_add(&more, "data.text=my.txt");
    if (config->foreign) config_add_open(config, &more);
    fprintf(to, "./train %s%s", file, options);
    for (int i = 0; i < more.count; i++)
        fprintf(to, " --set %s", more.item[i]);
    fclose(to);
    printf("%s\n", heading);
    terminal_message(stdout, command, MARK_NONE, 0);
    string_list_free(&more);
    free(command);
    free(file);
}

/* For a file that has errors, or that is for more ranks than one command can start, prints with
 * which options it can be read on `world` ranks (0: not given). Prints nothing if its errors do not
 * contain enough information. */
static void explain_refused(const char *path, const ConfigArguments *a, int64_t world)
{
    const ConfigContext context = session_context(world);
    const Config *mended;
    ConfigReport notices;
    if (strcmp(path, "-") == 0) return; /* standard input can be read only once */
    char *options = config_remedy(path, a->set.count, a->set.item, &context, &mended, &notices);
    if (options == NULL) return;
    bool wide = config_ranks_needed(mended) > LAUNCH_MAX_RANKS;
    if (mended->foreign && !wide) {
        print_taken(mended);
        if (!a->verbose) config_report_count_idle(&notices, stdout);
    }
    if (!wide)
        print_command(path, options, mended, "with what is suggested above, it trains:");
    else if (world != 1)
        explain_refused(path, a, 1);
    config_report_free(&notices);
    config_free(mended);
    free(options);
}

/* Prints the command for a file that is valid but whose data do not exist. */
static void explain_missing(const char *path, const ConfigArguments *a, const Config *config)
{
    char *options = config_options(a->set.count, a->set.item, config_ranks_needed(config));
    print_command(path, options, config, "with your text, it trains:");
    free(options);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Checks the data of a valid config and reports them. Returns the exit code. */
static int check_data(const Config *config, const char *path, const ConfigArguments *a)
{
    char err[2048], ranks[160];
    ExitCode trouble = EXIT_MISSING;
    if (data_check(config, err, sizeof err, &trouble)) {
        printf("%s: good %s%s\n", path, looked_at(config, a->world, ranks, sizeof ranks),
               left_open(config));
        fflush(stdout);
        return EXIT_OK;
    }
    fprintf(stderr, "%s: the config is good, its data are not: %s\n", path, err);
    return error_exit_code(err, trouble);
}

/* Checks one config; returns the exit code. */
static int check_one(const char *path, const ConfigArguments *a)
{
    ConfigReport report;
    int code;
    ConfigContext context = session_context(a->world);
    const Config *config = cmd_config_read(path, a->set, &context, &report, &code);
    bool foreign = config != NULL && config->foreign;
    bool wide = config != NULL && config_ranks_needed(config) > LAUNCH_MAX_RANKS;
    if (foreign && !wide) print_taken(config);
    cmd_config_report(&report, a->verbose);
    if (config != NULL) code = check_data(config, path, a);
    if (config == NULL && code == EXIT_CONFIG)
        explain_refused(path, a, a->world);
    else if (foreign && wide)
        explain_refused(path, a, 1);
    else if (foreign && lacks_data(config))
        explain_missing(path, a, config);
    config_report_free(&report);
    config_free(config);
    return code;
}

static int run_check(const void *values)
{
    const ConfigArguments *a = values;
    int code = EXIT_OK;
    for (int i = 0; i < a->words.count; i++) {
        int trouble = check_one(a->words.item[i], a);
        if (code == EXIT_OK || trouble == EXIT_CONFIG) code = trouble;
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
