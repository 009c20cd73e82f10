/* comparing.h -- compares replicas during a run, before saves and at intervals. */
#ifndef PARALLEL_RUN_COMPARING_H
#define PARALLEL_RUN_COMPARING_H

#include "parallel/run/run.h"

/* Compares what ranks hold in common (trainer/replicas.h), if checkpoint.compare_replicas is set
 * and there are several ranks. If they differ, ends the program on all ranks (EXIT_REPLICAS):
 * checkpoints stay as they are. run_save calls it first, inside its work. All ranks call it. */
void run_compare_replicas(Run *run);
/* Does the same between two saves, if the interval checkpoint.compare_interval is due. */
void run_compare_if_due(Run *run);

#endif
