/* zero_grid_counts.c -- checks how many elements a rank of zero_grid.c has sent, and the bytes that
 * it stores. */
#include "tests/support/grid/zero_grid_work.h"

static void check_count(ZeroGridWork *w, const Comm *comm, ZeroGridSent want)
{
    CommCount got = {0};
    int64_t steps = comm->size > 1 ? w->step + 1 : 0;
    for (int v = 0; v < COMM_VERBS; v++)
        for (int t = 0; t < DTYPE_COUNT; t++)
            if (v == COMM_ALL_REDUCE && t == (int)w->c->dtype)
                got = comm_counts(comm)->of[v][t];
            else if (comm_counts(comm)->of[v][t].calls > 0)
                zero_grid_wrong(w, "%s of %s over %s", comm_verb_name[v], dtype_name((DType)t),
                                comm->name);
    if (got.elements != want.elements * steps || got.calls != want.calls * steps)
        zero_grid_wrong(w,
                        "%s: %lld elements in %lld calls, not %lld in %lld in each of %lld steps",
                        comm->name, (long long)got.elements, (long long)got.calls,
                        (long long)want.elements, (long long)want.calls, (long long)steps);
}

/* Checks the sums of gradients over both groups of the data axis, and the gathers of the ranks that
 * hold the same part: once a step a sum and a gather, whatever the number of micro-batches. */
static void check_sums(ZeroGridWork *w, const ZeroGridWire *wire)
{
    bool scatter = w->c->zero.stage > 0 && !w->c->zero.all_reduce;
    const CommCount
        *own = comm_counts(&w->grid.shard)->of[scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE],
        *sum = comm_counts(&w->grid.replicate)->of[scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE],
        *gather = comm_counts(&w->grid.replicate)->of[COMM_ALL_GATHER];
    int64_t steps = w->step + 1;
    DType sent = w->c->zero.wire_dtype;
    const ZeroGridSent *want = &wire->replicate;
    if (w->c->size.dp > 1 && own[sent].elements != steps * wire->sums)
        zero_grid_wrong(w, "%lld elements summed in the shard group, not %lld",
                        (long long)own[sent].elements, (long long)(steps * wire->sums));
    if (sum[sent].elements != steps * want->elements || sum[sent].calls != steps * want->calls ||
        gather[w->c->dtype].elements != steps * want->elements ||
        gather[w->c->dtype].calls != steps * want->calls)
        zero_grid_wrong(
            w,
            "%lld elements summed in %lld calls between shard groups, %lld gathered in %lld, not "
            "%lld in %lld in each of %lld steps",
            (long long)sum[sent].elements, (long long)sum[sent].calls,
            (long long)gather[w->c->dtype].elements, (long long)gather[w->c->dtype].calls,
            (long long)want->elements, (long long)want->calls, (long long)steps);
}

void zero_grid_check_sent(ZeroGridWork *w)
{
    ZeroGridWire wire = zero_grid_wire(w->c, &w->table, &w->grid.at);
    check_count(w, &w->grid.tp, wire.tp);
    check_count(w, &w->grid.kv, wire.kv);
    check_count(w, &w->grid.tie, wire.tie);
    check_sums(w, &wire);
    if (zero_grid_stage(w->c) == 0 || zero_grid_shard(w->c) == 1) return;
    /* At stages 1 and 2 each unit is gathered once, after the update. At stage 3 check_weights
     * gathers each unit once, and training gathers the units that it uses. */
    int64_t got = comm_counts(&w->grid.shard)->of[COMM_ALL_GATHER][w->c->dtype].elements,
            uses = zero_grid_gathered(w->c, &w->table, w->use, w->n_uses),
            want = wire.units + (zero_grid_stage(w->c) == 3 ? uses : 0);
    want *= w->step + 1;
    if (got != want)
        zero_grid_wrong(w, "%lld elements gathered, not %lld", (long long)got, (long long)want);
}

/* Compares the bytes of weights and gradients with ZeRO's formulas, computed over padded units. If
 * one stage has both uses of a tied table, the table's gradient is stored whole. */
void zero_grid_check_stored(ZeroGridWork *w)
{
    ZeroBytes b = zero_bytes(w->store);
    int64_t weights = 0, gradients = 0, shard = zero_grid_shard(w->c),
            stage = zero_grid_stage(w->c);
    for (int u = 0; u < w->table.n_units; u++) {
        bool whole = stage < 2 || (w->c->tied && u == 0 && w->c->size.pp == 1);
        if (!zero_grid_here(&w->table, u, &w->grid.at)) continue;
        int64_t size = zero_grid_padded(w->c, &w->table, u);
        weights += size / (stage == 3 ? shard : 1);
        gradients += size / (whole ? 1 : shard);
    }
    int64_t each = (int64_t)dtype_size(w->c->dtype);
    if ((int64_t)b.weights != each * weights || (int64_t)b.gradients != each * gradients)
        zero_grid_wrong(w, "%zu bytes of weights, %zu of gradients, not %lld and %lld", b.weights,
                        b.gradients, (long long)(each * weights), (long long)(each * gradients));
    if (b.weights + b.gradients + b.gathered + b.transient + b.wire != w->dev.held)
        zero_grid_wrong(w, "the device holds %zu bytes", w->dev.held);
}
