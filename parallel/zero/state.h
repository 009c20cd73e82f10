/* state.h -- declares the store and the state of its units, for the files of this folder.
 *
 * Some fields of a unit are constant for the whole run. Two states change within a step: where its
 * weights are, and where its gradient is. README.md has a figure of each. */
#ifndef PARALLEL_ZERO_STATE_H
#define PARALLEL_ZERO_STATE_H

#include "parallel/zero/bucket.h"
#include "parallel/zero/zero.h"

/* Elements of a unit that belong to no parameter: between parameters, or at the unit's end. Their
 * gradients must be zero whenever gradients are summed. */
typedef struct {
    int64_t offset, count; /* in elements; the offset is from the beginning of the unit */
} Gap;

/* Where the whole, up-to-date weights of a unit are. */
typedef enum {
    WEIGHTS_AWAY,     /* only on the ranks that own the shards; no gather was requested yet */
    WEIGHTS_QUEUED,   /* their gather is in a bucket */
    WEIGHTS_ARRIVING, /* their gather is on the comm stream; `ready` is its event */
    WEIGHTS_HERE,     /* in `weight`, for all work issued to the compute stream from now on; that
                       * stream must first wait for `updated`, if it is set */
    WEIGHTS_HELD,     /* also in `weight`, between acquire and release */
} WeightState;

/* Where a unit's gradient is. */
typedef enum {
    GRAD_NONE,    /* no gradient has been computed in this step */
    GRAD_HELD,    /* in `grad`, between grad_acquire and grad_release */
    GRAD_IN_SLOT, /* transient: one micro-batch's gradient is complete and waits in its slot for the
                     sum */
    GRAD_KEPT,    /* not transient: the sum of this rank's micro-batches so far, in `grad` */
    GRAD_SUMMED,  /* the sum over the data-parallel ranks has been issued to the comm stream */
} GradState;

typedef struct {
    /* Constant for the run; set by layout.c and gather.c. */
    bool at_home;   /* true: this pipeline stage has the unit; otherwise all sizes are 0 */
    bool sharded;   /* true: weights are kept as shards and gathered for a use */
    bool transient; /* true: whole gradients are computed in a slot and summed at every release */
    bool used_late; /* true: a step uses a later unit of the table before this one */
    int64_t size;   /* elements of the padded unit */
    int64_t part;   /* elements of one rank's part; all ranks of the group `replicate` hold the same
                       part */
    int64_t own;    /* elements of the part that each of these ranks updates */
    int first_gap;  /* index of its first gap in the store's list */
    int n_gaps;     /* number of its gaps */
    /* This rank's parts, flat: weights, and gradients summed over the ranks of the shard group. If
     * the whole tensor is stored, the parts lie within it. zero_own returns the share of a part
     * that this rank updates. */
    Tensor weight_part, grad_part;

    /* The weights. */
    WeightState weight_state;
    /* true: only this rank's share of its part is up to date, because the ranks that hold the
     * same part each update an equal share of it. false: the whole part is up to date for all
     * work issued to the comm stream from now on; that work must first wait for `updated`, if it
     * is set. */
    bool part_old;
    Tensor weight; /* flat, of `size` elements; absent while a sharded unit is away */
    Event ready;   /* recorded on the comm stream after the gather */
    /* The event after an update of this rank's shards on another stream. NULL: there was no such
     * update, or work that reads the shards already waits for it. */
    Event *updated;
    int turn;              /* the unit's number in the order in which all units were last updated */
    Event *gathered_after; /* the latest update for which the comm stream waited before it recorded
                              `ready`; NULL: there is none, or the compute stream has waited for it,
                              too */
    int64_t used;          /* sharded: the point of its most recent use (prefetch.h) */
    int64_t last;          /* sharded: the last point of its stay */

    /* The gradient. */
    GradState grad_state;
    Tensor grad;  /* flat, of `size` elements; transient: in its slot, absent if it has none */
    int slot;     /* transient: which slot, while it has one */
    int releases; /* how many times the step releases it */
    int released; /* how many times it has been released so far */
} UnitState;

