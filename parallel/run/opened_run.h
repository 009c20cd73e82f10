/* opened_run.h -- opens a run folder, or one of its checkpoints, to generate text or to evaluate.
 * A run can be opened on any number of ranks, whatever grid it was trained on: parallel.tensor and
 * parallel.pipeline are kept if they divide that number, and are set to 1 otherwise. */
#ifndef PARALLEL_RUN_OPENED_RUN_H
#define PARALLEL_RUN_OPENED_RUN_H

#include "data/dataset.h"
#include "model/core/args.h"
#include "model/core/progress.h"
#include "parallel/grid/launch.h"
#include "parallel/trainer/session.h"

/* Which checkpoint of a run to open. */
typedef enum {
    OPEN_BEST_OR_NEWEST, /* the best, or the newest if no best one is kept or it is damaged */
    OPEN_BEST,
    OPEN_NEWEST
} OpenedChoice;

/* The state that all ranks share and only read: the config, the tokenizer and, on request, the data
 * of a finished or running run. */
typedef struct {
    const Config *config;
    DataSet data;         /* empty unless opened with_data */
    Tokenizer *tokenizer; /* the copy in the run folder; NULL if it has none */
    char *path, *folder;  /* the path as given; the run folder */
    bool is_checkpoint;   /* `path` names one checkpoint, not the run folder */
    bool changed;         /* --set was given */
    LaunchKind kind;      /* threads or processes */
    OpenedChoice choice;  /* ignored if is_checkpoint */
    Progress progress; /* copied to each rank; without with_data it is shown only on a terminal */
} OpenedRun;

/* The options of the commands that open a run: which run, its --set, the ranks, and the choice of
 * the checkpoint. */
typedef struct {
    const char *run;
    ArgList set;
    int64_t ranks;
    LaunchKind kind;
    bool best, newest;
} OpenedArguments;
/* The option table's rows for the choice of the checkpoint. A command's struct of values must begin
 * with an OpenedArguments. */
#define OPENED_CHOICES                                                                             \
    {.name = "--best",                                                                             \
     .help = "open the checkpoint with the lowest validation loss\n"                               \
             "(default where the run has kept one)",                                               \
     .kind = ARG_FLAG,                                                                             \
     .at = offsetof(OpenedArguments, best)},                                                       \
    {                                                                                              \
        .name = "--newest", .help = "open the newest checkpoint", .kind = ARG_FLAG,                \
        .at = offsetof(OpenedArguments, newest)                                                    \
    }

/* Opens the run or checkpoint that the arguments name. Opens the data only if `with_data`:
 * generating text needs no corpus. Text data are tokenized with the run's own tokenizer, even if
 * the text has changed since training. On failure prints an error message and ends the program. */
void opened_run_open(OpenedRun *run, const OpenedArguments *arguments, bool with_data);
void opened_run_close(OpenedRun *run);

/* One rank's part of an opened run: a session with the weights of the chosen checkpoint, or of the
 * one that `path` names. Rank 0 has printed to stderr which checkpoint was chosen: "best: step 25,
 * val 5.0624". */
typedef struct {
    const OpenedRun *run;
    Session session;
    int64_t step;
    bool leads; /* this is rank 0, which prints */
    Progress progress;
} OpenedRank;
/* The work of one rank; returns the exit code. First it must allocate its memory, run each
 * computation once (because a first use may load kernels), and call opened_rank_connect. Only then
 * can it use the weights. Before it releases memory it must call session_meet. */
typedef int (*OpenedBody)(OpenedRank *rank, void *context);
/* Connects the ranks (session_connect) and publishes the weights. All ranks must call it. */
void opened_rank_connect(OpenedRank *rank);
/* Starts the ranks, opens each rank's part, runs body(rank, context) on all of them concurrently,
 * and returns rank 0's exit code. */
int opened_run_on(const OpenedRun *run, OpenedBody body, void *context);

#endif
