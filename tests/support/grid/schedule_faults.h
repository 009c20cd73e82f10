/* schedule_faults.h -- mistakes of a pipeline, planted in a stage's schedule. */
#ifndef TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H
#define TESTS_SUPPORT_GRID_SCHEDULE_FAULTS_H

#include "parallel/pipeline/schedule.h"

/* Lets a forward and the backward after it, or the other way round, whose inputs are both there,
 * read each other's: an activation for a gradient. False where there is no such pair. */
bool schedule_swap_inputs(Schedule *schedule);
/* Lets every backward read the batch of another place. False where there is one place alone. */
bool schedule_swap_batches(Schedule *schedule);
/* Gives a number of action `at` a value that there is not: one below its range where `which` is
 * even, one above where it is odd. False where the action has no such number. */
enum { SCHEDULE_BEYONDS = 18 };
bool schedule_set_beyond(Schedule *schedule, int64_t at, int which, const ScheduleSpec *spec);

#endif
