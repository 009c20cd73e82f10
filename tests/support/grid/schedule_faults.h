/* schedule_faults.h -- injects mistakes into the schedule of a pipeline stage. */
#ifndef TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H
#define TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H

#include "parallel/pipeline/schedule.h"

/* Exchanges the inputs of two consecutive actions, a forward and a backward pass, that are both
 * ready: one then reads a gradient as an activation, the other an activation as a gradient. Returns
 * false if there is no such pair. */
bool schedule_swap_inputs(Schedule *schedule);
/* Makes every backward pass read another batch. Returns false if there is only one. */
bool schedule_swap_batches(Schedule *schedule);
/* Sets a number of action `at` to a value outside its range: one below it if `which` is even, one
 * above it if `which` is odd. Returns false if the action has no such number. */
enum { SCHEDULE_BEYONDS = 18 };
bool schedule_set_beyond(Schedule *schedule, int64_t at, int which, const ScheduleSpec *spec);

#endif
