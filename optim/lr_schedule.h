/* lr_schedule.h -- the learning rate of every update: DeepSpeed's five schedulers, Constant and WSD
 * (warmup, stable, decay).
 *
 * The rates are pure functions of the config and the number of updates applied so far. So a resumed
 * run, or a run that skipped steps, uses the right rate for its next update. */
#ifndef OPTIM_LR_SCHEDULE_H
#define OPTIM_LR_SCHEDULE_H

#include "configs/config.h"

/* Returns the learning rate of update number `update`, counted from 0. */
double lr_schedule(const Config *config, int64_t update);
/* Sets table[i] to the learning rate of update i, 0 <= i < n. op_step_decide reads the table on the
 * device. */
void lr_schedule_fill(const Config *config, double *table, int64_t n);

#endif
