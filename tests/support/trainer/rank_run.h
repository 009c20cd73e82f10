/* rank_run.h -- a small training run by several thread ranks, and what is left of it on each, to
 * compare bit by bit with the same on other devices. */
#ifndef TESTS_SUPPORT_TRAINER_RANK_RUN_H
#define TESTS_SUPPORT_TRAINER_RANK_RUN_H

#include "tests/support/trainer/trainer_fixture.h"

enum { RANK_RUN_MOST = 8 };

typedef struct RankRun RankRun;
struct RankRun {
    int ranks;
    char name[500]; /* ranks and settings */
    Training training;
    /* In place of the steps in the middle; NULL: they are taken like the others. */
    void (*take_middle)(Comm *world, Trainer *trainer, RankRun *run, int64_t steps);
    void *context;
    /* By rank: weights, slots, state and records; the loss of an evaluation; a drawn text. */
    Trained result[RANK_RUN_MOST];
    double evaluated[RANK_RUN_MOST];
    char *text[RANK_RUN_MOST];
};

/* Reads the config: a model of two small layers over the folder's text, with `sets` ("key=value"),
 * which end with NULL, for that many ranks. */
void rank_run_open(RankRun *run, const Folder *folder, int ranks, const char *const *sets);
/* A step, as many as the host may order while the device waits (three at most), a step, an
 * evaluation, a sample and a last step. */
void rank_run_train(RankRun *run);
void rank_run_close(RankRun *run);
/* Fails unless all results of all ranks are the same bits. */
void rank_runs_equal(const RankRun *a, const RankRun *b);

#endif
