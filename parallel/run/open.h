/* open.h -- what a run's opening and a dry run have in common. */
#ifndef PARALLEL_RUN_OPEN_H
#define PARALLEL_RUN_OPEN_H

#include "parallel/report/pace.h"
#include "parallel/run/run.h"

/* Allocates and warms up the trainer over the run's data, and prints the device and the windows.
 * `config` is the planned one, or a dry run's of one micro-batch. Ends the program where the data
 * are damaged (EXIT_DAMAGED) or memory is refused (EXIT_NO_MEMORY). All ranks call it. */
void run_allocate_trainer(Run *run, const Config *config);
/* What will take time besides steps of so many micro-batches, as far as the config says. */
Pace run_pace(const Run *run, int64_t accumulation);

#endif
