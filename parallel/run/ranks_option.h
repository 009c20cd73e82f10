/* ranks_option.h -- the option --ranks, which several commands take. */
#ifndef PARALLEL_RUN_RANKS_OPTION_H
#define PARALLEL_RUN_RANKS_OPTION_H

#include "model/core/args.h"
#include "parallel/grid/launch.h"

/* The row of --ranks for a command whose values are an `arguments_` with an int64_t `ranks`, which
 * starts as 1. */
#define RANKS_OPTION(arguments_)                                                                   \
    {                                                                                              \
        .name = "--ranks", .value = "N",                                                           \
        .help = "run on so many ranks, threads of this process: 1\n"                               \
                "(default) to 64; with a GPU each, over NCCL, or all on\n"                         \
                "the only one; on CPUs, more ranks than cores are slow",                           \
        .kind = ARG_INTEGER, .at = offsetof(arguments_, ranks), .least = 1,                        \
        .most = LAUNCH_MAX_RANKS,                                                                  \
    }

/* The end of the help of a command that opens a run. */
#define OPENED_GRID                                                                                \
    "Whatever grid\nit was trained on, it opens on one rank or on --ranks N: its "                 \
    "parallel.tensor\n"                                                                            \
    "and parallel.pipeline are kept where they go into N, and are 1 elsewhere."

#endif
