/* comm.h -- the communicator of a group of ranks: collectives on typed tensors, named as in NCCL,
 * behind a table of functions per transport. */
#ifndef PARALLEL_COMM_COMM_H
#define PARALLEL_COMM_COMM_H

#include "model/core/tensor.h"

typedef struct Comm Comm;

typedef struct {
    const char *name;
    /* x = reduction of x over the ranks, in rank order, in place, on the communication stream. */
    void (*all_reduce)(Comm *, Tensor x, ReduceOp op);
    void (*close)(Comm *);
} CommOps;

struct Comm {
    int rank, size;
    const CommOps *ops;
    void *impl;
};

/* A communicator of one rank: its collectives do nothing. */
Comm comm_self(void);

/* x (dense) = its reduction over the ranks, in place; every rank calls it with the same shape. */
void comm_all_reduce(Comm *comm, Tensor x, ReduceOp op);
void comm_close(Comm *comm);

#endif
