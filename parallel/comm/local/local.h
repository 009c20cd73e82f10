/* local.h -- ranks as threads of one process: their communicators meet in shared memory.
 *
 * Each rank sums its part of all ranks' tensors where they lie (op_sum, rank order), so results do
 * not depend on who comes first. On a device with streams the host only meets the other hosts: the
 * streams wait for each other's events. Waiting threads sleep. */
#ifndef PARALLEL_COMM_LOCAL_LOCAL_H
#define PARALLEL_COMM_LOCAL_LOCAL_H

#include "parallel/comm/comm.h"

typedef struct LocalWorld LocalWorld;

/* The meeting place of `size` ranks, at most COMM_MAX_RANKS. No wait is longer than `timeout`
 * seconds (0: for ever): then the rank says what it waits for and who has not come, and ends the
 * program (EXIT_HANG). A rank that closes its communicator while others wait for it ends it with
 * EXIT_PEER_LOST. */
LocalWorld *local_world_create(int size, double timeout);
/* The communicator of `rank`, to be used by its thread and closed by it. */
Comm local_world_join(LocalWorld *world, int rank);
/* Once all ranks have closed theirs. */
void local_world_destroy(LocalWorld *world);

#endif
