/* grad_norm.h -- the global gradient norm, in which every parameter is counted once. This file
 * computes the squared norm; op_step_decide computes the clip factor from it on the device. */
#ifndef OPTIM_GRAD_NORM_H
#define OPTIM_GRAD_NORM_H

#include "model/kernels/ops.h"
#include "model/param/store.h"

/* The gradients of the shards (parts of parameter units, store.h) that this rank counts in the
 * norm. The list is made once per run, so that a step allocates nothing. */
typedef struct {
    Tensor *grad;
    int n_shards;
} GradNorm;

GradNorm grad_norm_create(ParamStore *store);
void grad_norm_free(GradNorm *norm);
/* Adds the sum of squares of this rank's gradients to stats->sq_norm on the device, one shard after
 * the other in unit order. Gaps and padding are zero and add nothing. With several ranks, the
 * caller adds the sums of the ranks afterwards. */
void grad_norm_add(const GradNorm *norm, Device *dev, StepStats *stats);

#endif
