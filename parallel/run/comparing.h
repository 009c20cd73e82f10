/* comparing.h -- compares replicas during a run, before saves and at intervals. */
#ifndef PARALLEL_RUN_COMPARING_H
#define PARALLEL_RUN_COMPARING_H

#include "parallel/run/run.h"

/* Compares the values that must be equal on several ranks (trainer/replicas.h), if
 * checkpoint.compare_replicas is set and there are several ranks. If they differ, ends the program
 * on all ranks (EXIT_REPLICAS): the state is not saved, but a pending save of an earlier step is
 * committed first. run_save calls it first, between run_begin_work and run_end_work. Returns how
 * often it compared (0 or 1). All ranks call it. */
Comparisons run_compare_replicas(Run *run);
/* Compares the replicas between two saves, if a comparison is due after this step according to
 * checkpoint.compare_interval. All ranks call it. */
void run_compare_if_due(Run *run);

#endif
