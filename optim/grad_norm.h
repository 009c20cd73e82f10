/* grad_norm.h -- the global gradient norm, every parameter counted once. The clip factor itself is
 * made on the device by op_step_decide, from the squared norm summed here. */
#ifndef OPTIM_GRAD_NORM_H
#define OPTIM_GRAD_NORM_H

#include "model/kernels/ops.h"
#include "model/param/store.h"

/* The shards that this rank counts; fixed for the run, so that a step allocates nothing. */
typedef struct {
    Shard *shard;
    int n_shards;
} GradNorm;

GradNorm grad_norm_create(ParamStore *store);
void grad_norm_free(GradNorm *norm);
/* stats->sq_norm += sum of squares of this rank's gradients, on the device, shard after shard in
 * unit order. Gaps and padding are zero and add nothing. Over a grid the sums of all ranks are then
 * added. */
void grad_norm_add(const GradNorm *norm, Device *dev, StepStats *stats);

#endif
