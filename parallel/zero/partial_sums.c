/* partial_sums.c -- sums gradients of tied tables and tensor-parallel partial gradients, once per
 * step.
 *
 * Ranks that hold the same weights may each have only a part of their gradient. On tensor-parallel
 * ranks this happens for rows that all of them hold, because each rank has processed other tokens
 * or other heads (TpGrad). On the first and the last stage it happens for a tied table, because
 * each stage has one of its two uses.
 *
 * These sums follow the sum over the data-parallel ranks, and only this rank's shard is summed. The
 * ranks that add their gradients (tensor-parallel ranks, or the two stages of a tied table) have
 * the same layout of these units and the same shard of each, so corresponding elements are added,
 * and only elements that the rank will update are sent. At stage 0 gradients are whole, and whole
 * tensors are summed; the bits are the same, because sums are elementwise. */
#include "model/core/min_max.h"
#include "parallel/zero/state.h"

/* Returns the communicator over which gradients of rows of this kind are summed; NULL if each rank
 * has the whole gradient. */
static Comm *addends(const ZeroStore *s, TpGrad kind)
{
    Grid *grid = s->grid;
    switch (kind) {
    case TP_GRAD_PARTIAL: return &grid->tp;
    case TP_GRAD_PARTIAL_IF_SP: return s->options.sequence_parallel ? &grid->tp : NULL;
    case TP_GRAD_SUBGROUP: return &grid->kv;
    case TP_GRAD_CUT:
    case TP_GRAD_WHOLE: break;
    }
    return NULL;
}

/* Returns the part of elements [from, to) of a unit's gradient for which this rank has the sum over
 * the data-parallel ranks; NO_TENSOR if there is none. */
static Tensor kept_between(const ZeroStore *s, const UnitState *u, int64_t from, int64_t to)
{
    bool whole = s->options.stage == 0;
    int64_t begin = whole ? 0 : zero_own_begin(s, u);
    int64_t end = whole ? u->size : begin + u->own;
    from = max_i64(from, begin);
    to = min_i64(to, end);
    if (from >= to) return NO_TENSOR;
    return tensor_slice_rows(whole ? u->grad : zero_own(s, u->grad_part), from - begin, to - from);
}

/* Sums those rows of the unit whose gradients are summed over this communicator. Ranges of the same
 * kind are consecutive and are sent as one tensor. */
static void sum_rows(ZeroStore *s, int unit, Comm *comm)
{
    const Unit *rows = &s->base.table->unit[unit];
    for (int r = 0, next; r < rows->n_ranges; r = next) {
        const Range *first = &rows->range[r], *last = first;
        for (next = r + 1; next < rows->n_ranges && first->tp_grad == rows->range[next].tp_grad;)
            last = &rows->range[next++];
        if (addends(s, first->tp_grad) != comm) continue;
        Tensor kept = kept_between(s, &s->unit[unit], first->offset, last->offset + last->count);
        if (tensor_present(kept)) comm_all_reduce(comm, &s->comm, kept, REDUCE_SUM);
    }
}

static void sum_over(ZeroStore *s, Comm *comm)
{
    if (comm->size == 1) return;
    comm_group_begin(comm);
    for (int i = 0; i < s->base.table->n_units; i++) {
        const UnitState *u = &s->unit[i];
        if (!u->at_home) continue;
        flight_unit(s->dev->flight, i);
        /* The two stages that hold a tied table (its homes) each have a part of the gradient of
         * every row. In other units only the gradients of some rows have several addends. */
        if (comm != &s->grid->tie)
            sum_rows(s, i, comm);
        else if (s->base.table->unit[i].home.n > 1)
            comm_all_reduce(comm, &s->comm, kept_between(s, u, 0, u->size), REDUCE_SUM);
    }
    comm_group_end(comm);
    flight_unit(s->dev->flight, -1);
    zero_await_sums(s, comm);
}

bool zero_has_partial_sums(const ZeroStore *s)
{
    const Grid *grid = s->grid;
    return s->makes_gradients && (grid->tp.size > 1 || grid->kv.size > 1 || grid->tie.size > 1);
}

void zero_sum_partials(ZeroStore *s)
{
    sum_over(s, &s->grid->tp);
    sum_over(s, &s->grid->kv);
    sum_over(s, &s->grid->tie);
}
