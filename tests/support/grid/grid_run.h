/* grid_run.h -- a case of grid_case.h trained on its ranks, and held to a single rank. */
#ifndef TESTS_SUPPORT_GRID_GRID_RUN_H
#define TESTS_SUPPORT_GRID_GRID_RUN_H

#include "parallel/verify/compare.h"
#include "tests/support/grid/grid_case.h"

enum {
    GRID_COMPARED = 3,  /* steps compared tensor by tensor */
    GRID_STEPS = 20,    /* steps after which replicas are compared, of every GRID_LONG-th case */
    GRID_FEW_STEPS = 5, /* of the others, and of all where steps are slow */
    GRID_LONG = 4,
};

/* Changes a rank's trainer before anything is allocated, to plant a fault, and takes back what that
 * took once the trainer is closed. */
typedef struct {
    void (*opened)(Trainer *trainer, void *context);
    void (*closed)(Trainer *trainer, void *context);
    void *context;
} GridHooks;

/* What the ranks have made. */
typedef struct {
    Capture step[GRID_COMPARED];
    StepState state;  /* after the last step */
    double loss;      /* of the last step */
    char drifted[64]; /* a parameter that replicas have with other bits after it; "": none */
    ParamTable table; /* names and shapes, without units */
    uint64_t hash;    /* of all weights after the last step */
    bool each;        /* in 16 bits sums are rounded at each addition */
    CompareWire wire;
} GridRun;

/* Trains the case for `steps` steps (GRID_COMPARED at least) with `batch` sequences a step. hooks
 * may be NULL. */
void grid_run(GridRun *out, const GridCase *c, int64_t batch, int steps, const GridHooks *hooks);
void grid_run_free(GridRun *run);

/* Whether the case agrees with its single rank, and its replicas with each other after the last
 * step; *c gets deviations and the first difference. Single ranks are kept for the next case that
 * asks for them. */
bool grid_check(const GridCase *case_, const GridHooks *hooks, Comparison *c);
/* Whether two runs are the same bits in all that was captured, but for the norm, which may differ
 * by `norm` of it. */
bool grid_runs_equal(const GridRun *a, const GridRun *b, double norm, char *why, size_t n);
/* Forgets the kept single ranks. */
void grid_forget(void);

#endif
