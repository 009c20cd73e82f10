/* grid_faults.c -- see grid_faults.h. Each rank is a thread and has tables of its own. */
#include "tests/support/grid_faults.h"

#include "model/kernels/ops.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const grid_fault_name[FAULT_COUNT] = {
    [FAULT_NONE] = "none",
    [FAULT_SKIPPED_REDUCE] = "skipped reduce",
    [FAULT_SKIPPED_UNIT] = "skipped unit",
    [FAULT_UNPUBLISHED] = "unpublished unit",
    [FAULT_16_BIT_SUM] = "16-bit sum",
    [FAULT_LOCAL_DECISION] = "decision from local sums",
    [FAULT_GAP] = "gap not zeroed",
    [FAULT_STALE] = "publish before update",
    [FAULT_OLD_GATHER] = "stale prefetch",
    [FAULT_DRIFT] = "drifted replica",
};

enum { MOST_GATHERS = 256 };

/* What a rank's tables were, and what they are. */
typedef struct {
    ParamStore base; /* first: the contract's pointer is this */
    ParamStore *real;
    Trainer *trainer;
    GridFault fault;
    CommOps shard_ops, dp_ops;
    const CommOps *shard_real;
    OpTable ops[2]; /* of floats, of doubles */
    const OpTable *ops_real[2];
    int64_t reductions;
    bool in_step; /* with gradients */
    int gathers;  /* of the step so far, ... */
    struct {
        void *bytes;
        size_t size;
    } gathered[MOST_GATHERS]; /* ... and what each gave a step ago */
} Planted;
static _Thread_local Planted planted;

/* ---- the store ------------------------------------------------------------------------------- */

enum { FAULTY_UNIT = 2 };

static void pass_step_begin(ParamStore *s, const Use *uses, int64_t n)
{
    (void)s;
    planted.reductions = planted.gathers = 0;
    planted.in_step = n > 0;
    planted.real->step_begin(planted.real, uses, n);
}

/* A drifted replica: the last rank's first weight, whenever weights are read between two steps,
 * once all that is compared element by element has been computed. */
static void pass_acquire(ParamStore *s, int unit)
{
    (void)s;
    const Grid *grid = &planted.trainer->session.grid;
    planted.real->acquire(planted.real, unit);
    if (planted.fault != FAULT_DRIFT || unit > 0 || planted.in_step ||
        planted.trainer->steps < GRID_COMPARED || grid->at.dp != grid->size.dp - 1)
        return;
    Tensor first = planted.real->weight(planted.real, 0, 1);
    dtype_set(first.dtype, first.data, 0, 2);
}
static void pass_release(ParamStore *s, int unit)
{
    (void)s;
    planted.real->release(planted.real, unit);
}
static Tensor pass_weight(ParamStore *s, int param, int n)
{
    (void)s;
    return planted.real->weight(planted.real, param, n);
}
static bool pass_grad_acquire(ParamStore *s, int unit)
{
    (void)s;
    return planted.real->grad_acquire(planted.real, unit);
}
static Tensor pass_grad(ParamStore *s, int param, int n)
{
    (void)s;
    return planted.real->grad(planted.real, param, n);
}
static void pass_grad_release(ParamStore *s, int unit)
{
    (void)s;
    planted.real->grad_release(planted.real, unit);
}

/* Stale weights: every unit is published here, when the gradients are there, and not after its
 * update. */
static void pass_step_end(ParamStore *s)
{
    planted.real->step_end(planted.real);
    for (int u = 0; planted.fault == FAULT_STALE && u < s->table->n_units; u++)
        planted.real->publish(planted.real, u);
}

static int pass_shards(ParamStore *s, Purpose purpose, Shard *shards, int max)
{
    (void)s;
    return planted.real->shards(planted.real, purpose, shards, max);
}

static void pass_publish(ParamStore *s, int unit)
{
    (void)s;
    /* In trainer_allocate initial weights are published: no fault yet. */
    bool training = planted.trainer->steps > 0 || planted.reductions > 0;
    if (training && planted.fault == FAULT_STALE) return;
    if (training && planted.fault == FAULT_UNPUBLISHED && unit == FAULTY_UNIT) return;
    planted.real->publish(planted.real, unit);
}

static void plant_store(Trainer *t)
{
    planted.real = t->session.params;
    planted.base = (ParamStore){.table = planted.real->table,
                                .step_begin = pass_step_begin,
                                .acquire = pass_acquire,
                                .release = pass_release,
                                .weight = pass_weight,
                                .grad_acquire = pass_grad_acquire,
                                .grad = pass_grad,
                                .grad_release = pass_grad_release,
                                .step_end = pass_step_end,
                                .shards = pass_shards,
                                .publish = pass_publish};
    t->session.params = &planted.base;
}

/* ---- communicators --------------------------------------------------------------------------- */

enum { FAULTY_REDUCTION = 2 };

static bool left_out(void)
{
    return planted.reductions++ == FAULTY_REDUCTION && planted.fault == FAULT_SKIPPED_REDUCE;
}

