/* rank_ends.h -- a world of thread ranks in a child process, for tests of how the process ends. */
#ifndef TESTS_SUPPORT_GRID_RANK_ENDS_H
#define TESTS_SUPPORT_GRID_RANK_ENDS_H

#include "tests/support/grid/thread_ranks.h"

#include <sys/types.h>

/* What a world of ranks does; how its process ends. */
typedef struct {
    const char *name;
    RankBody body;
    int ranks, code;
    const char *said[4]; /* parts of what comes on stderr */
} RankEnd;

/* Starts the ranks in a child, with no wait longer than `timeout` seconds (0: for ever); what they
 * say can be read from *said. rank_end_check is due. */
pid_t rank_end_start(const RankEnd *end, double timeout, void *context, int *said);
/* Waits for that child, and fails the test if it does not end as it should. */
void rank_end_check(const RankEnd *end, pid_t child, int said);
/* Both. */
void rank_end_expect(const RankEnd *end, double timeout, void *context);

#endif
