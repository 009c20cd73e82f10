/* grid_fault_state.h -- the function tables of a rank with injected faults, shared by the files
 * that implement grid_faults.h. */
#ifndef TESTS_SUPPORT_GRID_GRID_FAULT_STATE_H
#define TESTS_SUPPORT_GRID_GRID_FAULT_STATE_H

#include "tests/support/grid/grid_faults.h"

enum { MOST_GATHERS = 256, MOST_BIASES = 512 };

/* A rank's original and replaced tables. */
typedef struct {
    ParamStore base; /* first, so that a ParamStore pointer also points to this struct */
    ParamStore *real;
    Trainer *trainer;
    GridFault fault;
    CommOps shard_ops, replicate_ops, axis_ops[3], kv_ops, tie_ops;
    const CommOps *shard_real, *replicate_real, *axis_real[3], *kv_real,
        *tie_real;  /* axes: pp, dp, tp */
    OpTable ops[2]; /* for f32 and for f64 */
    const OpTable *ops_real[2];
    double bias[MOST_BIASES];
    int64_t reductions;
    bool in_step; /* in a step with gradients */
    int gathers;  /* number of gathers in the step so far */
    struct {
        void *bytes;
        size_t size;
    } gathered[MOST_GATHERS]; /* the result of each gather in the previous step */
} Planted;
extern _Thread_local Planted planted;

enum { FAULTY_UNIT = 2 };

/* grid_fault_ops.c: replaces the device's tables of ops by tables with the fault. */
void plant_ops(Trainer *trainer);

#endif
