/* pace.h -- estimates the remaining time of a run from the time of a step and of the evaluations,
 * samples and saves that remain. */
#ifndef PARALLEL_REPORT_PACE_H
#define PARALLEL_REPORT_PACE_H

#include <stdint.h>

typedef struct {
    int64_t train_steps;
    int64_t eval_interval, sample_interval, save_interval; /* 0: only at the end */
    double eval_seconds, sample_seconds,
        save_seconds; /* duration of the latest evaluation, sample and save; negative: none yet */
    /* Estimated cost of an evaluation, in steps, until the first has been measured; 0: there are no
     * evaluations. */
    double eval_steps;
} Pace;

/* The times, in seconds, of a step with a single micro-batch: the micro-batch, including the
 * communication of tensor-parallel ranks within the layers; the update; all other communication. */
typedef struct {
    double micro_batch, update, communication;
    /* Of a pipeline: number of micro-batches that pass before its last stage begins. */
    double fill;
} StepTimes;

/* Returns the seconds of a step of `accumulation` micro-batches, plus those that fill the pipeline.
 * From ZeRO stage 2 on, `communication` occurs once per micro-batch; below that, once per step. */
double pace_step_seconds(const StepTimes *one, int64_t accumulation, int64_t zero_stage);
/* Returns the seconds to the end of a run that has made `step` steps; the evaluation, sample and
 * save due at this step are still to come. */
double pace_seconds_left(const Pace *pace, int64_t step, double seconds_per_step);

#endif
