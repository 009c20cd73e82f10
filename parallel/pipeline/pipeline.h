/* pipeline.h -- carries out a schedule on a stage: runs its actions, and moves tensors between
 * stages. */
#ifndef PARALLEL_PIPELINE_PIPELINE_H
#define PARALLEL_PIPELINE_PIPELINE_H

#include "parallel/comm/comm.h"
#include "parallel/pipeline/schedule.h"

typedef struct Pipeline Pipeline;

/* Buffers for what travels, each a residual stream (rows, cols) in the storage type, on the p2p
 * stream; as many as the largest schedule that it will run asks for. NULL without any. Memory that
 * is refused ends the run (EXIT_NO_MEMORY). `dev` and `pp`, whose rank is the stage, must outlive
 * it. */
Pipeline *pipeline_create(Device *dev, Comm *pp, int buffers, DType dtype, int64_t rows,
                          int64_t cols);
/* Bytes of those buffers, for the memory plan. */
size_t pipeline_bytes(int buffers, DType dtype, int64_t rows, int64_t cols);
void pipeline_destroy(Pipeline *pipeline);

/* Runs n actions of a schedule in order; transfers: the schedule's. They are only put on the
 * device's streams: the host waits for none. The actions of a step may be run in several calls, one
 * after the other. Pipeline NULL: of a schedule without buffers. */
void pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                  const Transfer *transfers);

/* For tests: fills all buffers that hold nothing, by the actions run so far, with NaN. They are
 * written anew before they are read, so no result may change by it. */
void pipeline_poison(Pipeline *pipeline);

#endif
