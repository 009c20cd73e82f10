/* run.h -- the phases of one training run, in the order in which train.c calls them. A phase that
 * cannot continue prints an error message and ends the program with its exit code.
 *
 * From run_plan on, every rank runs the same phases, each with its own Run. If one rank finds
 * something that affects all (such as a request to stop), the ranks agree on it first, so all of
 * them make the same calls. */
#ifndef PARALLEL_RUN_RUN_H
#define PARALLEL_RUN_RUN_H

#include "model/core/args.h"
#include "model/core/progress.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/run/folder.h"
#include "parallel/run/job.h"

/* The value of --resume. */
typedef struct {
    enum { RESUME_AUTO, RESUME_NEVER, RESUME_PATH } kind;
    const char *path; /* of a checkpoint or a run folder; NULL unless RESUME_PATH */
} Resume;

/* The command line of a training run. */
typedef struct {
    const char *config; /* path of the config; RUN/config.json if a run folder was given instead */
    ArgList set;        /* "key=value" of each --set, in order */
    const char *out;    /* value of --out, or the run folder that was given, or NULL */
    Resume resume;
    int64_t ranks; /* 0: not given */
    /* The run folder that was given instead of a config; NULL: a config was given. */
    char *run;
    char *run_config, *resume_path; /* allocated texts of `config` and `resume.path`, or NULL */
    char *command;                  /* the whole command line, quoted for a shell */
    LaunchKind kind;                /* threads or processes */
    bool dry_run, allow_config_change, json, verbose, log_ranks;
} RunArguments;

/* The newest records of the run: its progress and its losses. */
typedef struct {
    StepRecord last;  /* of the newest step */
    bool last_known;  /* `last` has the loss; false: only totals, read from a checkpoint */
    StepRecord event; /* the first record that ends the run or makes it go back; step 0: none */
    /* true: the run goes back to a checkpoint because of `event`; all ranks know it */
    bool goes_back;
    bool spiking;     /* the loss of the newest step was a spike */
    EvalRecord eval;  /* of the newest evaluation */
    EvalRecord *sets; /* (trainer.n_sets) of the sets of eval.sets at that step; NULL: unknown */
    char *sample;     /* the newest sample; NULL: none yet */
} RunRecords;

/* The clock that measures speed: the time and number of the steps since the last report. */
typedef struct {
    double start, seconds; /* seconds_now() when it was last resumed; seconds counted before that */
    int64_t steps;
    double shown_at; /* when the live line was drawn last */
} RunClock;

/* The health of a step that is saved. */
typedef struct {
    int64_t step;
    bool known;    /* the step's record has been read */
    bool good;     /* the result of run_is_healthy */
    char why[160]; /* the reason if it is not */
} SavedHealth;

/* The newest checkpoint of the run, and the outcome of its saves. */
typedef struct {
    int64_t first_step;  /* the step at which this attempt began */
    double begun;        /* seconds_now() at that time */
    double seconds;      /* of this attempt's longest save, with its commit; 0: no save yet */
    int64_t saved_step;  /* of the newest checkpoint, which is committed; -1: there is none */
    ExitCode error;      /* why the last save failed; EXIT_OK: it succeeded */
    int64_t warned_step; /* the newest step whose failed save was reported; 0: none */
    bool last_try;       /* true: the process ends after the next save */
    bool keeping_warned; /* the warning that no older checkpoint is removed has been printed */
    SavedHealth health;  /* of the step of the newest save that was begun */
    /* Comparisons of replicas. compared: the one before the newest save that was begun. between:
     * those that checkpoint.compare_interval made and that no report of a save contains yet. */
    Comparisons compared, between;
} RunSaving;

/* The validation loss of the run so far. All ranks have the same values. */
typedef struct {
    CheckpointBest kept; /* the best checkpoint, which is kept; step 0: none */
    EvalRecord lowest;   /* the evaluation with the lowest loss; step 0: none */
    int64_t since;       /* number of evaluations after `lowest` */
} RunBest;

/* Where the weights of a run that begins at step 0 come from (init_from.h). */
typedef struct {
    /* The folder of a checkpoint or, if `hf`, of a Hugging Face model; NULL: the weights are
     * initialised from the seed. */
    char *path;
    /* own: true if `path` is the run's own checkpoint of step 0, which an import wrote */
    bool hf, own;
    char kind[24];   /* "checkpoint", "best checkpoint", "newest checkpoint", ... */
    int64_t step;    /* of the checkpoint */
    double val_loss; /* its validation loss in nats a token; NaN: not known */
    /* true: a token id counts as meaning the same in the weights and in the run's data: their
     * tokenizers are equal, the weights are the run's own, or checkpoint.init_from_tokenizer is
     * "any". */
    bool same_ids;
} RunInit;

/* The work in progress: a step, an evaluation or a sample. */
typedef struct {
    Progress progress;
    double start;
    const char *doing;     /* reply to a stop request; NULL: a step is under way */
    const char *set;       /* the set of eval.sets that is evaluated; NULL: none */
    double stop_looked_at; /* time of the last check for RUN/STOP */
} RunWork;

