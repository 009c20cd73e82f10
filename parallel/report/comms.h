/* comms.h -- what went between ranks, as comms_logger prints it. */
#ifndef PARALLEL_REPORT_COMMS_H
#define PARALLEL_REPORT_COMMS_H

#include "parallel/comm/comm.h"

#include <stdio.h>

/* Of rank 0: prints a line for each operation and type that it has called in these groups: calls,
 * elements and bytes since the start (of an all-gather or reduce-scatter those of the whole tensor,
 * of a message those of one side). Groups of one rank, in which nothing moves, are left out. */
void comms_print(const Comm *const *group, int n_groups);
/* The same as a JSON list of objects. */
void comms_print_json(const Comm *const *group, int n_groups, FILE *to);

#endif
