/* rank_list.h -- formats a list of ranks, and their machines, for an error message. */
#ifndef PARALLEL_COMM_RANK_LIST_H
#define PARALLEL_COMM_RANK_LIST_H

#include <stddef.h>

/* Buffer size that is enough for any list of ranks. */
enum { RANK_LIST_BYTES = 512 };

/* Writes one or more ranks, in the order given, as "rank 3", "ranks 3, 4" or "ranks 0, 3-58". Up to
 * 64 ranks are all listed; of more ranks, only the first ones: "ranks 0, 3-58, 64 and 65000 more".
 * Returns text. */
const char *rank_list(const int *rank, int ranks, char *text, size_t n);

/* A function that returns the name of a rank's machine. name NULL: all ranks are on one machine,
 * and messages name none. */
typedef struct {
    const char *(*name)(const void *of, int rank);
    const void *of;
} RankHosts;

/* Buffer size that is enough for any list of machines. */
enum { RANK_HOSTS_BYTES = 256 };

/* Writes the machines of these ranks, each once, as "on n1, n2"; of more than three, only the first
 * ones: "on n1, n2, n3 and others". "" if hosts->name is NULL. Returns text. */
const char *rank_hosts(const RankHosts *hosts, const int *rank, int ranks, char *text, size_t n);

#endif
