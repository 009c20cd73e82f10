/* train_child.h -- runs `./train ARGUMENTS` in a child process of a test. The test may have a
 * function called between the opening of the run and its first step, and may give the child a
 * pseudo-terminal. */
#ifndef TESTS_SUPPORT_TRAINER_TRAIN_CHILD_H
#define TESTS_SUPPORT_TRAINER_TRAIN_CHILD_H

#include "parallel/run/between_steps.h"

typedef struct {
    int (*program)(int argc, char **argv); /* runs this instead of the whole program; or NULL */
    const char *folder;                    /* working folder of the child; NULL: this one */
    int columns;                           /* width of its terminal; 0: a pipe */
    /* Called in the child on each rank when the run is open; or NULL. */
    void (*opened)(Run *run);
    void (*first)(void); /* called first in the child; or NULL */
} ChildPlace;

typedef struct {
    int code;   /* exit code; 128 + N: ended by signal N */
    char *text; /* stdout and stderr, without NULs; the caller frees */
} ChildResult;

/* Runs it until it ends; `arguments` end with NULL. */
ChildResult train_in_child(const ChildPlace *place, const char *const *arguments);

/* A run of a config: `./train CONFIG --out RUN --ranks RANKS --resume RESUME --dry-run --set
 * SETS[0] ...`. */
typedef struct {
    const char *config;
    const char *run;    /* argument of --out; NULL: none */
    int ranks;          /* argument of --ranks; 0: none */
    const char *resume; /* argument of --resume; NULL: none */
    bool dry;
    const char *const *sets, *const *more; /* "key=value", ended by NULL; or NULL */
} ChildRun;
ChildResult train_config_in_child(const ChildPlace *place, const ChildRun *run);

#endif
