/* rank_list.h -- formats a list of ranks for an error message. */
#ifndef PARALLEL_COMM_RANK_LIST_H
#define PARALLEL_COMM_RANK_LIST_H

#include <stddef.h>

/* Buffer size that is enough for any list of ranks. */
enum { RANK_LIST_BYTES = 512 };

/* Writes one or more ranks, in the order given, as "rank 3", "ranks 3, 4" or "ranks 0, 3-58". Up to
 * 64 ranks are all listed; of more, only the beginning: "ranks 0, 3-58, 64 and 65000 more". Returns
 * text. */
const char *rank_list(const int *rank, int ranks, char *text, size_t n);

#endif