/* A slot, in which transient gradients are computed. There are two: a layer has up to two units,
 * and one gradient is summed over the ranks while the next is computed. */
enum { ZERO_SLOTS = 2 };
typedef struct {
    Tensor memory; /* flat, with room for the largest transient unit */
    bool taken;    /* from a unit's grad_acquire until its sum is on the comm stream */
    Event free;    /* recorded on the comm stream after that sum */
} Slot;

struct ZeroStore {
    ParamStore base; /* first, so that a ParamStore pointer is also a ZeroStore pointer */
    Device *dev;     /* NULL: laid out, but not allocated */
    Device comm;     /* the device's comm stream, on which collectives run */
    Grid *grid;
    ZeroOptions options; /* the stage is 0 with one data-parallel rank, else at most 1 if a shard
                            group has one rank */
    UnitState *unit;
    Gap *gap;
    int n_gaps;
    int *order; /* the order of updates: units that are used late come last */

    /* The step. */
    const Use *uses;
    int64_t n_uses, next_use;
    int held;             /* number of weights and gradients that are held now */
    bool makes_gradients; /* whether some use of the step has a gradient */

    /* Collectives that have not been issued to the comm stream yet. */
    Bucket summing;    /* gradients */
    Bucket publishing; /* updated weights of units that are stored whole */
    Bucket gathering;  /* weights of sharded units */
    Event computed; /* recorded on the compute stream: the inputs of the comm stream are complete */
    Event reduced;  /* recorded on the comm stream after sums */
    Slot slot[ZERO_SLOTS];
    int next_slot;

    /* Stage 3: the buffer of gathered weights and its plan. */
    GatherPlan plan; /* made for the uses in `planned`, those given to zero_create */
    Use *planned;
    int64_t n_planned;
    bool by_plan;      /* whether the step's uses are those of the plan, or its first ones */
    int64_t point;     /* number of uses of weights in the step so far */
    int64_t next_stay; /* the first stay of the plan whose gather has not been requested */
    int64_t room;      /* elements of the buffer */
    Tensor gathered;   /* the buffer */
    int low, high;     /* without a plan: the units at the two ends of the buffer; -1: none */

    /* Progress of an update of all units: the number of units that have been published, and the
     * number of those whose gathers have been requested. */
    int published, asked;
    /* Updates on another stream. `latest` is the latest update of this step for which the comm
     * stream has waited, and `latest_turn` its turn. NULL: the compute stream has waited for it,
     * too, or (if latest_turn is -1) there is none. */
    Event *latest;
    int latest_turn;
    Exposed *updates; /* measures waits for updates; NULL: they are not measured */

    Tensor wire; /* flat: gradients in the dtype in which they are sent; absent if they are stored
                    in this dtype */
    void *weights, *gradients, *gathered_memory, *transient, *wire_memory;
    ZeroBytes bytes;
};

/* ---- layout.c: sizes, memory, gaps ----------------------------------------------------------- */

/* Sets the constants of all units: sizes, gaps, and how weights and gradients are stored. */
void zero_layout_units(ZeroStore *store);
/* Places all tensors: in measuring arenas for the memory plan, and in the device's arenas for the
 * allocation. */
typedef struct {
    Arena weights, gradients, gathered, transient, wire;
} ZeroArenas;
void zero_layout_memory(ZeroStore *store, ZeroArenas *arenas);
/* zero_part returns this rank's part of a flat tensor of a whole unit. zero_own returns the share
 * of a part that this rank updates, and zero_own_begin returns the element of the unit at which
 * this share begins. */
Tensor zero_part(const ZeroStore *store, Tensor whole);
Tensor zero_own(const ZeroStore *store, Tensor part);
int64_t zero_own_begin(const ZeroStore *store, const UnitState *unit);
int zero_shards(ParamStore *base, Purpose purpose, Shard *shards, int max);

