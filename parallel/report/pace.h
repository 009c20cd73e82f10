/* pace.h -- how long a run will take: steps at their pace, and the evaluations, samples and saves
 * that are still to come. */
#ifndef PARALLEL_REPORT_PACE_H
#define PARALLEL_REPORT_PACE_H

#include <stdint.h>

typedef struct {
    int64_t train_steps;
    int64_t eval_interval, sample_interval, save_interval; /* 0: at the end only */
    double eval_seconds, sample_seconds, save_seconds;     /* of the latest; negative: none yet */
    double eval_steps; /* what an evaluation costs until one is known, in steps; 0: there is none */
} Pace;

/* What a step of a single micro-batch took: the micro-batch, with what tensor-parallel ranks send
 * in its layers; the update; and all other communication. */
typedef struct {
    double micro_batch, update, communication;
    double fill; /* of a pipeline: micro-batches that pass before its last stage begins */
} StepTimes;

/* Seconds of a step of `accumulation` micro-batches, and of as many more as fill the pipeline. What
 * `communication` is comes with each of them from ZeRO stage 2 on, below that once a step. */
double pace_step_seconds(const StepTimes *one, int64_t accumulation, int64_t zero_stage);
/* Seconds to the end of a run that has made `step` steps and nothing yet of what is due at it. */
double pace_seconds_left(const Pace *pace, int64_t step, double seconds_per_step);

#endif
