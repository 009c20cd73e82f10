/* print_ranks.h -- prints how a starting run uses its ranks: the grid, the threads, the ZeRO stage
 * and the pipeline schedule. Also checks that schedule. */
#ifndef PARALLEL_RUN_PRINT_RANKS_H
#define PARALLEL_RUN_PRINT_RANKS_H

#include "parallel/run/run.h"

/* Describes the pipeline schedule of a step in text[0..n), such as "1f1b, 8 micro-batches, bubble
 * 11 %", and returns `text`. The bubble is the share of a step in which a stage is idle,
 * idle / (idle + work), if all stages are equally fast and a backward pass takes twice as long as a
 * forward pass. For gpipe and 1f1b it is (stages - 1) / (micro-batches + stages - 1). */
char *run_schedule_text(const Config *config, char *text, size_t n);
/* Checks that the schedules of all stages match: each send has its receive, in an order without
 * deadlock. Ends the program if they do not, because that is a bug. One rank checks all stages,
 * because a single stage's schedule does not reveal a mismatch. */
void run_check_schedules(const Config *config);
/* Prints one line about the ranks and how they divide the work, if there are several. First ends
 * the program (EXIT_CONFIG) if the ranks do not all compute on the same kind of device. All ranks
 * call it. */
void run_print_ranks(Run *run);

#endif
