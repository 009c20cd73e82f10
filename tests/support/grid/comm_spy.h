/* comm_spy.h -- which call of which group a thread is in: groups whose calls say so, and are
 * otherwise what they were. */
#ifndef TESTS_SUPPORT_GRID_COMM_SPY_H
#define TESTS_SUPPORT_GRID_COMM_SPY_H

#include "parallel/grid/grid.h"

typedef struct {
    const Comm *comm; /* NULL: in none */
    const Device *on;
    CommVerb verb;  /* COMM_VERBS: the end of a group of calls */
    Tensor x;       /* what is reduced, gathered, sent or received: the whole of it */
    int64_t bundle; /* how many groups of calls this thread has begun */
    int call;       /* which one of the group it is */
} CommSpied;

/* From here on the calls of all groups of the grid that have several ranks are seen. Such groups
 * are of one transport, in all grids of the process. */
void comm_spy(Grid *grid);
/* Of the calling thread. */
CommSpied comm_spied(void);
/* From here on each call of the calling thread is noted when it begins; NULL: no longer. */
void comm_spy_note(void (*note)(const CommSpied *call));

#endif
