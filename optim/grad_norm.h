/* grad_norm.h -- the global gradient norm, every parameter counted once. The clip factor itself is
 * made on the device by op_step_decide, from the squared norm summed here. */
#ifndef OPTIM_GRAD_NORM_H
#define OPTIM_GRAD_NORM_H

#include "model/kernels/ops.h"
#include "model/param/param.h"

/* The runs this rank counts; fixed for the run, so that a step allocates nothing. */
typedef struct {
    OwnedRun *run;
    int n_runs;
} GradNorm;

GradNorm grad_norm_create(ParamStore *store);
void grad_norm_free(GradNorm *norm);
/* stats->sq_norm += sum of squares of this rank's gradients, on the device, run after run in unit
 * order. Gaps and padding are zero and add nothing. Over a grid the sums of all ranks are then
 * added. */
void grad_norm_add(const GradNorm *norm, Device *dev, StepStats *stats);

#endif
