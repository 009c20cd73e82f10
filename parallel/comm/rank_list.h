/* rank_list.h -- ranks in a sentence. */
#ifndef PARALLEL_COMM_RANK_LIST_H
#define PARALLEL_COMM_RANK_LIST_H

#include <stddef.h>

/* Room for any list of a world's ranks. */
enum { RANK_LIST_BYTES = 320 };

/* "rank 3", "ranks 3, 4", "ranks 0, 3-58": one or more, in the order given. Returns text. */
const char *rank_list(const int *rank, int ranks, char *text, size_t n);

#endif
