/* call.h -- a call of a rank, as error messages describe it. */
#ifndef PARALLEL_COMM_CALL_H
#define PARALLEL_COMM_CALL_H

#include "parallel/comm/comm.h"

typedef struct {
    const char *name; /* name of the operation: "all-reduce", "barrier", ... */
    const char *made; /* for a split: name of the new groups; else NULL */
    int64_t count;    /* in elements; -1: the call moves no data */
    DType dtype;
    ReduceOp op;
    int root;    /* world rank of a broadcast's root or a message's peer; else -1 */
    bool device; /* the tensors are on a device */
} CommCall;

/* Returns whether two ranks make the same collective call. */
bool comm_call_same(const CommCall *a, const CommCall *b);
/* Writes, for example, "all-reduce (max) of 1 i64 in host memory", "receive of 12 f32 from rank 2"
 * or "barrier". Returns text. */
const char *comm_call_text(const CommCall *call, char *text, size_t n);

#endif
