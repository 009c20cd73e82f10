/* state.h -- what the files of this folder share: the store and the state of its units.
 *
 * A unit has facts that hold for the whole run and two states that change within a step: where its
 * weights are, and where its gradient is. README.md draws both. */
#ifndef PARALLEL_ZERO_STATE_H
#define PARALLEL_ZERO_STATE_H

#include "parallel/zero/bucket.h"
#include "parallel/zero/zero.h"

/* A hole between packs, or a unit's tail: zero at every reduction. */
typedef struct {
    int64_t offset, count; /* elements into the unit */
} Gap;

/* Where the whole, current weights of a unit are. */
typedef enum {
    WEIGHTS_AWAY,     /* on the ranks that own their shards; nobody has asked for them yet */
    WEIGHTS_QUEUED,   /* their gather is in a bucket */
    WEIGHTS_ARRIVING, /* their gather is on the comm stream; `ready` is its event */
    WEIGHTS_HERE,     /* in `weight`, for all that the compute stream is given from now on */
    WEIGHTS_HELD,     /* likewise, between acquire and release */
} WeightState;

/* Where a unit's gradient is. */
typedef enum {
    GRAD_NONE,    /* none has been made in this step */
    GRAD_HELD,    /* in `grad`, between grad_acquire and grad_release */
    GRAD_IN_SLOT, /* transient: a micro-batch's, complete, waits in its slot for the sum */
    GRAD_KEPT,    /* not transient: what this rank has added up so far, in `grad` */
    GRAD_SUMMED,  /* the sum over the data-parallel ranks is on the comm stream */
} GradState;

typedef struct {
    /* Facts of the run, from layout.c and gather.c. */
    bool at_home;   /* this stage is a home of the unit; else all sizes are 0 */
    bool sharded;   /* weights are kept as shards and gathered for a use */
    bool transient; /* whole gradients are made in a slot and summed at every release */
    bool used_late; /* a step uses a unit that comes later in the table before this one */
    int64_t size;   /* elements of the padded unit */
    int64_t part;   /* elements of a rank's shard of it */
    int first_gap;  /* in the store's list of gaps */
    int n_gaps;     /* how many the unit has */
    /* Flat, this rank's shards: what it updates, and the sum over the ranks. Where a whole is kept
     * they lie in it. */
    Tensor weight_part, grad_part;

    /* The weights. */
    WeightState weight_state;
    Tensor weight; /* flat, of `size` elements; of a sharded unit absent while it is away */
    Event ready;   /* on the comm stream: the weights have arrived */
    int64_t used;  /* sharded: the point of its latest use (prefetch.h) */
    int64_t last;  /* sharded: the last point of its stay */

    /* The gradient. */
    GradState grad_state;
    Tensor grad;  /* flat, of `size` elements; transient: in its slot, absent without one */
    int slot;     /* transient: which slot, while it has one */
    int releases; /* how many the step has */
    int released; /* how many there have been */
} UnitState;

/* Where transient gradients are made. There are two slots: a layer has up to two units, and one is
 * summed over the ranks while the next is filled. */
enum { ZERO_SLOTS = 2 };
typedef struct {
    Tensor memory; /* flat, room for the largest such unit */
    bool taken;    /* from a unit's grad_acquire until its sum is on the comm stream */
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

    /* The step. */
    const Use *uses;
    int64_t n_uses, next_use;
    int held;             /* how many weights and gradients are held */
    bool makes_gradients; /* some use of the step has a gradient */

    /* Collectives that are not on the comm stream yet. */
    Bucket summing;    /* gradients */
    Bucket publishing; /* updated weights of units that are kept whole */
    Bucket gathering;  /* weights of sharded units */
    Event computed;    /* on the compute stream: what the comm stream reads is there */
    Event reduced;     /* on the comm stream: sums have arrived */
    Slot slot[ZERO_SLOTS];
    int next_slot;

    /* Stage 3: the buffer of gathered weights, and the plan for it. */
    GatherPlan plan; /* for the uses that the store was laid out for: */
    Use *planned;
    int64_t n_planned;
    bool by_plan;      /* the step's uses are those of the plan, or the first of them */
    int64_t point;     /* how many uses of weights the step has had */
    int64_t next_stay; /* the first stay of the plan that has not been asked for */
    int64_t room;      /* elements of the buffer */
    Tensor gathered;   /* the buffer */
    int low, high;     /* without a plan: the units at the buffer's ends; -1: none */

    Tensor wire; /* flat; absent where gradients travel as they are kept */
    void *weights, *gradients, *gathered_memory, *transient, *wire_memory;
    ZeroBytes bytes;
};

