/* zero_grid_work.h -- the state of a rank in a run of zero_grid.c, and what is checked about it in
 * other files; private to zero_grid*.c. */
#ifndef TESTS_SUPPORT_GRID_ZERO_GRID_WORK_H
#define TESTS_SUPPORT_GRID_ZERO_GRID_WORK_H

#include "tests/support/grid/zero_grid.h"

enum { ZERO_GRID_ROWS = 64, ZERO_GRID_USES = 256, ZERO_GRID_STEPS = 2 };

typedef struct {
    const ZeroGridCase *c;
    ZeroGridResult *result;
    unsigned char *seen; /* per element: how often this rank has counted it */
    double *gradient;    /* per element: its gradient when it was last counted */
    char wrong[512];
} ZeroGridRank;

/* The state of one rank. */
typedef struct {
    const ZeroGridCase *c;
    ZeroGridRank *rank;
    Comm *world;
    Device dev;
    Grid grid;
    ParamTable table;
    int64_t before[ZERO_GRID_ROWS]; /* number of logical elements in all earlier rows */
    Use use[ZERO_GRID_USES];
    int64_t n_uses;
    ZeroStore *store;
    ParamStore *params;
    int step;
} ZeroGridWork;

/* Notes the first difference that this rank finds. */
__attribute__((format(printf, 2, 3))) void zero_grid_wrong(ZeroGridWork *w, const char *fmt, ...);
/* Check what the rank has sent so far, after a step, and what it stores (zero_grid_counts.c). */
void zero_grid_check_sent(ZeroGridWork *w);
void zero_grid_check_stored(ZeroGridWork *w);

#endif
