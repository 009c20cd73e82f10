/* open.h -- functions that the parts of opening a run share, and that a training run shares with a
 * dry run: allocating the trainer, and estimating how long the run will take. */
#ifndef PARALLEL_RUN_OPEN_H
#define PARALLEL_RUN_OPEN_H

#include "parallel/report/pace.h"
#include "parallel/run/run.h"

/* Returns the options of the command line that concern the run's folder. */
RunRequest run_request(const Run *run);
/* Allocates and warms up the trainer for the run's data, and prints the device and the number of
 * windows. `config` is the run's config or, for a dry run, its variant with one micro-batch. Ends
 * the program if the data are damaged (EXIT_DAMAGED) or an allocation fails (EXIT_NO_MEMORY). All
 * ranks call it. */
void run_allocate_trainer(Run *run, const Config *config);
/* Returns how often the run evaluates, samples and saves, and estimates the cost of an evaluation
 * in steps of `accumulation` micro-batches. */
Pace run_pace(const Run *run, int64_t accumulation);

#endif
