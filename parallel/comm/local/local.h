/* local.h -- the transport between ranks that are threads of one process and share memory: ranks on
 * CPUs, and ranks that share one GPU. Ranks with a GPU each are threads only in tests and with
 * --no-processes. NCCL then carries tensors in device memory, and this transport only the host
 * calls.
 *
 * Each rank sums its part of all ranks' tensors by reading the peers' memory (op_sum, in rank
 * order), so results do not depend on which rank arrives first. On a device with streams, a host
 * waits only for other hosts, and the streams wait for each other's events. Waiting threads
 * sleep. */
#ifndef PARALLEL_COMM_LOCAL_LOCAL_H
#define PARALLEL_COMM_LOCAL_LOCAL_H

#include "parallel/comm/comm.h"

typedef struct LocalWorld LocalWorld;

/* Largest number of ranks that are threads. */
enum { LOCAL_MAX_RANKS = 64 };

/* Creates the shared state of `size` ranks, at most LOCAL_MAX_RANKS. No wait lasts longer than
 * `timeout` seconds (0: no limit): after that the rank reports what it waits for and which ranks
 * have not arrived, and ends the program (EXIT_HANG). If a rank closes its communicator while
 * others wait for it, a waiting rank ends the program with EXIT_PEER_LOST. */
LocalWorld *local_world_create(int size, double timeout);
/* Returns the communicator of `rank`. The rank's thread uses it and must close it. */
Comm local_world_join(LocalWorld *world, int rank);
/* Frees the world. All ranks must have closed their communicators. */
void local_world_destroy(LocalWorld *world);

#endif
