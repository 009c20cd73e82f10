/* step_report.h -- the reports of training steps: reads their records from the device, ends a run
 * that diverges, and prints loss, speed and communication. */
#ifndef PARALLEL_RUN_STEP_REPORT_H
#define PARALLEL_RUN_STEP_REPORT_H

#include "parallel/run/run.h"

/* Returns true if `step` is a multiple of `interval`; always false for an interval of 0. */
bool run_is_due(int64_t step, int64_t interval);
/* Waits for the device and reads the records of all steps so far. If a record shows that the
 * training diverged, ends the run (EXIT_DIVERGED), or sets records.goes_back if the run goes back
 * to a checkpoint instead. All ranks call it. */
void run_read_records(Run *run);
/* Reads the records that have arrived, without waiting. For a single rank only. */
void run_read_arrived(Run *run);
/* Pauses the clock that measures the speed of steps, so that it excludes the time in which the host
 * saves, evaluates or samples. run_resume_clock continues it. */
void run_pause_clock(Run *run);
void run_resume_clock(Run *run);
/* Completes `speed` with the figures over all ranks that wall_clock_breakdown prints: the mean and
 * the largest time that a rank works, the slowest rank, and for each axis the largest exposed
 * communication of any rank. Makes three all-reduces; all ranks call it. */
void run_compare_ranks(const Run *run, SpeedRecord *speed);
/* If comms_logger.enabled is set, prints the communication between ranks so far, on rank 0. */
void run_print_comms(const Run *run);

#endif
