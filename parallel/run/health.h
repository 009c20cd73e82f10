/* health.h -- what a run does about spikes of its loss and about updates that are skipped: warns,
 * and ends the run, as health.policy and max_consecutive_skipped_steps say. The table of all cases
 * is in the README of this folder. */
#ifndef PARALLEL_RUN_HEALTH_H
#define PARALLEL_RUN_HEALTH_H

#include "parallel/run/run.h"

/* Takes notice of the next step's record: warns about a spike and about a skipped update. Stores
 * the first record that ends the run in records.event. A step's record is the same on all ranks. */
void health_note(Run *run, const StepRecord *record);
/* Ends the run (EXIT_DIVERGED) with a message about records.event; `also` is a further sentence, or
 * "". All ranks call it. */
_Noreturn void health_end(Run *run, const char *also);
/* Sets records.last to the totals of a state that was loaded; the loss is not known. */
void health_take_up(Run *run, const StepState *state);
/* Prints how many steps and tokens were skipped, and the spikes, at the end of a run; nothing if
 * there were none. */
void health_print(const Run *run);

#endif
