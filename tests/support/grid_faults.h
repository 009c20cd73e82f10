/* grid_faults.h -- mistakes of a grid, planted in a rank's tables of functions (communicators,
 * store, ops), so that a test can ask whether the gates see them. */
#ifndef TESTS_SUPPORT_GRID_FAULTS_H
#define TESTS_SUPPORT_GRID_FAULTS_H

#include "tests/support/grid_run.h"

typedef enum {
    FAULT_NONE,           /* the tables are replaced and do the same */
    FAULT_SKIPPED_REDUCE, /* one collective of gradients a step does not happen */
    FAULT_SKIPPED_UNIT,   /* one rank does not update its part of a unit */
    FAULT_UNPUBLISHED,    /* the weights of a unit do not reach the other ranks */
    FAULT_16_BIT_SUM,     /* sums over ranks are rounded to bf16 */
    FAULT_LOCAL_DECISION, /* each rank decides by its own sums */
    FAULT_GAP,            /* what no parameter covers is not zeroed */
    FAULT_STALE,          /* weights are brought together before their update */
    FAULT_OLD_GATHER,     /* a use gets the weights that were gathered a step ago */
    FAULT_DRIFT,          /* behind the last compared step one rank has another weight */
    FAULT_COUNT
} GridFault;
extern const char *const grid_fault_name[FAULT_COUNT];

/* Hooks that plant it on every rank of a grid_run. */
GridHooks grid_fault_hooks(GridFault fault);

#endif
