/* zero.h -- the parameter store: keeps weights and gradients, and gathers and sums them over the
 * data-parallel ranks (ZeRO: Rajbhandari et al., arXiv:1910.02054).
 *
 * A unit (the flat buffer of a block, a table, the final norm or the head; param.h) is padded to
 * equal shards, one for each rank, whose size is a multiple of the alignment.
 *   Stage 0: every rank stores whole weights and gradients and updates all of them.
 *   Stage 1: a rank updates its shard and gathers the other ranks' updated weights.
 *   Stage 2: it also stores only its shard of gradients, to which it adds every micro-batch's sum.
 *   Stage 3: it also stores only its shard of weights, and gathers a unit before it is used.
 * With one data-parallel rank there is nothing to shard, and every stage is stage 0.
 *
 * With shard groups (parallel.shard), the ranks of a group divide weights and gradients as above,
 * into parts. The ranks that hold the same part, one of each group, each update a share of it.
 * README.md says when these ranks sum and gather the part.
 *
 * On the other axes of the grid, a rank has only the units of its pipeline stage, and only its
 * tensor-parallel part of their rows. Gradients that are partial sums on these axes (TpGrad, or a
 * tied table on two stages) are summed at the end of a step, on the shards. */
#ifndef PARALLEL_ZERO_ZERO_H
#define PARALLEL_ZERO_ZERO_H

#include "configs/config.h"
#include "model/core/device.h"
#include "model/param/store.h"
#include "parallel/grid/grid.h"
#include "parallel/zero/prefetch.h"

typedef struct ZeroStore ZeroStore;

/* The options of a store. Sizes are in elements, like DeepSpeed's keys of the same names; none of
 * them changes a bit of the results. */
typedef struct {
    bool gradients; /* false: only weights, to evaluate or generate */
    DType grad_dtype;
    DType wire_dtype; /* dtype in which gradients are sent; the communicator defines how they are
                         summed */
    int stage;        /* the ZeRO stage, 0 to 3 */
    bool all_reduce;  /* gradients are all-reduced at every stage */
    bool sequence_parallel; /* gradients of TP_GRAD_PARTIAL_IF_SP rows are partial sums */
    bool overlap_comm;
    bool updates_apart; /* updates run on their own stream, so the first updated unit is gathered
                         * alone, to avoid waiting for the others */
    /* Collectives of consecutive units are issued as one group, which has up to this many elements.
     * A larger unit is a group of its own. */
    int64_t reduce_bucket_size, allgather_bucket_size;
    /* Stage 3: the limits of gathers (prefetch.h). Units of up to param_persistence_threshold
     * elements are stored whole, up to model_persistence_threshold elements together. */
    GatherLimits gather;
    int64_t param_persistence_threshold, model_persistence_threshold;
    /* All uses of units in a training step. With gradients, memory at stages 2 and 3 is laid out
     * for these uses. Read only by zero_create. */
    const Use *uses;
    int64_t n_uses;
} ZeroOptions;

/* Returns the options that a config asks for, without the uses. */
ZeroOptions zero_options(const Config *config, bool gradients);

/* Returns a store of weights and, if options->gradients, gradients. It is laid out but not
 * allocated: its shards have sizes, but their addresses must not be used. Table and grid must
 * outlive it. Ends the program (EXIT_CONFIG) if stage3_max_live_parameters is too small for a pair
 * of units in use. */
ZeroStore *zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options);
/* The bytes that this rank will allocate, for the memory plan: weights and gradients, whole or as
 * shards; the buffer of gathered weights; two slots for gradients that are not stored whole; and
 * copies of gradients that are sent in another dtype. */
typedef struct {
    size_t weights, gradients, gathered, transient, wire;
    size_t host; /* bytes in host memory: the plan of gathers */
} ZeroBytes;
ZeroBytes zero_bytes(const ZeroStore *store);
/* Allocates the memory on the device and sets it to zero. Shards returned earlier become invalid.
 */
void zero_allocate(ZeroStore *store, Device *dev);
void zero_destroy(ZeroStore *store);
/* Returns the whole weights of a unit, flat and padded, if this rank keeps them whole between
 * steps; otherwise NO_TENSOR: a sharded unit, or one of another pipeline stage. They are up to date
 * once all units have been published and the device has been synchronized. */
Tensor zero_whole_weights(const ZeroStore *store, int unit);
/* Returns this rank's part of the weights of a sharded unit, flat, if ranks of other shard groups
 * hold the same part; otherwise NO_TENSOR. It is up to date after zero_gather_parts. */
Tensor zero_common_part(const ZeroStore *store, int unit);
/* Between two steps: gathers the parts of sharded units that are not up to date. Without this call,
 * they are gathered before their next use. All ranks call it; the device must be synchronized
 * before the parts are read, and before the next update. */
void zero_gather_parts(ZeroStore *store);
/* Starts to measure the compute stream's waits for updates on another stream (ParamStore.publish);
 * NULL: stops. If a gather waits for the update, the compute stream first waits for the update and
 * then for the gather, so that only the first wait is measured here. */
void zero_measure_updates(ZeroStore *store, Exposed *exposed);
/* For tests: waits for all pending sums, then lists the buffers whose contents are not needed any
 * more, as byte tensors on the device. Returns their number. */
enum { ZERO_MOST_IDLE = 3 };
int zero_idle_buffers(ZeroStore *store, Tensor idle[ZERO_MOST_IDLE]);
/* Returns the interface that the model uses. */
ParamStore *zero_params(ZeroStore *store);

#endif
