/* busy_ranks.h -- runs collectives and messages of ranks on CUDA devices on three streams at the
 * same time, and compares the results with simple loops. */
#ifndef TESTS_SUPPORT_GRID_BUSY_RANKS_H
#define TESTS_SUPPORT_GRID_BUSY_RANKS_H

#include <stdbool.h>

enum { BUSY_MOST_RANKS = 4 };

/* Fails the test if a number is wrong. The ranks share one GPU or, with `each`, have one GPU each,
 * connected by NCCL. */
void busy_ranks(int ranks, bool each);

#endif
