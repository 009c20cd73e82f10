/* health.h -- what a run does about spikes of its loss and about updates that are skipped: warns,
 * and ends the run, as health.policy and max_consecutive_skipped_steps say; rollback.h goes back.
 * The table of all cases is in the README of this folder. */
#ifndef PARALLEL_RUN_HEALTH_H
#define PARALLEL_RUN_HEALTH_H

#include "parallel/run/run.h"

/* Takes notice of the next step's record: warns about a spike and about a skipped update. Stores
 * the first record that ends the run, or lets it go back, in records.event. A step's record is the
 * same on all ranks. */
void health_note(Run *run, const StepRecord *record);
/* Returns whether the run goes back to a checkpoint because of records.event instead of ending:
 * health.policy says so, and it has not gone back too often. */
bool health_goes_back(const Run *run);
/* Writes why records.event ends the run or lets it go back. */
void health_say_why(const Run *run, char *out, size_t n);
/* Returns the first of the steps that were skipped in a row up to records.event, or its step. */
int64_t health_first_step(const Run *run);
/* Ends the run (EXIT_DIVERGED) with a message about records.event; `none_before`: it would go back
 * to a checkpoint, but there is none before the event. All ranks call it. */
_Noreturn void health_end(Run *run, bool none_before);
/* Sets records.last to the totals of a state that was loaded; the loss is not known. */
void health_take_up(Run *run, const StepState *state);
/* Prints at the end of a run how many updates and tokens were skipped, the spikes and the
 * rollbacks; nothing if there were none. */
void health_print(const Run *run);

#endif