/* ---- reduce.c: sums of gradients over the data-parallel ranks -------------------------------- */

/* Assigns a slot to the unit's gradient of this micro-batch. The compute stream waits until the
 * slot's previous gradient has been summed. */
void zero_take_slot(ZeroStore *store, int unit);
/* Queues the sum of the unit's gradient over the data-parallel ranks: puts the unit into the
 * bucket, and issues the bucket if it is full. The gradient of this step, or of this micro-batch,
 * must be complete on this rank. */
void zero_queue_sum(ZeroStore *store, int unit);
/* Issues the sums of transient gradients to the comm stream. Their slots are needed again soon, so
 * the sums do not wait until a bucket is full. */
void zero_issue_layer_sums(ZeroStore *store);
/* Makes the compute stream wait for all sums issued to the comm stream so far. The waiting time is
 * counted on the axis of `comm`, the communicator of the last sums. */
void zero_await_sums(ZeroStore *store, Comm *comm);
/* To be called at the end of a step: issues all remaining sums to the comm stream, then the sums of
 * partial_sums.c, and makes the compute stream wait for them. */
void zero_end_sums(ZeroStore *store);

/* ---- partial_sums.c: sums of gradients over the other axes of the grid ----------------------- */

/* Returns whether this step has gradients that are partial sums on another axis. */
bool zero_has_partial_sums(const ZeroStore *store);
/* Issues the sums of these gradients to the comm stream. The compute stream waits for each group of
 * sums. */
void zero_sum_partials(ZeroStore *store);

/* ---- publish.c: gathers of weights, and updated weights -------------------------------------- */

/* Adds the gather of the unit's weights to the bucket, and issues the bucket if it is full. */
void zero_queue_gather(ZeroStore *store, Bucket *bucket, int unit);
/* Issues the gathers of the bucket to the comm stream and empties the bucket. */
void zero_issue_gathers(ZeroStore *store, Bucket *bucket);
/* If this rank's part of the unit is not up to date, issues a gather of the part from the ranks
 * that hold the same part. The gather of the whole unit, which the same ranks request later, is
 * executed after it. */
void zero_gather_part(ZeroStore *store, int unit);
/* Makes the compute stream wait until the unit's weights have arrived, if their gather was
 * requested. If the unit has updated weights and no gather was requested, requests it first. */
void zero_await_weights(ZeroStore *store, int unit);
/* Implements ParamStore.publish: all ranks have issued the update of their shards of the unit.
 * Whatever reads the shards next waits for the update: the unit's gather or, if it has none, the
 * compute stream at the next acquire or at the end of the step. Weights that are stored whole are
 * gathered in the order of these calls, except for units that are used late. Weights that were
 * gathered for a use are out of date and are dropped; the next gather for a use brings this rank's
 * part up to date first. */
void zero_publish(ParamStore *base, int unit, Event *updated);

/* ---- gather.c: sharded weights for their uses ------------------------------------------------ */

/* Chooses the units that are sharded, and plans their gathers for options.uses. */
void zero_plan_gathers(ZeroStore *store);
/* Begins a step with these uses: drops all sharded weights, because they may be out of date, and
 * follows the plan from its beginning if it was made for these uses. */
void zero_begin_plan(ZeroStore *store, const Use *uses, int64_t n);
/* Called between two uses; both do nothing unless the plan is followed with overlap_comm.
 * zero_ask_for_next_use requests the weights of the next use; zero_ask_ahead also requests those
 * that the plan prefetches. */
void zero_ask_for_next_use(ZeroStore *store);
void zero_ask_ahead(ZeroStore *store);
/* Begins a use of a unit's weights: requests their gather if that has not happened yet. */
void zero_ask_for_use(ZeroStore *store, int unit);
/* Ends a use of a unit's weights: their memory becomes free unless they are kept for another use.
 */
void zero_drop_after_use(ZeroStore *store, int unit);
/* Removes the weights of a sharded unit from the buffer. */
void zero_drop_weights(UnitState *unit);

#endif
