/* faulty_comm.h -- wraps a communicator. A table selects calls that are late, hang, are omitted,
 * fail or add wrongly. Groups split from it have the same faults. */
#ifndef TESTS_SUPPORT_GRID_FAULTY_COMM_H
#define TESTS_SUPPORT_GRID_FAULTY_COMM_H

#include "parallel/comm/comm.h"

typedef enum {
    COMM_LATE,  /* the rank calls later than the others: it yields its core many times first */
    COMM_SKIP,  /* the call is omitted; it must be omitted on all ranks, or the others wait forever
                 */
    COMM_FAIL,  /* the rank ends with EXIT_UNAVAILABLE */
    COMM_HANG,  /* the rank does nothing any more */
    COMM_LEAVE, /* the same, but the rank leaves all groups first */
    COMM_SUM_IN_STORAGE /* reductions on a device round after each addition, to the tensor's type */
} CommFaultKind;

/* A fault and the calls that it affects. */
typedef struct {
    CommFaultKind kind;
    CommVerb verb;
    const char *group; /* its name; NULL: every group */
    int rank;          /* rank in the outermost group; -1: all */
    int64_t call;      /* number of the call of that verb, group and rank, from 1; 0: every call */
    _Atomic int64_t *hits; /* counts the affected calls; may be NULL */
} CommFault;

/* Returns the wrapper. `inner` and the table must outlive it; close it before `inner`. */
Comm faulty_comm(Comm *inner, const CommFault *faults, int n);

#endif
