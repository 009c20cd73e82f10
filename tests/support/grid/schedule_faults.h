/* schedule_faults.h -- mistakes of a pipeline, planted in a stage's schedule. */
#ifndef TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H
#define TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H

#include "parallel/pipeline/schedule.h"

/* Exchanges the inputs of a forward and a backward that follow each other and are both ready: each
 * then reads an activation for a gradient. False where there is no such pair. */
bool schedule_swap_inputs(Schedule *schedule);
/* Makes every backward read the batch of another place. False where there is only one place. */
bool schedule_swap_batches(Schedule *schedule);
/* Gives a number of action `at` a value outside its range: one below it where `which` is even, one
 * above where it is odd. False where the action has no such number. */
enum { SCHEDULE_BEYONDS = 18 };
bool schedule_set_beyond(Schedule *schedule, int64_t at, int which, const ScheduleSpec *spec);

#endif
