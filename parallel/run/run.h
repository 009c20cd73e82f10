/* run.h -- the chapters of one training run, in the order in which train.c reads them. Each ends
 * the program with a sentence and its exit code when it cannot go on.
 *
 * From run_plan on, every rank runs the same chapters over a Run of its own. What one rank finds
 * out and all must follow, the ranks agree on, so that all go through the same calls. */
#ifndef PARALLEL_RUN_RUN_H
#define PARALLEL_RUN_RUN_H

#include "model/core/args.h"
#include "model/core/progress.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/run/folder.h"

/* The value of --resume. */
typedef struct {
    enum { RESUME_AUTO, RESUME_NEVER, RESUME_PATH } kind;
    const char *path; /* of a checkpoint; NULL without RESUME_PATH */
} Resume;

/* The command line of a training run. */
typedef struct {
    const char *config; /* path */
    ArgList set;        /* "key=value", in order */
    const char *out;    /* --out, or NULL */
    Resume resume;
    int64_t ranks;
    bool dry_run, allow_config_change, json, verbose, log_ranks;
} RunArguments;

/* The newest records of the run: how far it is and how it goes. */
typedef struct {
    StepRecord last;     /* the newest step's */
    bool last_known;     /* `last` has its loss; false: totals only, from a checkpoint */
    StepRecord diverged; /* the first record that ends the run; step 0: none so far */
    EvalRecord eval;     /* the newest evaluation's */
    char *sample;        /* the newest sample; NULL: none yet */
} RunRecords;

/* The clock of speed: of the steps since the last report. */
typedef struct {
    double start, seconds; /* since when it runs, in seconds_now's time; seconds before that */
    int64_t steps;
    double shown_at; /* when the live line was drawn last */
} RunClock;

/* What checkpoints the run has, and how its saves go. */
typedef struct {
    int64_t first_step;  /* where this attempt began */
    int64_t saved_step;  /* of the newest checkpoint; -1: there is none */
    ExitCode error;      /* why the last save failed; EXIT_OK: it did not */
    bool last_try;       /* the next save is the run's last */
    bool keeping_warned; /* a warning has named the bad numbers for which older ones stay */
} RunSaving;

/* The work under way: a step, an evaluation or a sample. */
typedef struct {
    Progress progress;
    double start;
    double stop_looked_at; /* when RUN/STOP was looked for last */
} RunWork;

/* Where the run speaks. */
typedef struct {
    Metrics *metrics;  /* the console and metrics.jsonl, rank 0's; NULL on other ranks */
    FILE *log;         /* --log-ranks: this rank's; NULL without */
    bool console_lost; /* standard output cannot be written, and a warning has said so */
} RunOutput;

/* What checkpoints keep of the run's origin. */
typedef struct {
    char *config_text, *machine;
} RunOrigin;

typedef struct {
    /* Shared by all ranks, which only read them. */
    RunArguments arguments;
    const Config *config;
    DataSet data;
    ExitCode no_data; /* why a dry run goes on with random tokens; EXIT_OK: it has its data */

    Comm *world; /* of all ranks; NULL before they start */
    /* Rank 0: has the folder and its lock, writes all but its share of checkpoints, hears signals,
     * speaks. The others' `folder` has path, state and attempt alone. */
    bool lead;
    MemoryPlan plan;
    RunFolder folder;
    Trainer trainer;

    RunOrigin origin;
    RunRecords records;
    RunClock clock;
    RunSaving saving;
    RunWork work;
    RunOutput output;
} Run;

/* ---- opening --------------------------------------------------------------------------------- */

/* Fills arguments from argv. False when the program is to end with *code: help or the version was
 * printed, or what is wrong with the line. */
bool run_arguments(RunArguments *arguments, int argc, char **argv, int *code);
void run_arguments_free(RunArguments *arguments);
/* Reads and checks the config. */
void run_configure(Run *run, const RunArguments *arguments);
/* Opens or prepares the data, which bring the vocabulary; the config is final from here on. */
void run_open_data(Run *run);
/* Runs `rank` on arguments.ranks ranks, of which each has a copy of the opened run, rank 0 the run
 * itself, and returns rank 0's exit code. Frees what they share. */
int run_on_ranks(Run *run, int (*rank)(Run *run));
/* Opens the device and prints what the run will take; refuses what does not fit (EXIT_NO_MEMORY).
 * Nothing is allocated or written yet. */
void run_plan(Run *run);
/* One micro-batch on the real device with everything allocated; returns the exit code, which is
 * that of missing or damaged data where random tokens stood in for them. */
int run_dry(Run *run);
/* Chooses, creates and locks the folder. */
void run_choose_folder(Run *run);
/* A finished run again: its final figures and sample. */
int run_show_result(Run *run);
/* Allocates the trainer, reads the checkpoint to go on from, and describes the run in its folder.
 */
void run_open_trainer(Run *run);

/* ---- the loop -------------------------------------------------------------------------------- */

/* The evaluation and the sample that an earlier attempt owes for the step that this one goes on
 * from: it had saved that step, and was stopped before them. */
void run_catch_up(Run *run);
/* After a step: its records to metrics.jsonl, the live line, a row where one is due. */
void run_report(Run *run);
void run_save_if_due(Run *run);
void run_evaluate_if_due(Run *run);
void run_sample_if_due(Run *run);
/* Warns once where what the run prints gets lost. The run goes on: its product is its folder, whose
 * metrics.jsonl has every figure. */
void run_check_console(Run *run);

/* ---- ends ------------------------------------------------------------------------------------ */

/* Saves; returns EXIT_REQUEUE, or the exit code of the save's failure. */
int run_leave(Run *run);
/* Saves, evaluates, samples and writes the result; returns the exit code. When a stop is asked for
 * meanwhile, it returns run_leave's. */
int run_finish(Run *run);

#endif
