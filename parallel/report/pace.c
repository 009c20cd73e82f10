/* pace.c -- computes the time of a step and the remaining time of a run. See pace.h. */
#include "parallel/report/pace.h"

/* Returns how many times something that is due every `interval` steps will still happen: at each
 * multiple of `interval` from `step` on that lies before the last step, and once at the end. */
static int64_t times_due(const Pace *p, int64_t interval, int64_t step)
{
    if (interval <= 0 || step >= p->train_steps) return 1;
    int64_t before = step > 0 ? (step - 1) / interval : 0;
    return (p->train_steps - 1) / interval - before + 1;
}

double pace_step_seconds(const StepTimes *one, int64_t accumulation, int64_t zero_stage)
{
    /* From ZeRO stage 2 on, gradients are summed over the ranks for every micro-batch. */
    double times = zero_stage >= 2 ? (double)accumulation : 1;
    return one->micro_batch * ((double)accumulation + one->fill) + one->communication * times +
           one->update;
}

double pace_seconds_left(const Pace *p, int64_t step, double seconds_per_step)
{
    /* Work that has not been timed yet counts as free, except for an evaluation, whose cost in
     * steps can be estimated before the first one. */
    double evaluation = p->eval_seconds >= 0 ? p->eval_seconds : p->eval_steps * seconds_per_step;
    double sample = p->sample_seconds >= 0 ? p->sample_seconds : 0;
    double save = p->save_seconds >= 0 ? p->save_seconds : 0;
    double steps = (double)(p->train_steps > step ? p->train_steps - step : 0);
    return steps * seconds_per_step + (double)times_due(p, p->eval_interval, step) * evaluation +
           (double)times_due(p, p->sample_interval, step) * sample +
           (double)times_due(p, p->save_interval, step) * save;
}
