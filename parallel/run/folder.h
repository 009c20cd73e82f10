/* folder.h -- out/NAME: where a run keeps all that a rerun needs, and who may write there.
 *
 * RUN/config.json (resolved, with origins), machine.json, metrics.jsonl, samples.txt, result.json
 * (once finished), checkpoints/, lock (folder_lock.h), logs/ with --log-ranks. */
#ifndef PARALLEL_RUN_FOLDER_H
#define PARALLEL_RUN_FOLDER_H

#include "configs/config.h"
#include "model/core/check.h"
#include "parallel/run/folder_lock.h"
#include "parallel/run/result.h"

typedef enum { RUN_NEW, RUN_RESUMED, RUN_FINISHED } RunState;

typedef struct {
    char *path, *stop; /* the folder; RUN/STOP */
    RunState state;
    FolderLock lock;
    int attempt;      /* 0 for the first start, then one more each time */
    RunResult result; /* RUN_FINISHED: what it has come to */
} RunFolder;

typedef struct {
    const char *out;   /* --out DIR, or NULL: out/NAME, out/NAME-2, ... */
    bool never_resume; /* --resume never: a new folder; with --out an existing run is refused */
    bool allow_config_change; /* --allow-config-change */
} RunRequest;

/* Chooses, creates and locks the folder. Without --out: the first of out/NAME, out/NAME-2, ... that
 * is new or was started with the same numbers-changing config. With --out: differences to the
 * stored config are logged as harmless, changing the run (refused unless allowed; more train_steps
 * is one of these) or impossible (refused). Nothing is overwritten. False with a sentence and an
 * exit code (EXIT_CANNOT_CREATE for a lock that is held or a folder that cannot be made,
 * EXIT_CONFIG for a refused difference). */
bool run_folder_open(RunFolder *run, const Config *config, const RunRequest *request, char *err,
                     size_t n, ExitCode *code);
/* Writes config.json and machine.json (once the vocabulary is known); `machine` is JSON. False with
 * a sentence. */
bool run_folder_describe(const RunFolder *run, const Config *config, const char *machine, char *err,
                         size_t n);
/* Marks the run finished: result.json, atomically. False with a sentence. */
bool run_folder_finish(const RunFolder *run, const RunResult *result, char *err, size_t n);
/* The config that is stored in a run folder; NULL with a sentence. The caller frees. Public
 * for tests: nobody else outside folder.c asks. */
const Config *run_folder_config(const char *path, char *err, size_t n);
/* True if somebody asked for a stop by creating RUN/STOP. */
bool run_folder_stop_asked(const RunFolder *run);
/* Whether the folder is still this run's, asked before something is added to it: folder_lock_hold.
 */
bool run_folder_hold(RunFolder *run, char *err, size_t n);
void run_folder_close(RunFolder *run);

#endif
