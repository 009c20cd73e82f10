/* grid_faults.c -- injects the faults of grid_faults.h. Each rank is a thread, and its replaced
 * function tables are thread-local. */
#include "tests/support/grid/grid_fault_state.h"

#include "model/core/check.h"
#include "tests/support/grid/schedule_faults.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const grid_fault_name[FAULT_COUNT] = {
    [FAULT_NONE] = "none",
    [FAULT_SKIPPED_REDUCE] = "skipped reduce",
    [FAULT_16_BIT_SUM] = "16-bit sum",
    [FAULT_LOCAL_DECISION] = "decision from local sums",
    [FAULT_LOCAL_MAXIMUM] = "maximum per vocabulary shard",
    [FAULT_LOCAL_KV] = "kv subgroup not summed",
    [FAULT_LOCAL_TIE] = "tied gradient on one stage only",
    [FAULT_DECLARED_WHOLE] = "partial row declared whole",
    [FAULT_COUNTED_OFTEN] = "norm counts a replicated row tp times",
    [FAULT_EARLY_BIAS] = "row-cut bias added before the sum",
    [FAULT_ALL_COLUMNS] = "column sums of gathered rows",
    [FAULT_GROUPS_APART] = "shard groups not summed",
    [FAULT_GROUPS_TWICE] = "shard groups summed twice",
    [FAULT_OTHER_SHARE] = "share of the wrong group",
    [FAULT_SKIPPED_UNIT] = "skipped unit",
    [FAULT_UNPUBLISHED] = "unpublished unit",
    [FAULT_GAP] = "gap not zeroed",
    [FAULT_STALE] = "publish before update",
    [FAULT_OLD_GATHER] = "stale prefetch",
    [FAULT_OTHER_BATCH] = "batch of the wrong slot",
    [FAULT_SWAPPED] = "activation and gradient swapped",
    [FAULT_DRIFT] = "drifted replica",
    [FAULT_DRIFT_TENSOR] = "drifted tensor-parallel replica",
    [FAULT_DRIFT_KV] = "drifted shared head",
    [FAULT_DRIFT_TIE] = "drifted tied table",
};

_Thread_local Planted planted;

/* ---- the store ------------------------------------------------------------------------------- */

static void pass_step_begin(ParamStore *s, const Use *uses, int64_t n)
{
    (void)s;
    planted.reductions = planted.gathers = 0;
    planted.in_step = n > 0;
    planted.real->step_begin(planted.real, uses, n);
}

/* Returns whether the fault changes a weight of this row on this rank, but not on the other ranks
 * that hold a replica of the row. */
static bool drifts(const Param *row)
{
    const Grid *grid = &planted.trainer->session.grid;
    const Home *home = &planted.trainer->session.table.unit[row->unit].home;
    bool last = grid->at.tp == grid->size.tp - 1;
    switch (planted.fault) {
    case FAULT_DRIFT: return grid->size.dp > 1 && grid->at.dp == grid->size.dp - 1;
    case FAULT_DRIFT_TENSOR: return grid->size.tp > 1 && last && row->tp_dim < 0;
    case FAULT_DRIFT_KV: return last && row->sharers > 1;
    case FAULT_DRIFT_TIE: return home->n > 1 && grid->at.pp == home->stage[1];
    default: return false;
    }
}

/* Acquires a unit and, for a drifted replica, changes the first weight of the first row that
 * drifts. It does so whenever weights are read outside a training step, but not before the last
 * step that is compared element by element. */
