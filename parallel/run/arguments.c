/* arguments.c -- the command line options of a training run. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/nearest.h"
#include "model/core/shell_text.h"
#include "model/core/version.h"
#include "parallel/run/ranks_option.h"
#include "parallel/run/run.h"
#include "parallel/run/run_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parses the value of --resume: auto, never or a path. If no such path exists and the value is
 * similar to one of the two words, the error message suggests that word: it is probably a typo, not
 * a path. */
static bool parse_resume(const char *text, void *field, char *err, size_t n)
{
    static const struct {
        const char *name;
    } words[] = {[RESUME_AUTO] = {"auto"}, [RESUME_NEVER] = {"never"}};
    Resume *resume = field;
    if (*text == '\0') return error_set(err, n, "--resume: its value is empty");
    for (int i = 0; i < RESUME_PATH; i++)
        if (strcmp(text, words[i].name) == 0) {
            *resume = (Resume){.kind = i};
            return true;
        }
    const char *near = nearest_name(text, words, RESUME_PATH, sizeof *words);
    if (near != NULL && access(text, F_OK) != 0)
        return error_set(err, n, "--resume %s: there is no such folder; did you mean \"%s\"?", text,
                         near);
    *resume = (Resume){.kind = RESUME_PATH, .path = text};
    return true;
}

static void show_version(const ArgCommand *command)
{
    (void)command;
    printf("%s\n", program_version());
}

static const ArgOption options[] = {
    {.name = "--set",
     .value = "key=value",
     .help = "override one key, e.g. --set optimizer.params.lr=1e-3;\nmay be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(RunArguments, set)},
    {.name = "--out",
     .value = "DIR",
     .help = "folder of the run; default: out/NAME-OF-CONFIG",
     .kind = ARG_NAME,
     .at = offsetof(RunArguments, out)},
    {.name = "--resume",
     .value = "auto",
     .help = "go on from the newest checkpoint of the run, if it has\none (default)",
     .kind = ARG_OWN,
     .at = offsetof(RunArguments, resume),
     .parse = parse_resume},
    {.name = "--resume", .value = "never", .help = "start a new run", .kind = ARG_ALSO},
    {.name = "--resume",
     .value = "PATH",
     .help = "start from the checkpoint in folder PATH, or from the\nnewest one of the run in "
             "folder PATH; without a config,\n--resume RUN does the same as ./train RUN",
     .kind = ARG_ALSO},
    {.name = "--allow-config-change",
     .help = "resume although the config changed in a way that\nchanges the run",
     .kind = ARG_FLAG,
     .at = offsetof(RunArguments, allow_config_change)},
    RANKS_OPTION(RunArguments),
    {.name = "--log-ranks",
     .help = "keep what each rank says in RUN/logs/rank_NNN.log",
     .kind = ARG_FLAG,
     .at = offsetof(RunArguments, log_ranks)},
    {.name = "--dry-run",
     .help = "check config, data and memory, run one micro-batch,\n"
             "start no run; without its data it goes on with random\n"
             "tokens and ends with 66 (missing), 65 (damaged) or 78\n"
             "(too short)",
     .kind = ARG_FLAG,
     .at = offsetof(RunArguments, dry_run)},
    {.name = "--json",
     .help = "print JSON lines instead of a table, at this start only",
     .kind = ARG_FLAG,
     .at = offsetof(RunArguments, json)},
    {.name = "--verbose",
     .help = "print routine notices, too",
     .kind = ARG_FLAG,
     .at = offsetof(RunArguments, verbose)},
    {.name = "--version",
     .help = "print the program's version",
     .kind = ARG_SHOW,
     .show = show_version},
};

static const ArgCommand command = {
    .name = "train",
    .call = "./train",
    .see = "./train --help train",
    .usage = "CONFIG.json [options], or ./train RUN [options]",
    .about = "CONFIG.json may be - for standard input. RUN, the folder of a run, goes on with\n"
             "that run: with its own config and on as many ranks, unless options change them.",
    .notes = "SIGINT, SIGTERM, SIGUSR1 or SIGHUP, or creating RUN/STOP, ends the run after\n"
             "the current step or within an evaluation, with a checkpoint and exit code 85;\n"
             "the same command goes on from there. A second signal ends it at once.\n"
             "SIGUSR2 writes RUN/flight and stops nothing; ./train flight RUN reads it.\n"
             "Under mpirun, srun or torchrun each process is one rank, without --ranks\n"
             "(./train doctor says what was found).",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 0, /* --resume RUN needs no config */
              .most = 1,
              .at = offsetof(RunArguments, config),
              .plural = "configs",
              .advice = ", and --set for what differs"},
    .size = sizeof(RunArguments),
};

