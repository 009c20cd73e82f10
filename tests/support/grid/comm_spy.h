/* comm_spy.h -- records which collective call of which group each thread is executing. The calls
 * themselves are unchanged. */
#ifndef TESTS_SUPPORT_GRID_COMM_SPY_H
#define TESTS_SUPPORT_GRID_COMM_SPY_H

#include "parallel/grid/grid.h"

typedef struct {
    const Comm *comm; /* NULL: no call */
    const Device *on;
    CommVerb verb;  /* COMM_VERBS: the end of a group of calls */
    Tensor x;       /* the whole tensor that is reduced, gathered, sent or received */
    int64_t bundle; /* number of groups of calls that this thread has begun */
    int call;       /* number of the call within the group */
} CommSpied;

/* From now on the calls of all groups of the grid that have several ranks are recorded. All such
 * groups of the process must use the same transport. */
void comm_spy(Grid *grid);
/* Returns the current call of the calling thread. */
CommSpied comm_spied(void);
/* From now on `note` is called at the beginning of each call of the calling thread; NULL ends this.
 */
void comm_spy_note(void (*note)(const CommSpied *call));

#endif
