/* pipeline.h -- executes a schedule on a stage: runs its actions and sends tensors between stages.
 */
#ifndef PARALLEL_PIPELINE_PIPELINE_H
#define PARALLEL_PIPELINE_PIPELINE_H

#include "parallel/comm/comm.h"
#include "parallel/pipeline/schedule.h"

typedef struct Pipeline Pipeline;

/* Allocates `buffers` buffers for exchanged tensors, each a residual stream (rows, cols) in the
 * storage dtype. `buffers` is the number that the largest schedule needs. Returns NULL for 0
 * buffers. Ends the program if there is not enough memory (EXIT_NO_MEMORY). `dev` and `pp`, whose
 * rank is the stage, must outlive the pipeline. */
Pipeline *pipeline_create(Device *dev, Comm *pp, int buffers, DType dtype, int64_t rows,
                          int64_t cols);
/* Returns the bytes that pipeline_create allocates for these buffers, for the memory plan. */
size_t pipeline_bytes(int buffers, DType dtype, int64_t rows, int64_t cols);
void pipeline_destroy(Pipeline *pipeline);

/* Runs n actions of a schedule in order; `transfers` are the schedule's transfers. The work is only
 * issued to the device's streams; the host does not wait. The actions of a step may be run in
 * several consecutive calls. `pipeline` is NULL for a schedule without buffers. */
void pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                  const Transfer *transfers);

/* For tests: fills all buffers that are empty after the actions run so far with NaN. They are
 * written before they are read again, so this must not change any result. */
void pipeline_poison(Pipeline *pipeline);

#endif