/* Ends the program because the folder `path`, given instead of a config, is not a run. */
static void refuse_folder(const char *path)
{
    if (!run_path_has(path, "manifest.json"))
        fail(EXIT_USAGE,
             "%s is a folder without config.json, so it is no run: give the folder of a run, such "
             "as out/demo, or a config file, e.g. configs/demo.json",
             path);
    bool within_run;
    char *run = run_path_of(path, &within_run);
    char *folder = shell_quoted_path(run), *checkpoint = shell_quoted_path(path);
    char *newest =
        within_run ? text_format("./train %s goes on from the newest one of its run, and ", folder)
                   : must_strdup("");
    free(run);
    fail(EXIT_USAGE,
         "%s is a checkpoint: %s./train CONFIG.json --resume %s starts another run from it", path,
         newest, checkpoint);
}

/* Handles a run folder that was given instead of a config: its config is read, and the run
 * continues in this folder. */
static void take_run(RunArguments *a, const char *path)
{
    a->run = path_trimmed(path);
    if (!run_path_is_run(a->run)) refuse_folder(a->run);
    char *config = a->run_config = text_format("%s/config.json", a->run);
    char *quoted = shell_quoted_path(config);
    if (a->out != NULL)
        fail(EXIT_USAGE,
             "%s goes on in its own folder, without --out; ./train %s --resume %s --out %s starts "
             "another run from its newest checkpoint",
             a->run, quoted, shell_quoted_path(a->run), shell_quoted_path(a->out));
    if (a->resume.kind == RESUME_NEVER)
        fail(EXIT_USAGE,
             "%s goes on from its newest checkpoint, without --resume never; ./train %s --out "
             "ANOTHER starts another run with its config",
             a->run, quoted);
    free(quoted);
    a->config = config;
    a->out = a->run;
}

/* Returns the command line, quoted for a shell; the caller frees it. */
static char *command_line(int argc, char **argv)
{
    char *line = shell_quoted_path(argv[0]);
    for (int i = 1; i < argc; i++) {
        char *word = shell_quoted(argv[i]), *longer = text_format("%s %s", line, word);
        free(word);
        free(line);
        line = longer;
    }
    return line;
}

bool run_arguments(RunArguments *a, int argc, char **argv, int *code)
{
    if (!args_read(&command, argc, argv, a, code)) return false;
    a->command = command_line(argc, argv);
    const char *from = a->resume.path;
    if (from != NULL) a->resume.path = a->resume_path = path_trimmed(from);
    if (a->config != NULL && fs_is_folder(a->config)) {
        take_run(a, a->config);
    } else if (a->config == NULL && from != NULL && fs_is_folder(from)) {
        a->resume = (Resume){.kind = RESUME_AUTO};
        take_run(a, from);
    } else if (a->config == NULL && from != NULL) {
        fail(EXIT_USAGE,
             "--resume %s: there is no such run; without a config, give the folder of a "
             "run, such as out/demo",
             from);
    } else if (a->config == NULL) {
        fail(EXIT_USAGE, "no config is given; try ./train configs/demo.json");
    }
    return true;
}

void run_arguments_free(RunArguments *a)
{
    free(a->run);
    free(a->run_config);
    free(a->resume_path);
    free(a->command);
    args_free(&command, a);
}
