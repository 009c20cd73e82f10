/* faulty_comm.h -- a communicator around another, whose calls come late or never, are left out,
 * fail or add up wrongly where a table says so. Groups split from it are like it. */
#ifndef TESTS_SUPPORT_GRID_FAULTY_COMM_H
#define TESTS_SUPPORT_GRID_FAULTY_COMM_H

#include "parallel/comm/comm.h"

typedef enum {
    COMM_LATE,  /* the rank comes after others: it gives its core away many times first */
    COMM_SKIP,  /* the call is not made; on all ranks, or those that make it wait for ever */
    COMM_FAIL,  /* the rank ends with EXIT_UNAVAILABLE */
    COMM_HANG,  /* it does nothing any more */
    COMM_LEAVE, /* nor then, but it leaves all groups first */
    COMM_SUM_IN_STORAGE /* reductions on a device round after each addition, to the tensor's type */
} CommFaultKind;

/* One row: what is wrong with which calls. */
typedef struct {
    CommFaultKind kind;
    CommVerb verb;
    const char *group;     /* its name; NULL: every group */
    int rank;              /* in the outermost group; -1: all */
    int64_t call;          /* of that verb, group and rank, from 1; 0: every one */
    _Atomic int64_t *hits; /* counts the calls that it changed; NULL: nobody asks */
} CommFault;

/* `inner` and the table must outlive it; comm_close is due before those of `inner`. */
Comm faulty_comm(Comm *inner, const CommFault *faults, int n);

#endif