/* ---- layout.c: sizes, memory, gaps ----------------------------------------------------------- */

/* Fills in the facts of all units: sizes, gaps, and how weights and gradients are kept. */
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

/* ---- reduce.c: sums of gradients over the data-parallel ranks -------------------------------- */

/* Gives the unit's gradient of this micro-batch a slot. The compute stream waits until the slot's
 * former gradient has been summed. */
void zero_take_slot(ZeroStore *store, int unit);
/* The unit's gradient, of this step or of this micro-batch, is complete on this rank: its sum joins
 * the bucket, which is issued when it is full. */
void zero_queue_sum(ZeroStore *store, int unit);
/* Puts the sums of transient gradients on the comm stream: their slots are needed again soon, so
 * they do not wait for a bucket to fill. */
void zero_issue_layer_sums(ZeroStore *store);
/* The compute stream waits for all sums on the comm stream so far. The wait is counted on the axis
 * of `comm`, the communicator of the last ones. */
void zero_await_sums(ZeroStore *store, Comm *comm);
/* The end of a step: all sums that are left, then those of partial_sums.c, are put on the comm
 * stream, and the compute stream waits for them. */
void zero_end_sums(ZeroStore *store);

/* ---- partial_sums.c: sums of gradients over the other axes of the grid ----------------------- */

/* Whether this step has gradients that are partial sums on another axis. */
bool zero_has_partial_sums(const ZeroStore *store);
/* Puts their sums on the comm stream; the compute stream waits for each group of them. */
void zero_sum_partials(ZeroStore *store);

/* ---- publish.c: gathers of weights, and updated weights -------------------------------------- */

/* The gather of the unit's weights joins the bucket, which is issued when it is full. */
void zero_queue_gather(ZeroStore *store, Bucket *bucket, int unit);
/* Puts the gathers of the bucket on the comm stream, and empties it. */
void zero_issue_gathers(ZeroStore *store, Bucket *bucket);
/* The compute stream waits until the unit's weights have arrived, if they were asked for; updated
 * weights that were not are asked for first. */
void zero_await_weights(ZeroStore *store, int unit);
/* ParamStore.publish: all ranks have put the update of their shards of the unit on their streams.
 * What is kept whole is gathered, in the order of the table but for units that are used late; what
 * was gathered for a use is out of date and dropped. */
void zero_publish(ParamStore *base, int unit);

/* ---- gather.c: sharded weights for their uses ------------------------------------------------ */

/* Chooses the units that are sharded, and plans their gathers for options.uses. */
void zero_plan_gathers(ZeroStore *store);
/* A step with these uses begins: all sharded weights are dropped, for they may be out of date, and
 * the plan is followed from its beginning if it is for these uses. */
void zero_begin_plan(ZeroStore *store, const Use *uses, int64_t n);
/* Between two uses, where the plan is followed with overlap_comm: asks for the weights of the next
 * use; or for these and for what the plan gathers ahead of its use. */
void zero_ask_for_next_use(ZeroStore *store);
void zero_ask_ahead(ZeroStore *store);
/* A use of a unit's weights begins: those that have not been asked for are. */
void zero_ask_for_use(ZeroStore *store, int unit);
/* A use of a unit's weights has ended: their place is free unless they stay for another use. */
void zero_drop_after_use(ZeroStore *store, int unit);
/* The weights of a sharded unit lose their place in the buffer. */
void zero_drop_weights(UnitState *unit);

#endif
