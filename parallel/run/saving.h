/* saving.h -- the saves of a run. */
#ifndef PARALLEL_RUN_SAVING_H
#define PARALLEL_RUN_SAVING_H

#include "parallel/run/run.h"

/* Saves and commits a checkpoint, after a pending save, and waits for it. Does nothing if that was
 * of this step. If it fails, prints a warning, stores the exit code in
 * saving.error, and lets the run continue. All ranks call it. */
void run_save(Run *run);
/* Return the step of the asynchronous save that is pending (-1: none); wait until it has ended, and
 * report it. All ranks call the second, also before they end together. */
int64_t run_saving_step(const Run *run);
void run_await_save(Run *run);
/* Goes on with the pending save, if there is one, and reports it if it has ended. With `meet`, all
 * ranks call it together; otherwise it communicates with none, and no save ends. */
void run_advance_save(Run *run, bool meet);
/* Writes a checkpoint and removes it again, if the run saves only at its end: an end without a save
 * would lose all its steps. Ends the program if that fails. All ranks call it. */
void run_try_save(Run *run);
/* Returns true if the newest update was applied and its loss is finite and not far above that of
 * uniform guessing. Otherwise returns false and writes the reason to why[0..n). */
bool run_is_healthy(const Run *run, char *why, size_t n);
/* Is called with each record after health_note: keeps the health of the step that is being saved.
 */
void run_note_saved_health(Run *run, const StepRecord *record);

#endif
