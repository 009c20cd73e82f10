/* comms.h -- prints how much data was sent between ranks, for the section comms_logger of the
 * config. */
#ifndef PARALLEL_REPORT_COMMS_H
#define PARALLEL_REPORT_COMMS_H

#include "parallel/comm/comm.h"

#include <stdio.h>

/* Prints one line for each group, operation and dtype of rank 0's calls: number of calls, elements
 * and bytes since the start. An all-gather or reduce-scatter counts the whole tensor; a message
 * counts what this rank sends or receives. Groups of one rank are omitted, because they send
 * nothing. */
void comms_print(const Comm *const *group, int n_groups);
/* Prints the same data as a JSON list of objects. */
void comms_print_json(const Comm *const *group, int n_groups, FILE *to);

#endif