static void shard_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    if (!left_out()) planted.shard_real->all_reduce(comm, on, x, op);
}

static void shard_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    if (!left_out()) planted.shard_real->reduce_scatter(comm, on, part, whole);
}

/* Keeps what is gathered for the same use of the next step, which gets it. */
static void shard_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    planted.shard_real->all_gather(comm, on, whole, part);
    if (planted.fault != FAULT_OLD_GATHER || !planted.in_step || planted.gathers == MOST_GATHERS)
        return;
    int at = planted.gathers++;
    size_t size = tensor_bytes(whole);
    void *now = memcpy(must_alloc(size), whole.data, size), *old = planted.gathered[at].bytes;
    if (old && planted.gathered[at].size == size) memcpy(whole.data, old, size);
    free(old);
    planted.gathered[at].bytes = now;
    planted.gathered[at].size = size;
}

static void no_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    (void)comm, (void)on, (void)x, (void)op;
}

static void plant_comms(Trainer *t)
{
    Grid *grid = &t->session.grid;
    planted.shard_real = grid->shard.ops;
    planted.shard_ops = *grid->shard.ops;
    planted.shard_ops.all_reduce = shard_all_reduce;
    planted.shard_ops.reduce_scatter = shard_reduce_scatter;
    planted.shard_ops.all_gather = shard_all_gather;
    grid->shard.ops = &planted.shard_ops;
    planted.dp_ops = *grid->dp.ops;
    planted.dp_ops.all_reduce = no_all_reduce;
    if (planted.fault == FAULT_LOCAL_DECISION) grid->dp.ops = &planted.dp_ops;
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Of gradients: the three numbers of a step's decision stay as they are. */
static void narrow_sum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    planted.ops_real[dst.dtype == F64]->sum(dev, dst, src, n);
    if (dst.dtype == F64) return;
    for (int64_t i = 0; i < tensor_count(dst); i++) {
        uint16_t narrow;
        dtype_set(BF16, &narrow, 0, dtype_get(dst.dtype, dst.data, i));
        dtype_set(dst.dtype, dst.data, i, dtype_get(BF16, &narrow, 0));
    }
}

/* Zeros are only written to gaps, and at the start to fresh memory, which has them. */
static void no_zeros(Device *dev, Tensor x, double value)
{
    if (value != 0) planted.ops_real[x.dtype == F64]->fill(dev, x, value);
}

/* Whether the last rank is about to update its part of the faulty unit. */
static bool forgotten(Tensor weight)
{
    const Trainer *t = planted.trainer;
    const Grid *grid = &t->session.grid;
    for (int i = 0; i < t->optimizer.n_shards; i++) {
        const Shard *shard = &t->optimizer.shard[i].shard;
        if (shard->unit == FAULTY_UNIT && shard->weight.data == weight.data)
            return grid->at.dp == grid->size.dp - 1;
    }
    return false;
}

static void some_adamw(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor exp_avg,
                       Tensor exp_avg_sq, const StepDecision *decision, const AdamW *hyper,
                       const Rounding *rounding)
{
    if (!forgotten(weight))
        planted.ops_real[weight.dtype == F64]->adamw(dev, weight, grad, master, exp_avg, exp_avg_sq,
                                                     decision, hyper, rounding);
}

static void some_sgd(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor momentum,
                     const StepDecision *decision, const Sgd *hyper, const Rounding *rounding)
{
    if (!forgotten(weight))
        planted.ops_real[weight.dtype == F64]->sgd(dev, weight, grad, master, momentum, decision,
                                                   hyper, rounding);
}

static void plant_ops(Trainer *t)
{
    Device *dev = &t->session.dev;
    planted.ops_real[0] = dev->ops;
    planted.ops_real[1] = dev->ops_f64;
    for (int i = 0; i < 2; i++) {
        planted.ops[i] = *planted.ops_real[i];
        if (planted.fault == FAULT_16_BIT_SUM) planted.ops[i].sum = narrow_sum;
        if (planted.fault == FAULT_SKIPPED_UNIT) {
            planted.ops[i].adamw = some_adamw;
            planted.ops[i].sgd = some_sgd;
        }
        if (planted.fault == FAULT_GAP) planted.ops[i].fill = no_zeros;
    }
    dev->ops = &planted.ops[0];
    dev->ops_f64 = &planted.ops[1];
}

static void plant(Trainer *t, void *context)
{
    planted = (Planted){.trainer = t, .fault = *(const GridFault *)context};
    plant_store(t);
    plant_comms(t);
    plant_ops(t);
}

static void uproot(Trainer *t, void *context)
{
    (void)t, (void)context;
    for (int i = 0; i < MOST_GATHERS; i++)
        free(planted.gathered[i].bytes);
    planted = (Planted){0};
}

GridHooks grid_fault_hooks(GridFault fault)
{
    static GridFault kept[FAULT_COUNT];
    kept[fault] = fault;
    return (GridHooks){.opened = plant, .closed = uproot, .context = &kept[fault]};
}
