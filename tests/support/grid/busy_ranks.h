/* busy_ranks.h -- ranks on CUDA devices whose collectives and messages run on three streams at
 * once, beside the same in plain loops. */
#ifndef TESTS_SUPPORT_GRID_BUSY_RANKS_H
#define TESTS_SUPPORT_GRID_BUSY_RANKS_H

#include <stdbool.h>

enum { BUSY_MOST_RANKS = 4 };

/* Fails the test where a number is not what it must be. The ranks share one GPU, or have one
 * `each`, connected by NCCL. */
void busy_ranks(int ranks, bool each);

#endif
