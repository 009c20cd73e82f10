/* fake_nccl.h -- a table of NCCL functions for tests. Its communicators work in host memory through
 * comm_local, record their calls, and fail if a test asks for it. */
#ifndef TESTS_SUPPORT_GRID_FAKE_NCCL_H
#define TESTS_SUPPORT_GRID_FAKE_NCCL_H

#include "parallel/comm/nccl/library.h"

#include <stdatomic.h>

/* How it differs from NCCL. All fields but the atomic ones must be set while no rank runs. */
typedef struct {
    int version;
    const char *fails; /* the function of this name fails on this rank (log_rank) with this result;
                          GetVersion fails on any rank */
    int fails_on;
    NcclResult result;
    const char *blocks; /* the function of this name never returns on this rank */
    int blocks_on;
    int late;               /* a bit for each rank on which CommInitRankConfig returns late */
    atomic_int returned;    /* a bit for each rank (log_rank) that has returned from it */
    int meeting;            /* ranks that must have returned before AllReduce is called */
    atomic_int early;       /* how often it was called before */
    const char *last_error; /* the text that ncclGetLastError returns */
    bool detached;          /* collectives return at once and send nothing */
    atomic_int async;       /* the asynchronous NcclResult of every communicator */
    atomic_int asked;       /* how often it has been queried */
    atomic_int connect;     /* a bit for each rank (log_rank) that has called CommInitRankConfig */
    atomic_int unheld;      /* how many calls were made without signals held (signals_hold in
                             * pool.h): a thread that NCCL starts there would receive them */
} FakeNccl;
extern FakeNccl fake_nccl;

/* From now on the process uses this table, without faults and with an empty log. */
void fake_nccl_use(void);
/* Returns the calls of that rank, one per line: "AllReduce 3 type 7 op 0 in place". */
const char *fake_nccl_log(int rank);
void fake_nccl_forget(int rank);
/* Returns the number of communicators that have not been destroyed yet. */
int fake_nccl_open(void);

#endif
