/* pipeline.h -- executes a schedule against a stage. All the pipeline knows of a model is Stage. */
#ifndef PARALLEL_PIPELINE_PIPELINE_H
#define PARALLEL_PIPELINE_PIPELINE_H

#include "model/core/tensor.h"
#include "parallel/pipeline/schedule.h"

typedef struct {
    /* x of the layers before -> y for the layers after; absent on the first and the last stage. */
    void (*forward)(void *self, const Action *action, Tensor in, Tensor out);
    void (*backward)(void *self, const Action *action, Tensor dout, Tensor din);
    void (*evaluate)(void *self, const Action *action, Tensor in, Tensor out);
    void *self;
} Stage;

/* Runs the actions in order, in device order only. */
void pipeline_run(const Stage *stage, const Action *actions, int64_t n);

#endif
