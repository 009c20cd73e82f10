/* rank_runs.h -- stores a list of ranks as runs of evenly spaced ranks. A group of a grid is a
 * single run, however many ranks it has. */
#ifndef PARALLEL_COMM_RANK_RUNS_H
#define PARALLEL_COMM_RANK_RUNS_H

#include "parallel/comm/comm.h"

#include <stdint.h>

/* The ranks first, first + stride, first + 2 x stride, ...: `count` of them. */
typedef struct {
    int32_t first, stride, count;
} RankRun;

/* Writes the first run of the list rank[0..n), n > 0, to *run. Returns how many ranks of the list
 * this run contains. */
int rank_run_next(const int *rank, int n, RankRun *run);
/* Writes rank[0..n), in the order given, as runs to run[0..room). Returns the number of runs, at
 * most n / 2 rounded up. If this is more than `room`, the last runs are not written. */
int rank_runs(const int *rank, int n, RankRun *run, int room);

/* Writes the world ranks of all members of a group to rank[0..comm->size); `own` is this member's
 * world rank. All members call this function, with the same `most`. In a group of more than `most`
 * members whose ranks are evenly spaced, each member computes the list instead of gathering it from
 * all others. The collectives that it uses are not counted. */
void rank_runs_gather(Comm *comm, int own, int most, int *rank);

/* Returns rank number i of the run. */
static inline int rank_run_at(const RankRun *run, int i)
{
    return run->first + i * run->stride;
}

#endif
