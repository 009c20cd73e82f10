/* zero.h -- the parameter store: where weights and gradients live, and how the data-parallel ranks
 * bring them together (ZeRO: Rajbhandari et al., arXiv:1910.02054).
 *
 * A unit is padded to equal shards of whole alignments, one for each rank.
 *   Stage 0: every rank holds weights and gradients whole and updates all of them.
 *   Stage 1: a rank updates its shard and gathers the other ranks' updated weights.
 *   Stage 2: it also keeps only its shard of gradients, to which it adds every micro-batch's sum.
 *   Stage 3: it also keeps only its shard of weights, and gathers a unit before it is used.
 * With one data-parallel rank there is nothing to shard, and every stage is stage 0.
 *
 * On the other axes a rank has the units whose home is its pipeline stage, and of their rows its
 * tensor-parallel part. Gradients that are partial sums there (TpGrad, a table with two homes) are
 * summed at the end of a step, on the shards. */
#ifndef PARALLEL_ZERO_ZERO_H
#define PARALLEL_ZERO_ZERO_H

#include "configs/config.h"
#include "model/core/device.h"
#include "model/param/store.h"
#include "parallel/grid/grid.h"
#include "parallel/zero/prefetch.h"

typedef struct ZeroStore ZeroStore;

/* What a store keeps, and how. Sizes are in elements, as DeepSpeed's keys of the same names have
 * them; none of them changes a bit of a result. */
typedef struct {
    bool gradients; /* false: weights alone, to evaluate or generate */
    DType grad_dtype;
    DType wire_dtype;       /* in which gradients travel; summed as the communicator sums it */
    int stage;              /* of ZeRO, 0 to 3 */
    bool all_reduce;        /* gradients are all-reduced at every stage */
    bool sequence_parallel; /* gradients of TP_GRAD_PARTIAL_IF_SP rows are partial sums */
    bool overlap_comm;
    /* Collectives of units that follow each other go out as one group of up to so many elements. A
     * larger unit goes alone. */
    int64_t reduce_bucket_size, allgather_bucket_size;
    /* Stage 3: what may be gathered (prefetch.h), and the units that stay whole: up to this size,
     * up to so many elements together. */
    GatherLimits gather;
    int64_t param_persistence_threshold, model_persistence_threshold;
    /* All uses of a training step: with gradients, stages 2 and 3 are laid out for them. Only read
     * by zero_create. */
    const Use *uses;
    int64_t n_uses;
} ZeroOptions;

/* The options that a config asks for, without the uses. */
ZeroOptions zero_options(const Config *config, bool gradients);

/* Ends the program (EXIT_CONFIG) where stage3_max_live_parameters has no room for a pair of units
 * in use. A store of weights and, if options->gradients, gradients, laid out without memory: its
 * shards have sizes, and addresses that must not be touched. Table and grid must outlive it. */
ZeroStore *zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options);
/* Bytes that this rank will hold, for the memory plan. Weights and gradients are kept whole or as
 * shards; beside them are the room for gathered weights, two buffers in which gradients of a
 * micro-batch are made that are not kept whole, and copies of gradients that travel in another
 * type. */
typedef struct {
    size_t weights, gradients, gathered, transient, wire;
    size_t host; /* in the host's memory: the plan of gathers */
} ZeroBytes;
ZeroBytes zero_bytes(const ZeroStore *store);
/* Allocates them on the device, zeroed; shards asked for before are void. */
void zero_allocate(ZeroStore *store, Device *dev);
void zero_destroy(ZeroStore *store);
/* For tests: the buffers that hold nothing until the next use, as tensors of bytes on the device,
 * once all sums under way have ended. Returns how many. */
enum { ZERO_MOST_IDLE = 3 };
int zero_idle_buffers(ZeroStore *store, Tensor idle[ZERO_MOST_IDLE]);
/* The contract the model sees. */
ParamStore *zero_params(ZeroStore *store);

#endif
