/* seen_run.h -- runs the whole program in a child process and collects everything that can be
 * observed from outside, for tests of whether an option has an effect. */
#ifndef TESTS_SUPPORT_TRAINER_SEEN_RUN_H
#define TESTS_SUPPORT_TRAINER_SEEN_RUN_H

#include "tests/support/files/scratch.h"

#include <stdbool.h>

enum { SEEN_LOSSES = 64 };

typedef struct {
    int code; /* exit code; 128 + N: ended by signal N */
    int n_losses;
    double losses[SEEN_LOSSES]; /* training losses with all digits; NAN if not a number */
    char *samples;              /* content of samples.txt */
    char *plan;                 /* all figures of the memory plan, in bytes */
    char *evaluations;          /* step and loss of each evaluation, all digits */
    char *files;                /* names in the run's folder, and the targets of each evaluation */
    char *wire;                 /* lines of comms_logger about the groups of the grid */
    char *console;              /* stdout and stderr, with runs of blanks as one */
} Seen;

/* Setup of a group of tests: enters a scratch folder (leave_scratch leaves it) with texts, token
 * shards and the config base.json. */
int seen_folder_setup(void **state);

/* Runs `./train base.json --set SETS[0] ... --set MORE[0] ...` on `ranks` ranks (0: without
 * --ranks) in the folder RUN, which is removed first. Both lists end with NULL; `more` may be
 * NULL. */
void seen_run(Seen *out, const char *run, int ranks, const char *const *sets,
              const char *const *more);
/* Does the same, resuming from the checkpoint in the folder `from`. */
void seen_resume(Seen *out, const char *run, const char *from, int ranks, const char *const *sets,
                 const char *const *more);
void seen_free(Seen *seen);

/* Returns whether two runs had the same losses, bit for bit. */
bool seen_same_losses(const Seen *a, const Seen *b);

#endif
