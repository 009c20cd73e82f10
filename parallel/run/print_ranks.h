/* print_ranks.h -- what the start of a run prints of its ranks: the grid, the threads, ZeRO's stage
 * and the schedule of a pipeline. */
#ifndef PARALLEL_RUN_PRINT_RANKS_H
#define PARALLEL_RUN_PRINT_RANKS_H

#include "parallel/run/run.h"

/* What a pipeline does in a step: "1f1b, 8 micro-batches, bubble 11 %". The bubble is the share of
 * a step in which a stage waits for the others, idle / (idle + work), where stages are equal and a
 * backward takes twice as long as a forward. For gpipe and 1f1b it is (stages - 1) /
 * (micro-batches + stages - 1). Returns `text`. */
char *run_schedule_text(const Config *config, char *text, size_t n);
/* Compares the schedules of all stages with each other, which no stage can do alone: schedules that
 * do not fit would let stages wait for each other for ever. A bug ends the program. */
void run_check_schedules(const Config *config);
/* One line on the ranks and how they share the work, where there are several; first compares what
 * they compute with (EXIT_CONFIG where it differs). All ranks call it. */
void run_print_ranks(Run *run);

#endif
