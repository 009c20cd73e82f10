/* fake_nccl.h -- a table of NCCL's functions for tests: communicators in host memory, over
 * comm_local, which record their calls and fail where a test asks for it. */
#ifndef TESTS_SUPPORT_GRID_FAKE_NCCL_H
#define TESTS_SUPPORT_GRID_FAKE_NCCL_H

#include "parallel/comm/nccl/library.h"

#include <stdatomic.h>

/* What it does otherwise than NCCL would: set while no rank runs, but for the atomics. */
typedef struct {
    int version;
    const char *fails; /* the function of this name, on this rank (log_rank): with this result.
                          GetVersion: on any */
    int fails_on;
    NcclResult result;
    const char *blocks; /* the function of this name, on this rank, never returns */
    int blocks_on;
    const char *last_error; /* what ncclGetLastError says */
    bool detached;          /* verbs return at once, and move nothing */
    atomic_int async;       /* a NcclResult, for every communicator */
    atomic_int asked;       /* how often somebody has asked for it */
    atomic_int connect;     /* a bit for each rank (log_rank) that has called CommInitRankConfig */
} FakeNccl;
extern FakeNccl fake_nccl;

/* From here on the process uses it, with settings as of a sound library and an empty log. */
void fake_nccl_use(void);
/* What that rank has asked for, a line each: "AllReduce 3 type 7 op 0 in place". */
const char *fake_nccl_log(int rank);
void fake_nccl_forget(int rank);
/* Communicators that are not destroyed yet. */
int fake_nccl_open(void);

#endif