/* When the ranks next decide together whether to stop the run. `next` and `worked` are the same on
 * all ranks; only rank 0 uses the other fields. */
typedef struct {
    int64_t next; /* they decide after this step at the latest */
    bool worked;  /* they decide now, because they have evaluated, sampled or saved */
    /* Rank 0 estimates the duration of a step from what it has noted at the last decision. last:
     * the time (seconds_now()). last_step: how many steps the host had queued. reached: how many
     * records had been read. */
    double last;
    int64_t last_step, reached;
} RunStops;

/* Where the run writes its output. */
typedef struct {
    Metrics *metrics;  /* writes to the console and to metrics.jsonl; NULL except on rank 0 */
    FILE *log;         /* this rank's log with --log-ranks; else NULL */
    bool console_lost; /* standard output cannot be written; a warning was printed */
} RunOutput;

/* The config and the description of the machine, which every checkpoint stores. */
typedef struct {
    char *config_text, *machine;
} RunOrigin;

typedef struct {
    /* Shared by all ranks, which only read them. */
    RunArguments arguments;
    const Config *config;
    DataSet data;
    double started; /* seconds_now() when the program started the run */
    BatchJob job;
    ExitCode no_data; /* why a dry run uses random tokens; EXIT_OK: it does not */

    Comm *world; /* of all ranks; NULL before they start */
    /* true: this is rank 0, which holds the folder's lock, writes all files except the other ranks'
     * parts of checkpoints, handles signals and prints. On other ranks only path, state and attempt
     * of `folder` are set. */
    bool lead;
    MemoryPlan plan;
    RunFolder folder;
    RunInit init;
    Trainer trainer;

    RunOrigin origin;
    RunRecords records;
    RunClock clock;
    RunSaving saving;
    RunBest best;
    RunWork work;
    RunStops stops;
    RunOutput output;
} Run;

/* ---- opening --------------------------------------------------------------------------------- */

/* Fills arguments from argv. Returns false if help, the version or an error message about the
 * command line has been printed and the program must exit with *code. */
bool run_arguments(RunArguments *arguments, int argc, char **argv, int *code);
void run_arguments_free(RunArguments *arguments);
/* Reads and checks the config. */
void run_configure(Run *run, const RunArguments *arguments);
/* Opens the data; prepares them first if necessary. The data determine the vocabulary, so the
 * config is final after this call. */
void run_open_data(Run *run);
/* Starts arguments.ranks ranks and calls `rank` on each. Rank 0 gets `run` itself, and the others a
 * copy. Then frees what the ranks share and returns rank 0's exit code. */
int run_on_ranks(Run *run, int (*rank)(Run *run));
/* Opens the device and prints the model, the batch and the memory that the run needs. Ends the
 * program (EXIT_NO_MEMORY) if they do not fit. Allocates and writes nothing for the run yet. */
void run_plan(Run *run);
/* Does the dry run: allocates everything and trains one micro-batch on the real device. Returns the
 * exit code. If random tokens replaced missing or damaged data, this is the code for that error. */
int run_dry(Run *run);
/* Chooses, creates and locks the folder. */
void run_choose_folder(Run *run);
/* Prints the final figures and the sample of a run that was already finished. */
int run_show_result(Run *run);
/* Allocates the trainer, reads the checkpoint to resume from, and writes the run's description to
 * its folder. */
void run_open_trainer(Run *run);

/* ---- the loop -------------------------------------------------------------------------------- */

/* If the run saves only at its end, tests whether a save would succeed. If the earlier attempt
 * saved its last step, but was stopped before the evaluation or the sample that was due there,
 * makes them now. */
void run_catch_up(Run *run);
/* Reports after a step: writes its records to metrics.jsonl, updates the live line, and prints a
 * row of the table if one is due. */
void run_report(Run *run);
/* If a record requires that the run goes back to a checkpoint (health.policy), goes back and
 * returns true on all ranks. All ranks call it after each step. */
bool run_goes_back(Run *run);
/* Returns whether the run has made its last step: train_steps is reached, or the last eval.patience
 * evaluations brought no lower loss. All ranks get the same result. */
bool run_is_over(const Run *run);
void run_save_if_due(Run *run);
void run_evaluate_if_due(Run *run);
void run_sample_if_due(Run *run);
/* Warns once if standard output cannot be written. The run continues, because metrics.jsonl in its
 * folder has every figure. */
void run_check_console(Run *run);

/* ---- ends ------------------------------------------------------------------------------------ */

/* Ends the run after a request to stop: saves a checkpoint and returns EXIT_REQUEUE, or the exit
 * code of the failed save. */
int run_leave(Run *run);
/* Ends the run after its last step: saves, evaluates, samples, writes the result and returns the
 * exit code. If a stop is requested meanwhile, calls run_leave instead of finishing, and returns
 * its exit code. */
int run_finish(Run *run);

#endif
