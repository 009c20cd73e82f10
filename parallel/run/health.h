/* health.h -- reacts to spikes of the loss and to skipped updates: warns, or ends the run,
 * according to health.policy and max_consecutive_skipped_steps; rollback.h goes back to a
 * checkpoint. SPIKES.md has a table of all cases. */
#ifndef PARALLEL_RUN_HEALTH_H
#define PARALLEL_RUN_HEALTH_H

#include "parallel/run/run.h"

/* Processes the record of the next step: warns about a spike and about a skipped update. Stores the
 * first record that ends the run, or makes it go back, in records.event. All ranks store the same
 * one, because a step's record is the same on all ranks. */
void health_note(Run *run, const StepRecord *record);
/* Returns whether the run goes back to a checkpoint because of records.event instead of ending:
 * health.policy is "rollback", and it has not gone back too often. */
bool health_goes_back(const Run *run);
/* Writes why records.event ends the run or makes it go back. */
void health_say_why(const Run *run, char *out, size_t n);
/* Returns the first step of the uninterrupted series of skipped updates that ends with
 * records.event. If no update was skipped, returns the step of records.event. */
int64_t health_first_step(const Run *run);
/* Ends the run (EXIT_DIVERGED) with a message about records.event; `none_before`: the run was to go
 * back to a checkpoint, but has none from before the event. All ranks call it. */
_Noreturn void health_end(Run *run, bool none_before);
/* Sets records.last to the totals of a state that was loaded from a checkpoint. Such a state has no
 * loss, so the record's loss is NaN. */
void health_take_up(Run *run, const StepState *state);
/* Prints at the end of a run how many updates and tokens were skipped, the spikes and the
 * rollbacks; nothing if there were none. */
void health_print(const Run *run);

#endif
