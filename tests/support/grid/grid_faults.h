/* grid_faults.h -- mistakes of a grid, planted in a rank's tables (communicators, store, ops,
 * parameters, actions), so that a test can ask whether the gates see them. */
#ifndef TESTS_SUPPORT_GRID_GRID_FAULTS_H
#define TESTS_SUPPORT_GRID_GRID_FAULTS_H

#include "tests/support/grid/grid_run.h"

typedef enum {
    FAULT_NONE, /* the tables are replaced and do the same */
    /* of sums over ranks */
    FAULT_SKIPPED_REDUCE, /* one collective of gradients a step does not happen */
    FAULT_16_BIT_SUM,     /* sums over ranks are rounded to bf16 */
    FAULT_LOCAL_DECISION, /* each rank decides by its own sums */
    FAULT_LOCAL_MAXIMUM,  /* a row of logits is held to the maximum of this rank's columns */
    FAULT_LOCAL_KV,       /* gradients of shared heads of keys and values are not summed */
    FAULT_LOCAL_TIE,      /* a tied table has the gradient of its own stage's use alone */
    FAULT_DECLARED_WHOLE, /* rows of which a rank has a partial sum are taken for whole */
    FAULT_COUNTED_OFTEN,  /* the norm counts what is not cut on every tensor-parallel rank */
    FAULT_EARLY_BIAS,     /* the bias of a row-cut product is added before the sum over the ranks */
    FAULT_ALL_COLUMNS,    /* its gradient is made of all ranks' rows, and summed over the ranks */
    /* of weights and buffers */
    FAULT_SKIPPED_UNIT, /* one rank does not update its part of a unit */
    FAULT_UNPUBLISHED,  /* the weights of a unit do not reach the other ranks */
    FAULT_GAP,          /* what no parameter covers is not zeroed */
    FAULT_STALE,        /* weights are brought together before their update */
    FAULT_OLD_GATHER,   /* a use gets the weights that were gathered a step ago */
    /* of a pipeline */
    FAULT_OTHER_BATCH, /* backward reads the tokens of another micro-batch */
    FAULT_SWAPPED,     /* an action reads an activation for a gradient, or the other way round */
    /* Behind the last compared step one rank has another weight than its replicas: data-parallel
     * ones; tensor-parallel ones of what is not cut; those that share a head; the other stage. */
    FAULT_DRIFT,
    FAULT_DRIFT_TENSOR,
    FAULT_DRIFT_KV,
    FAULT_DRIFT_TIE,
    FAULT_COUNT
} GridFault;
extern const char *const grid_fault_name[FAULT_COUNT];

/* Hooks that plant it on every rank of a grid_run. Where a grid has nothing of the kind, the tables
 * do the same as before. */
GridHooks grid_fault_hooks(GridFault fault);

#endif
