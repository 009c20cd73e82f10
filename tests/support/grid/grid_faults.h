/* grid_faults.h -- injects typical mistakes of grids into a rank's function tables (communicators,
 * store, ops, parameters, actions), so that tests can check that the comparison with a single rank
 * detects them. */
#ifndef TESTS_SUPPORT_GRID_GRID_FAULTS_H
#define TESTS_SUPPORT_GRID_GRID_FAULTS_H

#include "tests/support/grid/grid_run.h"

typedef enum {
    FAULT_NONE, /* the tables are replaced, but work correctly */
    /* mistakes in sums over ranks */
    FAULT_SKIPPED_REDUCE, /* one collective of gradients per step is omitted */
    FAULT_16_BIT_SUM,     /* sums over ranks are rounded to bf16 */
    FAULT_LOCAL_DECISION, /* each rank decides from its own sums */
    FAULT_LOCAL_MAXIMUM,  /* each rank subtracts the maximum of its own columns from a row of logits
                           */
    FAULT_LOCAL_KV,       /* gradients of shared key/value heads are not summed */
    FAULT_LOCAL_TIE,      /* each stage has only the gradient of its own use of a tied table */
    FAULT_DECLARED_WHOLE, /* rows with partial gradients are treated as complete */
    FAULT_COUNTED_OFTEN, /* the norm counts rows that are not split on every tensor-parallel rank */
    FAULT_EARLY_BIAS,    /* the bias of a product of divided rows is added before the sum over the
                            ranks */
    FAULT_ALL_COLUMNS,   /* its gradient is computed from all ranks' rows and also summed over the
                            ranks */
    /* mistakes in sums between shard groups: they are omitted, added once more, or a rank gets the
     * share of its neighbour */
    FAULT_GROUPS_APART,
    FAULT_GROUPS_TWICE,
    FAULT_OTHER_SHARE,
    /* mistakes in weights and buffers */
    FAULT_SKIPPED_UNIT, /* one rank does not update its part of a unit */
    FAULT_UNPUBLISHED,  /* the weights of a unit do not reach the other ranks */
    FAULT_GAP,          /* gaps between parameters are not set to zero */
    FAULT_STALE,        /* weights are gathered before their update */
    FAULT_OLD_GATHER,   /* a use gets the weights gathered in the previous step */
    /* mistakes in a pipeline */
    FAULT_OTHER_BATCH, /* backward reads the tokens of another micro-batch */
    FAULT_SWAPPED, /* an action reads an activation as a gradient, or a gradient as an activation */
    /* After the last compared step one rank has another weight than its replicas: among
     * data-parallel ranks, tensor-parallel ranks (rows that are not split), ranks that share a
     * head, or the two stages of a tied table. */
    FAULT_DRIFT,
    FAULT_DRIFT_TENSOR,
    FAULT_DRIFT_KV,
    FAULT_DRIFT_TIE,
    FAULT_COUNT
} GridFault;
extern const char *const grid_fault_name[FAULT_COUNT];

/* Returns hooks that inject the fault on every rank of a grid_run. If the fault does not apply to a
 * grid, the tables work correctly. */
GridHooks grid_fault_hooks(GridFault fault);

#endif
