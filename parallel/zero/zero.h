/* zero.h -- the parameter store: where weights and gradients live. Only ZeRO stage 0 is built:
 * every rank holds all of them. */
#ifndef PARALLEL_ZERO_ZERO_H
#define PARALLEL_ZERO_ZERO_H

#include "model/core/device.h"
#include "model/param/store.h"
#include "parallel/grid/grid.h"

typedef struct ZeroStore ZeroStore;

/* What a store keeps, and how. Sizes are in elements, as DeepSpeed's keys of the same names have
 * them. */
typedef struct {
    bool gradients; /* false: weights alone, to evaluate or generate */
    DType grad_dtype;
    int stage; /* of ZeRO, 0 to 3: read by nobody yet */
} ZeroOptions;

/* A store of weights and, if options->gradients, gradients, laid out without memory: its shards
 * have sizes, and addresses that must not be touched. Table and grid must outlive it. */
ZeroStore *zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options);
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
