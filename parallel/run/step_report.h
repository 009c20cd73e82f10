/* step_report.h -- after each step: its records from the device, the end of a run that diverges,
 * and what is printed of its loss, speed and communication. */
#ifndef PARALLEL_RUN_STEP_REPORT_H
#define PARALLEL_RUN_STEP_REPORT_H

#include "parallel/run/run.h"

/* Whether `step` is one of every `interval`; an interval of 0 has none. */
bool run_is_due(int64_t step, int64_t interval);
/* Waits for the device and reads the records of all steps. Ends the run (EXIT_DIVERGED) when one
 * says so. All ranks call it. */
void run_read_records(Run *run);
/* Speed is that of steps: the clock stands still while the host saves, evaluates or samples. */
void run_pause_clock(Run *run);
void run_resume_clock(Run *run);
/* Adds to a rank's own seconds what wall_clock_breakdown says of all ranks: their work, and for
 * each axis the exposed communication of the rank that has most. One message; all ranks call it. */
void run_compare_ranks(const Run *run, SpeedRecord *speed);
/* With comms_logger.enabled: what has gone between ranks so far. Rank 0 prints. */
void run_print_comms(const Run *run);

#endif