static void pass_acquire(ParamStore *s, int unit)
{
    const Unit *of = &s->table->unit[unit];
    planted.real->acquire(planted.real, unit);
    if (planted.in_step || planted.trainer->steps < GRID_COMPARED) return;
    for (int p = of->first; p < of->first + of->count; p++) {
        if (!drifts(&s->table->param[p])) continue;
        Tensor first = planted.real->weight(planted.real, p, 1);
        dtype_set(first.dtype, first.data, 0, 2);
        return;
    }
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

/* Ends a step. For FAULT_STALE it publishes every unit here, before the update, not after it. */
static void pass_step_end(ParamStore *s)
{
    planted.real->step_end(planted.real);
    for (int u = 0; planted.fault == FAULT_STALE && u < s->table->n_units; u++)
        planted.real->publish(planted.real, u, NULL);
}

/* Returns the shards of a purpose. For FAULT_COUNTED_OFTEN every rank counts its elements as if it
 * were the first rank of its tensor-parallel group. */
static int pass_shards(ParamStore *s, Purpose purpose, Shard *shards, int max)
{
    GridPlace *at = &planted.trainer->session.grid.at, real = *at;
    (void)s;
    if (planted.fault == FAULT_COUNTED_OFTEN && purpose == PURPOSE_COUNT) at->tp = 0;
    int n = planted.real->shards(planted.real, purpose, shards, max);
    *at = real;
    return n;
}

static void pass_publish(ParamStore *s, int unit, Event *updated)
{
    (void)s;
    /* trainer_allocate publishes the initial weights; no fault is injected there. */
    bool training = planted.trainer->steps > 0 || planted.reductions > 0;
    if (training && planted.fault == FAULT_STALE) return;
    if (training && planted.fault == FAULT_UNPUBLISHED && unit == FAULTY_UNIT) return;
    planted.real->publish(planted.real, unit, updated);
}

static void plant_store(Trainer *t)
{
    planted.real = t->session.params;
    planted.base = (ParamStore){.table = planted.real->table,
                                .at = planted.real->at,
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

/* Sums a part over the ranks that hold it. For FAULT_OTHER_SHARE each gets what belongs to the one
 * before it. */
static void replicate_reduce_scatter(Comm *comm, Device *on, Tensor own, Tensor part)
{
    size_t size = tensor_bytes(own), all = tensor_bytes(part);
    if (planted.fault == FAULT_GROUPS_APART) return;
    if (planted.fault == FAULT_OTHER_SHARE) {
        char *last = must_alloc(size);
        memcpy(last, (char *)part.data + all - size, size);
        memmove((char *)part.data + size, part.data, all - size);
        memcpy(part.data, last, size);
        free(last);
    }
    planted.replicate_real->reduce_scatter(comm, on, own, part);
    if (planted.fault == FAULT_GROUPS_TWICE)
        planted.replicate_real->reduce_scatter(comm, on, own, part);
}

/* Gathers weights. For FAULT_OLD_GATHER it returns the result that the same gather had in the
 * previous step, and stores the new result for the next step. */
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

/* Reduces over an axis, unless the fault omits this reduction. The address of x identifies the sums
 * of a step's decision. A maximum on the device is a maximum of logits. */
static void all_reduce_over(int axis, Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    const TrainerState *state = planted.trainer->state;
    bool decides = state && x.data == &state->stats;
    if (decides && planted.fault == FAULT_LOCAL_DECISION) return;
    if (on && op == REDUCE_MAX && planted.fault == FAULT_LOCAL_MAXIMUM) return;
    planted.axis_real[axis]->all_reduce(comm, on, x, op);
}
static void pp_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    all_reduce_over(0, comm, on, x, op);
}
static void dp_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    all_reduce_over(1, comm, on, x, op);
}
static void tp_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    all_reduce_over(2, comm, on, x, op);
}

/* Both host and device reduce over kv and tie. Only the device's sums are omitted: the host uses
 * these groups to compare replicas. */
static void kv_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    if (on == NULL || planted.fault != FAULT_LOCAL_KV) planted.kv_real->all_reduce(comm, on, x, op);
}
static void tie_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    if (on == NULL || planted.fault != FAULT_LOCAL_TIE)
        planted.tie_real->all_reduce(comm, on, x, op);
}

/* Gives comm a copy of its function table with another all_reduce. Returns the original table. */
static const CommOps *replace_all_reduce(Comm *comm, CommOps *copy,
                                         void (*all_reduce)(Comm *, Device *, Tensor, ReduceOp))
{
    const CommOps *real = comm->ops;
    *copy = *real;
    copy->all_reduce = all_reduce;
    comm->ops = copy;
    return real;
}

static void plant_comms(Trainer *t)
{
    Grid *grid = &t->session.grid;
    planted.shard_real = replace_all_reduce(&grid->shard, &planted.shard_ops, shard_all_reduce);
    planted.shard_ops.reduce_scatter = shard_reduce_scatter;
    planted.shard_ops.all_gather = shard_all_gather;
    planted.replicate_real = replace_all_reduce(&grid->replicate, &planted.replicate_ops,
                                                grid->replicate.ops->all_reduce);
    planted.replicate_ops.reduce_scatter = replicate_reduce_scatter;
    planted.axis_real[0] = replace_all_reduce(&grid->pp, &planted.axis_ops[0], pp_all_reduce);
    planted.axis_real[1] = replace_all_reduce(&grid->dp, &planted.axis_ops[1], dp_all_reduce);
    planted.axis_real[2] = replace_all_reduce(&grid->tp, &planted.axis_ops[2], tp_all_reduce);
    planted.kv_real = replace_all_reduce(&grid->kv, &planted.kv_ops, kv_all_reduce);
    planted.tie_real = replace_all_reduce(&grid->tie, &planted.tie_ops, tie_all_reduce);
}

/* ---- parameters and actions ------------------------------------------------------------------ */

static void plant_rows(ParamTable *table)
{
    for (int u = 0; planted.fault == FAULT_DECLARED_WHOLE && u < table->n_units; u++)
        for (int r = 0; r < table->unit[u].n_ranges; r++) {
            TpGrad *finish = &table->unit[u].range[r].tp_grad;
            if (*finish == TP_GRAD_PARTIAL || *finish == TP_GRAD_PARTIAL_IF_SP)
                *finish = TP_GRAD_WHOLE;
        }
}

static void plant_actions(Schedule *schedule)
{
    if (planted.fault == FAULT_OTHER_BATCH) schedule_swap_batches(schedule);
    if (planted.fault == FAULT_SWAPPED) schedule_swap_inputs(schedule);
}

static void plant(Trainer *t, void *context)
{
    planted = (Planted){.trainer = t, .fault = *(const GridFault *)context};
    plant_store(t);
    plant_comms(t);
    plant_rows(&t->session.table);
    plant_actions(&t->session.step.schedule);
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
