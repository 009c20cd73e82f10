/* launched_ranks.h -- starts ranks with launch_ranks in a child process, and checks how they end.
 * Ranks that are threads and ranks that are processes must end alike. */
#ifndef TESTS_SUPPORT_GRID_LAUNCHED_RANKS_H
#define TESTS_SUPPORT_GRID_LAUNCHED_RANKS_H

#include "parallel/grid/launch.h"

#include <stddef.h>

enum { LAUNCHED_RANKS = 3, LAUNCHED_LONGEST = 30 /* seconds of a wait that should end before */ };

/* A launch of that many ranks, for a child process (child.h). */
typedef struct {
    LaunchBody body;
    LaunchOptions options;
    void (*before)(void); /* called in the child before it starts the ranks; or NULL */
} LaunchedRanks;
/* In the child: launches the ranks and exits with their code, if this is not EXIT_MISSING. If it
 * is, fails with the message "after the ranks". `context` is a LaunchedRanks. */
void launched_ranks(void *context);
/* Does this in a child process. Returns its exit code, or minus the signal that ended it, and its
 * output. */
int launched_ranks_end(LaunchBody body, const LaunchOptions *options, char *text, size_t n);

/* A body that waits for all ranks at a barrier, and returns EXIT_MISSING. */
int launched_wait(Comm *world, void *context);

/* A body in which rank 0 writes "r" to stdout when all ranks are ready, and returns the number of
 * the signal that the launcher passes on to it. The other ranks wait for rank 0, and return 0. */
int launched_wait_for_signal(Comm *world, void *context);
/* A body that writes "r" in the same way and never returns. */
int launched_wait_for_ever(Comm *world, void *context);
/* The same, but rank 0 is then stopped. No rank is in a call that waits for another one. */
int launched_stop_the_first(Comm *world, void *context);
/* A body in which rank 0 is killed, while the others wait for it. */
int launched_kill_the_first(Comm *world, void *context);

/* Checks the ends that are the same for threads and for processes: all ranks return, one or each of
 * them fails, or all fail together. */
void launched_ends_alike(bool processes);

#endif
