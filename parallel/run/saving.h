/* saving.h -- the saves of a run. */
#ifndef PARALLEL_RUN_SAVING_H
#define PARALLEL_RUN_SAVING_H

#include "parallel/run/run.h"

/* Waits for a pending save, then saves and commits a checkpoint synchronously, unless this step is
 * saved already. If it fails, prints a warning, stores the exit code in saving.error, and lets the
 * run continue. All ranks call it. */
void run_save(Run *run);
/* Returns the step of the pending asynchronous save, or -1. */
int64_t run_saving_step(const Run *run);
/* Waits until the pending save has ended, and reports it. All ranks call it, also before they end
 * together. */
void run_await_save(Run *run);
/* Advances the pending save, if there is one, and reports it if it has ended. `meet`: true if all
 * ranks call it together. If false, it does not communicate, so the save cannot end in this call.
 */
void run_advance_save(Run *run, bool meet);
/* If the run saves only at its end, writes a checkpoint and removes it again, as a test: if only
 * the save at the end failed, all steps would be lost. Ends the program if the test fails. All
 * ranks call it. */
void run_try_save(Run *run);
/* Returns true if the newest update was applied and its loss is finite and not far above that of
 * uniform guessing. Otherwise returns false and writes the reason to why[0..n). */
bool run_is_healthy(const Run *run, char *why, size_t n);
/* If `record` is of the step that is being saved, stores the health of that step. To be called with
 * each record, after health_note. */
void run_note_saved_health(Run *run, const StepRecord *record);

#endif
