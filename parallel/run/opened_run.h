/* opened_run.h -- a run's folder, or one of its checkpoints, opened to look at: what generating and
 * evaluating begin with. Any run opens on any number of ranks, whatever it was trained on: its
 * parallel.tensor and parallel.pipeline are kept where they go into those, and are 1 elsewhere. */
#ifndef PARALLEL_RUN_OPENED_RUN_H
#define PARALLEL_RUN_OPENED_RUN_H

#include "data/dataset.h"
#include "parallel/grid/launch.h"
#include "parallel/trainer/session.h"

/* What all ranks share, and only read: a finished or running run's config and tokenizer; its data
 * set only `with_data`, so that text can be written where the corpus is not. Data from text are cut
 * into the run's own tokens even if the text has changed since. Ends the program with a sentence
 * when it cannot. */
typedef struct {
    const Config *config;
    DataSet data;         /* opened only when asked for */
    Tokenizer *tokenizer; /* the run's own copy; NULL without */
    char *path, *folder;  /* as given; the run's */
    bool is_checkpoint;   /* the path is one checkpoint's */
    bool changed;         /* --set was given */
} OpenedRun;
void opened_run_open(OpenedRun *run, const char *path, int64_t ranks, bool with_data, int n_sets,
                     const char *const *sets);
void opened_run_close(OpenedRun *run);

/* What a rank has of it: its session, with the weights of the newest checkpoint, or of the one that
 * was named. */
typedef struct {
    const OpenedRun *run;
    Session session;
    int64_t step;
    bool leads; /* rank 0, which prints */
} OpenedRank;
/* What a rank does with its part; returns the exit code. */
typedef int (*OpenedBody)(OpenedRank *rank, void *context);
/* Opens the run's part of each of its ranks, runs body(rank, context) on all at once, and returns
 * rank 0's exit code. */
int opened_run_on(const OpenedRun *run, OpenedBody body, void *context);

#endif
