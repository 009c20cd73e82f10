/* opened_run.h -- a run's folder, or one of its checkpoints, opened to look at: what generating and
 * evaluating begin with. */
#ifndef PARALLEL_RUN_OPENED_RUN_H
#define PARALLEL_RUN_OPENED_RUN_H

#include "data/dataset.h"
#include "parallel/trainer/session.h"

/* A finished or running run, opened to look at: its config, tokenizer, session and newest weights
 * (a run folder), or those of one checkpoint folder; its data set only `with_data`, so that text
 * can be written where the corpus is not. Data from text are cut into the run's own tokens even
 * if the text has changed since. Ends the program with a sentence when it cannot. */
typedef struct {
    const Config *config;
    DataSet data;         /* opened only when asked for */
    Tokenizer *tokenizer; /* the run's own copy; NULL without */
    Session session;
    int64_t step;
} OpenedRun;
void opened_run_open(OpenedRun *run, const char *path, bool with_data, int n_sets,
                     const char *const *sets);
void opened_run_close(OpenedRun *run);

#endif
