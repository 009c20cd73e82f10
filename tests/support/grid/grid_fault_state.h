/* grid_fault_state.h -- what the files of grid_faults.h share: a rank's own tables. */
#ifndef TESTS_SUPPORT_GRID_GRID_FAULT_STATE_H
#define TESTS_SUPPORT_GRID_GRID_FAULT_STATE_H

#include "tests/support/grid/grid_faults.h"

enum { MOST_GATHERS = 256, MOST_BIASES = 512 };

/* What a rank's tables were, and what they are. */
typedef struct {
    ParamStore base; /* first: the contract's pointer is this */
    ParamStore *real;
    Trainer *trainer;
    GridFault fault;
    CommOps shard_ops, axis_ops[3], kv_ops, tie_ops;
    const CommOps *shard_real, *axis_real[3], *kv_real, *tie_real; /* axes: pp, dp, tp */
    OpTable ops[2];                                                /* of floats, of doubles */
    const OpTable *ops_real[2];
    double bias[MOST_BIASES];
    int64_t reductions;
    bool in_step; /* with gradients */
    int gathers;  /* of the step so far, ... */
    struct {
        void *bytes;
        size_t size;
    } gathered[MOST_GATHERS]; /* ... and what each gave a step ago */
} Planted;
extern _Thread_local Planted planted;

enum { FAULTY_UNIT = 2 };

/* grid_fault_ops.c: the device gets tables of ops with the fault. */
void plant_ops(Trainer *trainer);

#endif
