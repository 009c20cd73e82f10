/* run_fixture.h -- small runs of the whole program, disturbed at a certain piece of their work, and
 * what they leave. */
#ifndef TESTS_SUPPORT_TRAINER_RUN_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_RUN_FIXTURE_H

#include "tests/support/files/scratch.h"
#include "tests/support/trainer/train_child.h"

/* Setup of a group of tests: goes into a folder (leave_scratch leaves it) with a text and the
 * config tiny.json of seven steps; it is evaluated, sampled and saved at every second one, and all
 * checkpoints stay. */
int run_fixture_setup(void **state);
/* Whether the file is in it. */
bool is_there(const char *name);
/* Fails unless `what` is in the text. */
void says(const char *text, const char *what);

/* Where the child runs, what happens in it, and when: before piece `at` of the work of this kind,
 * in the round-th (from 0) work of the kind; a sample's first piece is 1. act NULL: nothing. */
typedef struct {
    WorkKind kind;
    int64_t round, at;
    void (*act)(Run *run);
    bool each;           /* in every round from that one on */
    void (*first)(void); /* called in the child before all; or NULL */
    int columns;         /* of the terminal; 0: a pipe */
    bool dry;            /* --dry-run */
    int ranks;           /* --ranks; 0: without */
    int rank;            /* whose work it is */
    int64_t rounds;      /* seen so far */
} Disturbance;
extern Disturbance disturbance;

void ask_by_signal(Run *run); /* SIGTERM */
void ask_by_file(Run *run);   /* RUN/STOP */
void interrupt_twice(Run *run);
/* Prints "more than 3 other threads: yes; 0 hear": how many threads there are beside the main one,
 * and how many of these hear a signal that ends a run. The main thread must hear all. */
void count_who_hears(Run *run);

/* Runs the config into RUN, under "key=value" sets (NULL, or ended by NULL), and fails unless it
 * ends with the code. Returns what it said; the caller frees. */
char *run_expecting(const char *run, const char *const *sets, int code);

/* The same for any command of the program; arguments end with NULL. */
char *command_expecting(const char *const *arguments, int code);

/* The lines of RUN/metrics.jsonl of one event, without what differs between any two runs; the
 * caller frees. */
char *events(const char *run, const char *event);
int lines_of(const char *run, const char *event);
/* Fails unless both runs have the same steps, evaluations and samples. */
void same_runs(const char *a, const char *b);

#endif
