/* folder.h -- chooses, creates and locks the folder of a run (out/NAME), and writes its files.
 *
 * A run folder holds config.json (plain JSON, without derived values), config.origins.json (all
 * values and their origins), commands.txt, machine.json, metrics.jsonl, samples.txt, result.json
 * (once finished), checkpoints/, lock (see folder_lock.h) and, with --log-ranks, logs/. */
#ifndef PARALLEL_RUN_FOLDER_H
#define PARALLEL_RUN_FOLDER_H

#include "configs/config.h"
#include "model/core/check.h"
#include "parallel/run/folder_lock.h"
#include "parallel/run/result.h"

typedef enum { RUN_NEW, RUN_RESUMED, RUN_FINISHED } RunState;

typedef struct {
    char *path, *stop; /* path of the folder; path of RUN/STOP */
    RunState state;
    FolderLock lock;
    int attempt;      /* number of earlier starts in this folder; 0 for the first start */
    RunResult result; /* valid if state is RUN_FINISHED */
} RunFolder;

typedef struct {
    const char *out;   /* --out DIR; NULL: choose from out/NAME, out/NAME-2, ... */
    bool never_resume; /* --resume never: use a new folder; refuse an existing run in --out DIR */
    bool allow_config_change; /* --allow-config-change */
} RunRequest;

/* Chooses, creates and locks the folder. Overwrites nothing. Without --out it takes the first of
 * out/NAME, out/NAME-2, ... that does not exist yet, or that holds a run whose config has the same
 * values for all keys that affect the numbers. With --out it compares the config with the stored
 * one. Each difference is of one of three kinds: harmless (logged; a different train_steps is
 * harmless if no learning rate depends on it), a change of the training (refused without
 * --allow-config-change), or one that makes the weights unusable (always refused). On failure
 * returns false and sets err and *code: EXIT_CANNOT_CREATE if another process holds the lock or the
 * folder cannot be created, EXIT_CONFIG for a refused difference. */
bool run_folder_open(RunFolder *run, const Config *config, const RunRequest *request, char *err,
                     size_t n, ExitCode *code);
/* Returns the path of the folder that run_folder_open would now choose or fail on; NULL if it would
 * find none. Locks, writes and prints nothing. The caller frees the result. */
char *run_folder_chosen(const Config *config, const RunRequest *request);
/* Returns the stored config of the run that run_folder_open would continue now, or NULL if it would
 * start a new one. Locks, writes and prints nothing. The caller frees the result. */
const Config *run_folder_continued(const Config *config, const RunRequest *request);
/* Writes config.json, config.origins.json and machine.json; `machine` is JSON text. Renames the
 * result.json of a run that is made longer. To be called once the vocabulary is known. Returns
 * false and sets err on failure. */
bool run_folder_describe(const RunFolder *run, const Config *config, const char *machine, char *err,
                         size_t n);
/* Appends the command line of this start to commands.txt, after a comment line with the attempt,
 * the time, the working folder and the batch job (BatchJob.text; may be ""). Returns false and sets
 * err on failure. */
bool run_folder_note_command(const RunFolder *run, const char *command, const char *job, char *err,
                             size_t n);
/* Marks the run as finished by writing result.json atomically. Returns false and sets err on
 * failure. */
bool run_folder_finish(const RunFolder *run, const RunResult *result, char *err, size_t n);
/* Reads the config that is stored in a run folder. Returns NULL and sets err on failure; the caller
 * frees the result. Declared here only for tests; the program calls it only in folder.c. */
const Config *run_folder_config(const char *path, char *err, size_t n);
/* Returns true if RUN/STOP exists, which requests a stop. */
bool run_folder_stop_asked(const RunFolder *run);
/* Returns whether this run still holds the folder's lock; otherwise sets err. To be called before
 * the run adds files to the folder. See folder_lock_hold. */
bool run_folder_hold(RunFolder *run, char *err, size_t n);
/* Returns true if the folder was not renamed, removed or replaced; otherwise sets err. See
 * folder_lock_in_place. */
bool run_folder_in_place(const RunFolder *run, char *err, size_t n);
void run_folder_close(RunFolder *run);

#endif
