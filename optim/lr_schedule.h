/* lr_schedule.h -- the learning rate of every update: DeepSpeed's five schedulers, Constant and
 * WSD.
 *
 * Pure functions of the config and the number of updates applied, so that a resumed run, and a run
 * with skipped steps, sees the lr of the update it is about to make. */
#ifndef OPTIM_LR_SCHEDULE_H
#define OPTIM_LR_SCHEDULE_H

#include "configs/config.h"

/* lr of update `update` (0-based: as many updates have been applied before it). */
double lr_schedule(const Config *config, int64_t update);
/* table[i] = lr of update i, 0 <= i < n: what op_step_decide reads on the device. */
void lr_schedule_fill(const Config *config, double *table, int64_t n);

#endif
