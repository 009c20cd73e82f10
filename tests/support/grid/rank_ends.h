/* rank_ends.h -- runs ranks in a child process and checks how the process ends. */
#ifndef TESTS_SUPPORT_GRID_RANK_ENDS_H
#define TESTS_SUPPORT_GRID_RANK_ENDS_H

#include "tests/support/grid/thread_ranks.h"

#include <sys/types.h>

/* The code that the ranks run, and the expected exit code and messages of their process. */
typedef struct {
    const char *name;
    RankBody body;
    int ranks, code;
    const char *said[4]; /* texts that stderr must contain */
} RankEnd;

/* Starts the ranks in a child process; no wait of a rank is longer than `timeout` seconds (0:
 * without limit). Their output can be read from *said. Call rank_end_check afterwards. */
pid_t rank_end_start(const RankEnd *end, double timeout, void *context, int *said);
/* Waits for that child, and fails the test if it does not end as expected. */
void rank_end_check(const RankEnd *end, pid_t child, int said);
/* Does both. */
void rank_end_expect(const RankEnd *end, double timeout, void *context);

#endif
