/* arguments.c -- the command line of a training run. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "model/core/version.h"
#include "parallel/run/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_help(void)
{
    printf("usage: ./train CONFIG.json [options]\n\n"
           "CONFIG.json may be - for standard input.\n\n"
           "  --set key=value        override one key, e.g. --set optimizer.params.lr=1e-3;\n"
           "                         may be repeated\n"
           "  --out DIR              folder of the run; default: out/NAME-OF-CONFIG\n"
           "  --resume auto          go on from the newest checkpoint of the run, if it has\n"
           "                         one (default)\n"
           "  --resume never         start a new run\n"
           "  --resume PATH          start from the checkpoint in folder PATH\n"
           "  --allow-config-change  resume although the config changed in a way that\n"
           "                         changes the run\n"
           "  --dry-run              check config, data and memory, run one micro-batch,\n"
           "                         start no run; without its data it goes on with random\n"
           "                         tokens and ends with 66 (missing), 65 (damaged) or 78\n"
           "                         (too short)\n"
           "  --json                 print JSON lines instead of a table\n"
           "  --verbose              print routine notices, too\n"
           "  --version              print the program's version\n\n"
           "SIGINT, SIGTERM, SIGUSR1 or SIGHUP, or creating RUN/STOP, ends the run after the\n"
           "current step or within an evaluation, with a checkpoint and exit code 85; the\n"
           "same command goes on from there. A second signal ends it at once.\n");
}

enum { SET, OUT, RESUME, ALLOW_CHANGE, DRY_RUN, JSON, VERBOSE, VERSION, N_OPTIONS };

static const ArgOption options[N_OPTIONS] = {
    [SET] = {"--set", ARG_SETTING},      [OUT] = {"--out", ARG_VALUE},
    [RESUME] = {"--resume", ARG_VALUE},  [ALLOW_CHANGE] = {"--allow-config-change", ARG_FLAG},
    [DRY_RUN] = {"--dry-run", ARG_FLAG}, [JSON] = {"--json", ARG_FLAG},
    [VERBOSE] = {"--verbose", ARG_FLAG}, [VERSION] = {"--version", ARG_FLAG},
};

/* The value of --resume; a slip in one of its words would be looked for as a path, later. */
static const char *resume_of(const char *value)
{
    static const struct {
        const char *name;
    } words[] = {{"auto"}, {"never"}};
    const char *near = nearest_name(value, words, 2, sizeof *words);
    if (near != NULL && strcmp(near, value) != 0 && access(value, F_OK) != 0)
        fail(EXIT_USAGE, "--resume %s: there is no such folder; did you mean \"%s\"?", value, near);
    return value;
}

static void take_option(RunArguments *a, int option, const char *value)
{
    switch (option) {
    case SET: a->set[a->n_sets++] = value; break;
    case OUT: a->out = value; break;
    case RESUME: a->resume = resume_of(value); break;
    case ALLOW_CHANGE: a->allow_config_change = true; break;
    case DRY_RUN: a->dry_run = true; break;
    case JSON: a->json = true; break;
    case VERBOSE: a->verbose = true; break;
    default: break;
    }
}

/* False after help or the version. */
static bool parse(RunArguments *a, Args *args)
{
    for (;;) {
        switch (args_next(args)) {
        case ARGS_OPTION:
            if (args->option == VERSION) {
                printf("%s\n", program_version());
                return false;
            }
            take_option(a, args->option, args->value);
            break;
        case ARGS_WORD:
            if (a->config != NULL)
                fail(EXIT_USAGE, "two configs, %s and %s: give one, and --set for what differs",
                     a->config, args->value);
            a->config = args->value;
            break;
        case ARGS_HELP: print_help(); return false;
        case ARGS_WRONG: fail(EXIT_USAGE, "%s", args->error);
        case ARGS_END:
            if (a->config == NULL)
                fail(EXIT_USAGE, "no config is given; try ./train configs/demo.json");
            return true;
        }
    }
}

bool run_arguments(RunArguments *a, int argc, char **argv)
{
    Args args = {.command = "./train",
                 .help = "./train --help train",
                 .options = options,
                 .count = N_OPTIONS,
                 .argc = argc,
                 .argv = argv};
    *a = (RunArguments){.resume = "auto", .set = must_calloc((size_t)argc, sizeof *a->set)};
    if (parse(a, &args)) return true;
    free(a->set);
    return false;
}
