/* nccl_runs.h -- helpers for tests of the data that the emulated NCCL transfers: run ranks as
 * threads of a child process, on strict, deferred and random streams, with inputs read early and
 * late. */
#ifndef TESTS_EMU_NCCL_NCCL_RUNS_H
#define TESTS_EMU_NCCL_NCCL_RUNS_H

#include "tests/emu/nccl/nccl_ranks.h"

typedef struct {
    RankBody body;
    int ranks;
    const char *settings; /* environment variables, "NAME=value NAME=value" */
} Run;

static inline void run_child(void *context)
{
    const Run *run = context;
    char words[256], *rest = words;
    snprintf(words, sizeof words, "EMU_DEVICES=4 NCCL_LAUNCH_ORDER_IMPLICIT=1 %s", run->settings);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        if (value == NULL) continue;
        *value++ = '\0';
        setenv(word, value, 1);
    }
    world_run(run->ranks, run->body, false);
}

/* Fails the test unless the child process ends with 0. Stores what its ranks print in text[n]. */
static inline void runs_well(RankBody body, int ranks, const char *settings, char *text, size_t n)
{
    Run run = {body, ranks, settings};
    int code = child_run(run_child, &run, text, n);
    if (code != 0) fail_msg("%d ranks, %s: ended with %d: %s", ranks, settings, code, text);
}

/* Does the same in every mode of streams, with inputs read early and late. */
static inline void runs_well_in_all_modes(RankBody body, int ranks)
{
    static const char *const modes[] = {"EMU_STREAMS=strict EMU_NCCL_READ=early",
                                        "EMU_STREAMS=strict EMU_NCCL_READ=late",
                                        "EMU_STREAMS=deferred EMU_NCCL_READ=early",
                                        "EMU_STREAMS=deferred EMU_NCCL_READ=late",
                                        "EMU_STREAMS=random EMU_SEED=1",
                                        "EMU_STREAMS=random EMU_SEED=2"};
    char text[4096];
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        runs_well(body, ranks, modes[i], text, sizeof text);
}

#endif
