/* state.h -- what the files of this folder share: the store and the state of its units. */
#ifndef PARALLEL_ZERO_STATE_H
#define PARALLEL_ZERO_STATE_H

#include "parallel/zero/zero.h"

/* A hole between packs, or a unit's tail: zero at every reduction. */
typedef struct {
    int64_t offset, count;
} Gap;

typedef struct {
    bool here;          /* this stage is a home of it; else all sizes are 0 */
    int64_t size, part; /* elements of the padded unit; of a rank's shard of it */
    Tensor weight;      /* flat, of `size` elements; sharded: while it is gathered */
    Tensor grad;        /* likewise: the whole gradient, or the buffer in which it is made now */
    /* Flat, this rank's shards: what it updates, and the sum over the ranks. Where a whole is kept
     * they lie in it. */
    Tensor weight_part, grad_part;
    bool sharded;          /* weights are kept as shards and gathered for a use */
    int64_t used, last;    /* sharded: the point of this use, the last of its stay (prefetch.h) */
    bool transient;        /* whole gradients are made in a buffer and summed at every release */
    int slot;              /* which one, while that lasts */
    bool summed;           /* transient: grad_part has a sum of this step */
    int releases;          /* gradient releases still to come in this step */
    int first_gap, n_gaps; /* of the store's */
    bool acquired, grad_acquired, written;
    bool used_late; /* a step uses units behind it in the table before this one: published last */
    bool put_off;   /* until then */
    bool queued;    /* weights are in a bucket to gather */
    bool arriving;  /* they are on their way: the next acquire waits for `ready` */
    Event ready;    /* on the comm stream: the weights have arrived */
} UnitState;

/* Units whose collectives will go out together. */
typedef struct {
    int *unit, n;
    int64_t elements;
} Bucket;

/* Where a gradient is made that is not kept whole. Two of them: a layer has up to two units, and
 * one is summed over the ranks while the next is filled. */
enum { ZERO_SLOTS = 2 };
typedef struct {
    Tensor memory; /* flat, room for the largest such unit */
    bool held;     /* from a unit's grad_acquire until its sum is on the comm stream */
    Event free;    /* on the comm stream: that sum is done */
} Slot;

struct ZeroStore {
    ParamStore base; /* first: the contract's pointer is the store's */
    Device *dev;     /* NULL: laid out, not allocated */
    Device comm;     /* the device's comm stream, on which collectives run */
    Grid *grid;
    ZeroOptions options; /* its stage is 0 where there is one rank */
    UnitState *unit;
    Gap *gap;
    int n_gaps;
    const Use *uses;
    int64_t n_uses, next_use;
    int held;             /* acquires of weights and of gradients that were not released yet */
    bool makes_gradients; /* one of them does */
    Bucket reducing, publishing, gathering; /* not yet put on the comm stream */
    Event computed, reduced; /* on the compute stream: what the comm stream reads is there; on
                                the comm stream: sums have arrived */
    Slot slot[ZERO_SLOTS];
    int next_slot;
    GatherPlan plan; /* for the uses that the store was laid out for: */
    Use *planned;
    int64_t n_planned;
    bool by_plan;             /* the uses told now are these, or the first of them */
    int64_t point, next_stay; /* how far the step has come in the plan */
    int64_t room;             /* elements of the buffer of gathered weights */
    Tensor gathered;
    int low, high; /* without a plan: the units at the buffer's ends; -1: none */
    Tensor wire;   /* flat; absent where gradients travel as they are kept */
    void *weights, *gradients, *gathered_memory, *transient, *wire_memory;
    ZeroBytes bytes;
};

/* ---- layout.c: sizes, memory, gaps ----------------------------------------------------------- */

/* Fills sizes and gaps of all units, and how their gradients are kept. */
void zero_layout_units(ZeroStore *store);
/* Gives all tensors their places: over measuring arenas for the plan, over the device's when there
 * is memory. */
typedef struct {
    Arena weights, gradients, gathered, transient, wire;
} ZeroArenas;
void zero_layout_memory(ZeroStore *store, ZeroArenas *arenas);
/* This rank's shard of a flat tensor of a whole unit. */
Tensor zero_part(const ZeroStore *store, Tensor whole);
int zero_shards(ParamStore *base, Purpose purpose, Shard *shards, int max);

/* ---- reduce.c: gradients on their way -------------------------------------------------------- */

/* A buffer for the unit's gradient of this micro-batch, in unit->grad. */
void zero_take_slot(ZeroStore *store, int unit);
/* The unit's gradient, of this step or of this micro-batch, is complete on this rank: it is summed
 * over the ranks now, or with the next ones. */
void zero_reduce(ZeroStore *store, int unit);
/* Another unit is about to be used: of gradients that are summed at every release none waits for
 * the next ones. */
void zero_reduce_layer(ZeroStore *store);
/* The compute stream waits for the sums on the comm stream, of which the last are this group's. */
void zero_await_sums(ZeroStore *store, Comm *comm);
/* All sums over the data-parallel ranks, and behind them those of partial_sums.c, are on the comm
 * stream, and the compute stream waits for them. */
void zero_reduce_finish(ZeroStore *store);

/* ---- partial_sums.c: gradients that are partial sums on other axes of the grid
 * ------------------------
 */

/* Whether there are any in this step. */
bool zero_needs_finish(const ZeroStore *store);
/* They are put on the comm stream, and the compute stream waits for each group of them. */
void zero_finish(ZeroStore *store);

/* ---- publish.c: weights on their way --------------------------------------------------------- */

/* The unit's whole weights are gathered from all ranks' shards with those of the bucket, up
 * to `most` elements at once. */
void zero_bucket_gather(ZeroStore *store, Bucket *bucket, int unit, int64_t most);
/* What is in the bucket has been put on the comm stream. */
void zero_bucket_finish(ZeroStore *store, Bucket *bucket);
/* All ranks have updated, or are about to, their shards of the unit: what is kept whole is gathered
 * now, with the next ones, or behind the table's last. */
void zero_publish(ParamStore *base, int unit);
/* The compute stream waits until the unit's weights are all there. */
void zero_await_weights(ZeroStore *store, int unit);

/* ---- gather.c: sharded weights for a use ----------------------------------------------------- */

/* Chooses the units that are sharded, and plans their gathers. */
void zero_plan_gathers(ZeroStore *store);
/* Nothing is gathered: the step begins with weights that may be new. */
void zero_forget_gathered(ZeroStore *store);
/* Whether the uses are those of the plan, from its beginning. */
bool zero_uses_planned(const ZeroStore *store, const Use *uses, int64_t n);
/* Between two uses, with overlap_comm: what the next one needs, or besides what is gathered ahead
 * by the plan, goes on its way. */
void zero_gather_next(ZeroStore *store);
void zero_gather_ahead(ZeroStore *store);
/* A use of a unit's weights begins: they are there, or on their way; it has ended. */
void zero_gather_for_use(ZeroStore *store, int unit);
void zero_drop_after_use(ZeroStore *store, int unit);

#endif
