/* zero.h -- the parameter store: where weights and gradients live. Only ZeRO stage 0 is built:
 * every rank holds all of them. */
#ifndef PARALLEL_ZERO_ZERO_H
#define PARALLEL_ZERO_ZERO_H

#include "model/core/device.h"
#include "model/param/store.h"
#include "parallel/grid/grid.h"

typedef struct ZeroStore ZeroStore;

/* A store of weights and, if `gradients`, gradients of grad_dtype, laid out without memory: its
 * shards have sizes, and addresses that must not be touched. The table must outlive it. */
ZeroStore *zero_create(const ParamTable *table, Grid *grid, DType grad_dtype, bool gradients);
/* Bytes of weights and of gradients that this rank will hold, for the memory plan. */
typedef struct {
    size_t weights, gradients;
} ZeroBytes;
ZeroBytes zero_bytes(const ZeroStore *store);
/* Allocates them on the device, zeroed; shards asked for before are void. */
void zero_allocate(ZeroStore *store, Device *dev);
void zero_destroy(ZeroStore *store);
/* The contract the model sees. */
ParamStore *zero_params(ZeroStore *store);

#endif
