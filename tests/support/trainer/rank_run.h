/* rank_run.h -- a small training run on several ranks, which are threads, and its results on each
 * rank, to compare them bit for bit with those on other devices. */
#ifndef TESTS_SUPPORT_TRAINER_RANK_RUN_H
#define TESTS_SUPPORT_TRAINER_RANK_RUN_H

#include "tests/support/trainer/trainer_fixture.h"

enum { RANK_RUN_MOST = 8 };

typedef struct RankRun RankRun;
struct RankRun {
    int ranks;
    char name[500]; /* number of ranks and settings, for messages */
    Training training;
    /* Called instead of the steps in the middle; NULL: these are made like the others. */
    void (*take_middle)(Comm *world, Trainer *trainer, RankRun *run, int64_t steps);
    void *context;
    /* By rank: weights, optimizer states, StepState and records; the loss of an evaluation; a
     * sampled text. */
    Trained result[RANK_RUN_MOST];
    double evaluated[RANK_RUN_MOST];
    char *text[RANK_RUN_MOST];
};

/* Opens a model of two small layers over the folder's text for `ranks` ranks. `sets` are settings
 * "key=value", ended by NULL. */
void rank_run_open(RankRun *run, const Folder *folder, int ranks, const char *const *sets);
/* Makes a step, then as many as the host may issue while the device waits (at most three), another
 * step, an evaluation, a sample and a last step. */
void rank_run_train(RankRun *run);
void rank_run_close(RankRun *run);
/* Fails unless the results of all ranks have the same bits. */
void rank_runs_equal(const RankRun *a, const RankRun *b);

#endif
