/* run_fixture.h -- starts small runs of the whole program, interrupts them at a chosen point of
 * their work, and reads the files that they leave. */
#ifndef TESTS_SUPPORT_TRAINER_RUN_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_RUN_FIXTURE_H

#include "tests/support/files/scratch.h"
#include "tests/support/trainer/train_child.h"

/* Setup of a group of tests: enters a scratch folder (leave_scratch leaves it) with a text and the
 * config tiny.json of seven steps. Every second step is followed by an evaluation, a sample and a
 * save; all checkpoints are kept. */
int run_fixture_setup(void **state);
/* Returns whether the file exists in it. */
bool is_there(const char *name);
/* Fails unless `text` contains `what`. */
void says(const char *text, const char *what);

/* How a child process is run, and what is done to it at which point: `act` is called before piece
 * `at` of work of this kind, in round number `round` (from 0) of such work. The first piece of a
 * sample has number 1. If `act` is NULL, nothing is done. */
typedef struct {
    WorkKind kind;
    int64_t round, at;
    void (*act)(Run *run);
    bool each;           /* also calls it in all later rounds */
    void (*first)(void); /* called first in the child; or NULL */
    int columns;         /* width of the terminal; 0: a pipe */
    bool dry;            /* passes --dry-run */
    int ranks;           /* passes --ranks; 0: does not */
    /* rank on which `act` is called; -1: all, before each piece `at`, and rounds are not counted */
    int rank;
    int64_t rounds; /* rounds so far */
} Disturbance;
extern Disturbance disturbance;

void ask_by_signal(Run *run); /* raises SIGTERM */
void ask_by_file(Run *run);   /* creates the file RUN/STOP */
void interrupt_twice(Run *run);
/* Prints "more than 3 other threads: yes; 0 hear". The first part says whether there are more than
 * three threads besides the main one. The number counts those of them that do not block all signals
 * that end a run. The main thread must block none. */
void count_who_hears(Run *run);

/* Runs the config in the folder RUN with "key=value" settings (NULL, or ended by NULL), and fails
 * unless it exits with `code`. Returns what it printed; the caller frees it. */
char *run_expecting(const char *run, const char *const *sets, int code);

/* Does the same for any command of the program; `arguments` end with NULL. */
char *command_expecting(const char *const *arguments, int code);

/* Returns the lines of RUN/metrics.jsonl of one event, without the parts that differ between any
 * two runs; the caller frees it. */
char *events(const char *run, const char *event);
int lines_of(const char *run, const char *event);
/* Fails unless both runs have the same steps, evaluations and samples. */
void same_runs(const char *a, const char *b);
/* Fails unless RUN has exactly one checkpoint, of this step. */
void only_checkpoint(const char *run, int64_t step);

#endif
