/* grid_run.h -- trains a case of grid_case.h on its ranks and compares it with a single rank. */
#ifndef TESTS_SUPPORT_GRID_GRID_RUN_H
#define TESTS_SUPPORT_GRID_GRID_RUN_H

#include "parallel/verify/compare.h"
#include "tests/support/grid/grid_case.h"

enum {
    GRID_COMPARED = 3,  /* steps compared tensor by tensor */
    GRID_STEPS = 20,    /* steps of every GRID_LONG-th case, after which replicas are compared */
    GRID_FEW_STEPS = 5, /* steps of the other cases, and of all cases if steps are slow */
    GRID_LONG = 4,
};

/* `opened` may change a rank's trainer before anything is allocated, to inject a fault; `closed`
 * frees what that needed, after the trainer has been closed. */
typedef struct {
    void (*opened)(Trainer *trainer, void *context);
    void (*closed)(Trainer *trainer, void *context);
    void *context;
} GridHooks;

/* The results of the ranks. */
typedef struct {
    Capture step[GRID_COMPARED];
    StepState state; /* after the last step */
    double loss;     /* of the last step */
    /* What differs between replicas after the last step: a parameter, or the sentence of
     * trainer_replicas_equal; "": nothing. */
    char drifted[400];
    ParamTable table; /* names and shapes, without units */
    uint64_t hash;    /* of all weights after the last step */
    bool each;        /* ranks have a device each, so 16-bit sums are rounded at each addition */
    CompareWire wire;
} GridRun;

/* Trains the case for `steps` steps (GRID_COMPARED at least) with `batch` sequences a step. hooks
 * may be NULL. */
void grid_run(GridRun *out, const GridCase *c, int64_t batch, int steps, const GridHooks *hooks);
void grid_run_free(GridRun *run);

/* Does the same without hooks, on ranks that are processes (process_ranks.h). The ranks are forked,
 * so this process must not have other threads, and must not have used CUDA if the ranks will. */
void grid_run_processes(GridRun *out, const GridCase *c, int64_t batch, int steps);

/* Returns the number of steps for which grid_check trains a case. */
int grid_steps(const GridCase *c);
/* Trains the case for so many steps. Returns whether it agrees with its single rank, and its
 * replicas with each other after the last step; sets *c to the deviations and the first difference.
 * Runs of single ranks are kept for later cases. */
bool grid_check(const GridCase *case_, const GridHooks *hooks, Comparison *c);
/* Does the comparison of grid_check for a run of the case. */
bool grid_run_good(const GridCase *case_, const GridRun *run, Comparison *c);
/* Does grid_check, and also requires that ranks that are processes compute the same bits as
 * threads. */
bool grid_check_processes(const GridCase *case_, Comparison *c);
/* Returns whether two runs have the same bits in everything that was captured, except that the
 * norms may differ by the relative amount `norm`. */
bool grid_runs_equal(const GridRun *a, const GridRun *b, double norm, char *why, size_t n);
/* Frees the kept runs of single ranks. */
void grid_forget(void);

#endif
