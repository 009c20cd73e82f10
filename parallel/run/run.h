/* run.h -- the chapters of one training run, in the order in which train.c reads them. Each ends
 * the program with a sentence and its exit code when it cannot go on. */
#ifndef PARALLEL_RUN_RUN_H
#define PARALLEL_RUN_RUN_H

#include "model/core/args.h"
#include "model/core/progress.h"
#include "parallel/plan/memory.h"
#include "parallel/run/folder.h"

/* The command line of a training run. */
typedef struct {
    const char *config; /* path */
    ArgList set;        /* "key=value", in order */
    const char *out;    /* --out, or NULL */
    const char *resume; /* "auto", "never" or the path of a checkpoint */
    bool dry_run, allow_config_change, json, verbose;
} RunArguments;

typedef struct {
    RunArguments arguments;
    const Config *config;
    DataSet data;
    MemoryPlan plan;
    RunFolder folder;
    Trainer trainer;
    Metrics *metrics;
    char *config_text, *machine;         /* what checkpoints keep of the run's origin */
    StepRecord last;                     /* the newest record the host has */
    bool last_known;                     /* its loss, too: else it is of an earlier attempt */
    EvalRecord eval;                     /* the newest evaluation */
    char *sample;                        /* the newest sample */
    double window_start, window_seconds; /* host seconds; the window since the last report */
    double shown_at;                     /* the live line */
    int64_t window_steps;
    int64_t first_step, saved_step; /* before this attempt; of the newest checkpoint, -1: none */
    ExitCode save_error;            /* of the last save: EXIT_OK, or what it failed of */
    bool last_try;                  /* no save follows the next one */
    bool keeping_said;              /* that the numbers are bad, so that no checkpoint is removed */
    ExitCode no_data;  /* why a dry run goes on with random tokens; EXIT_OK: it has its data */
    Progress progress; /* of the work under way, and when it began */
    double work_start;
    bool console_lost;     /* and said so */
    double stop_looked_at; /* for RUN/STOP within this work */
} Run;

/* Fills arguments from argv. False when the program is to end with *code: help or the version was
 * printed, or what is wrong with the line. */
bool run_arguments(RunArguments *arguments, int argc, char **argv, int *code);
void run_arguments_free(RunArguments *arguments);
void run_configure(Run *run, const RunArguments *arguments);
void run_open_data(Run *run);
void run_plan(Run *run);
/* One micro-step on the real device with everything opened; returns the exit code, which is that of
 * missing or damaged data where random tokens stood in for them. */
int run_dry(Run *run);
void run_choose_folder(Run *run);
/* A finished run again: its final figures and sample. */
int run_show_result(Run *run);
void run_open_trainer(Run *run);

/* What an earlier attempt left out at the step that this one goes on from, because it was stopped
 * there: an evaluation, a sample. */
void run_catch_up(Run *run);
void run_report(Run *run);
/* Says once on stderr that what a run prints gets lost. It goes on: its product is its folder,
 * whose metrics.jsonl has every figure. */
void run_watch_console(Run *run);
void run_evaluate_if_due(Run *run);
void run_sample_if_due(Run *run);
void run_save_if_due(Run *run);
/* Waits for the device and takes the records of all steps. */
void run_drain(Run *run);
/* An evaluation or a sample; nothing without validation data or tokenizer. False when a stop is
 * asked for meanwhile: it ends there and leaves no result. */
bool run_evaluate(Run *run, bool final);
bool run_sample(Run *run);
/* Commits a checkpoint; a failure is said, noted in save_error, and the run goes on. */
void run_save(Run *run);
/* Whether the newest loss says that training goes well; else `why` says what does not. */
bool run_goes_well(const Run *run, char *why, size_t n);
/* The watch over a run's work (feed.h); the context is the run. */
bool run_watch(void *context, const Work *work);
/* SIGINT, SIGTERM, SIGUSR1 and, unless it was ignored before, SIGHUP ask for a stop from here on
 * and are answered on stderr; a second one but SIGHUP acts at once. */
void run_watch_signals(void);
/* What those answers will say: `doing` is what a first signal would wait for (NULL: the next step
 * and its save, as most of the time), and a second one would lose the steps since the newest
 * checkpoint. */
void run_prepare_answers(const Run *run, const char *doing);
/* A signal came or RUN/STOP appeared. */
bool run_stop_asked(const Run *run);
/* The same within an evaluation or a sample, whose pieces may be short: looks for RUN/STOP ten
 * times a second at most. */
bool run_stop_asked_within(Run *run);
/* Saves and leaves with EXIT_REQUEUE. */
int run_leave(Run *run);
/* Checkpoint, final evaluation, sample and result; run_leave's when a stop is asked for meanwhile.
 */
int run_finish(Run *run);

#endif
