/* seen_run.h -- runs of the whole program in a child process, and what can be seen from
 * outside: for tests that ask whether an option does anything. */
#ifndef TESTS_SUPPORT_TRAINER_SEEN_RUN_H
#define TESTS_SUPPORT_TRAINER_SEEN_RUN_H

#include "tests/support/files/scratch.h"

#include <stdbool.h>

enum { SEEN_LOSSES = 64 };

typedef struct {
    int code; /* exit code; 128 + N: ended by signal N */
    int n_losses;
    double losses[SEEN_LOSSES]; /* of training, every digit; NAN where the number was none */
    char *samples;              /* all of samples.txt */
    char *plan;                 /* every figure of the memory plan, in bytes */
    char *evaluations;          /* the step and loss of each, every digit */
    char *files;   /* names in the run's folder, and how much each evaluation looked at */
    char *wire;    /* lines of comms_logger on what the data-parallel ranks told each other */
    char *console; /* both streams, runs of blanks as one */
} Seen;

/* Setup of a group of tests: goes into a folder (leave_scratch leaves it) with texts, token shards
 * and the config base.json. */
int seen_folder_setup(void **state);

/* `./train base.json --set SETS[0] ... --set MORE[0] ...`, either list ending with NULL (`more` may
 * be NULL), on so many ranks (0: without --ranks), in the folder RUN, which is removed first. */
void seen_run(Seen *out, const char *run, int ranks, const char *const *sets,
              const char *const *more);
/* The same from the checkpoint in the folder `from`. */
void seen_resume(Seen *out, const char *run, const char *from, int ranks, const char *const *sets,
                 const char *const *more);
void seen_free(Seen *seen);

/* Whether two runs had the same losses, bit for bit. */
bool seen_same_losses(const Seen *a, const Seen *b);

#endif
