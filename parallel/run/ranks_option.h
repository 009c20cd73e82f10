/* ranks_option.h -- the table rows and help texts of --ranks, --processes and --no-processes,
 * options of several commands. */
#ifndef PARALLEL_RUN_RANKS_OPTION_H
#define PARALLEL_RUN_RANKS_OPTION_H

#include "model/core/args.h"
#include "parallel/grid/launch.h"

/* Commands that only read a config call this option --world. Every command accepts both names. */
#define RANKS_ALSO "--world"
/* The end of the error message for more ranks than a command can start. */
#define RANKS_BEYOND                                                                               \
    "; more ranks need a launcher, such as srun, which starts them on several machines"

/* The option table's rows for --ranks, --processes and --no-processes. `arguments_` is the
 * command's struct of values; it must have the fields int64_t `ranks`, with the default 0 (not
 * given), and LaunchKind `kind`. */
#define RANKS_OPTION(arguments_)                                                                   \
    {                                                                                              \
        .name = "--ranks",                                                                         \
        .also = RANKS_ALSO,                                                                        \
        .value = "N",                                                                              \
        .help = "run on so many ranks: 1 (default) to 64. They are\n"                              \
                "processes with a GPU each, over NCCL, or threads: all\n"                          \
                "on the only GPU, or on CPUs, where more ranks than\n"                             \
                "cores are slow; a single one runs in the process that\n"                          \
                "you start",                                                                       \
        .kind = ARG_INTEGER,                                                                       \
        .at = offsetof(arguments_, ranks),                                                         \
        .least = 1,                                                                                \
        .most = LAUNCH_MAX_RANKS,                                                                  \
        .beyond = RANKS_BEYOND,                                                                    \
    },                                                                                             \
        PROCESSES_OPTION(arguments_)
#define PROCESSES_OPTION(arguments_)                                                               \
    {                                                                                              \
        .name = "--processes",                                                                     \
        .help = "several ranks on CPUs are processes, too, which talk\n"                           \
                "to each other over sockets",                                                      \
        .kind = ARG_FLAG,                                                                          \
        .at = offsetof(arguments_, kind.processes),                                                \
    },                                                                                             \
    {                                                                                              \
        .name = "--no-processes",                                                                  \
        .help = "ranks with a GPU each are threads, too: for tests, as\n"                          \
                "such a run may hang",                                                             \
        .kind = ARG_FLAG, .at = offsetof(arguments_, kind.threads),                                \
    }

/* The last sentence of the help of each command that opens a trained run. */
#define OPENED_GRID                                                                                \
    "Whatever grid it was trained on, it opens on one rank or on --ranks N: its\n"                 \
    "parallel.tensor and parallel.pipeline are kept where they go into N, and are 1\n"             \
    "elsewhere."

#endif
