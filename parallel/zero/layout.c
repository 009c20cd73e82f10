/* layout.c -- how the store lays out units: padding and shards, memory, gaps, and this rank's
 * runs. */
#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/zero/state.h"

#include <stdlib.h>

/* Lists the holes of a unit: what no parameter covers, its padding to equal shards included. */
static void find_gaps(ZeroStore *s, const Unit *unit, UnitState *u)
{
    const ParamTable *table = s->base.table;
    int64_t at = 0;
    u->first_gap = s->n_gaps;
    while (at < u->size) {
        int64_t next = u->size, end = at;
        for (int i = unit->first; i < unit->first + unit->count; i++) {
            const Param *p = &table->param[i];
            if (p->offset == at) end = at + p->local[0] * p->local[1];
            if (p->offset > at && p->offset < next) next = p->offset;
        }
        if (end == at) s->gap[s->n_gaps++] = (Gap){.offset = at, .count = next - at};
        at = end == at ? next : end;
    }
    u->n_gaps = s->n_gaps - u->first_gap;
}

/* Which units' gradients are made in a buffer and summed at every release. One that has several
 * releases in a micro-batch on this stage, a tied table's that has its embedding and its head here,
 * would hold a buffer from the first to the last, and is kept whole. Every unit has one release in
 * a micro-batch at least, so those with the fewest have one. */
static void choose_transient(ZeroStore *s)
{
    const ZeroOptions *o = &s->options;
    int64_t fewest = INT64_MAX;
    if (o->stage < 2 || !o->gradients) return;
    CHECK(o->n_uses > 0, "gradients of stage %d without a step's uses", o->stage);
    int64_t *releases = must_calloc((size_t)s->base.table->n_units, sizeof *releases);
    for (int64_t i = 0; i < o->n_uses; i++)
        releases[o->uses[i].unit] += o->uses[i].gradient;
    for (int i = 0; i < s->base.table->n_units; i++)
        if (s->unit[i].here) fewest = min_i64(fewest, releases[i]);
    CHECK(fewest > 0, "a unit without a gradient in a step");
    for (int i = 0; i < s->base.table->n_units; i++)
        s->unit[i].transient = s->unit[i].here && releases[i] == fewest;
    free(releases);
}

/* A sum, or a gather, is waited for with all of its group. With overlap_comm groups are small
 * enough that most of them are under way while gradients are still made and weights are used
 * already, on a model of any size. */
static void choose_buckets(ZeroStore *s)
{
    const int64_t GROUPS = 8;
    ZeroOptions *o = &s->options;
    int64_t all = 0;
    if (!o->overlap_comm) return;
    for (int i = 0; i < s->base.table->n_units; i++)
        all += s->unit[i].size;
    o->reduce_bucket_size = min_i64(o->reduce_bucket_size, all / GROUPS + 1);
    o->allgather_bucket_size = min_i64(o->allgather_bucket_size, all / GROUPS + 1);
}

/* Gathers are done in the order in which they are asked for, so that of the unit which a step uses
 * first must not be behind others: a tied table comes first in the parameters' table, and on the
 * last stage it is used last. */
static void find_used_late(ZeroStore *s)
{
    bool *used = must_calloc((size_t)s->base.table->n_units, sizeof *used);
    int highest = -1; /* of the units used so far */
    for (int64_t i = 0; i < s->options.n_uses; i++) {
        const Use *use = &s->options.uses[i];
        if (!use->weight || used[use->unit]) continue;
        used[use->unit] = true;
        s->unit[use->unit].used_late = use->unit < highest;
        if (use->unit > highest) highest = use->unit;
    }
    free(used);
}

void zero_layout_units(ZeroStore *s)
{
    const ParamTable *table = s->base.table;
    int64_t grain = PARAM_ALIGNMENT * s->grid->shard.size;
    s->gap = must_calloc((size_t)(table->n_params + table->n_units), sizeof *s->gap);
    for (int i = 0; i < table->n_units; i++) {
        UnitState *u = &s->unit[i];
        u->here = home_is(&table->unit[i].home, s->grid->at.pp);
        if (!u->here) continue;
        u->size = (table->unit[i].size + grain - 1) / grain * grain;
        u->part = u->size / s->grid->shard.size;
        find_gaps(s, &table->unit[i], u);
    }
    choose_buckets(s);
    find_used_late(s);
    choose_transient(s);
    zero_plan_gathers(s);
}

/* Elements of the largest unit, or of the largest whose gradient is transient. */
static int64_t largest_unit(const ZeroStore *s, bool transient)
{
    int64_t largest = 0;
    for (int i = 0; i < s->base.table->n_units; i++)
        if (s->unit[i].transient || !transient) largest = max_i64(largest, s->unit[i].size);
    return largest;
}

/* Elements of the largest bucket of gradients that travel in another type. */
static int64_t wire_elements(const ZeroStore *s)
{
    int64_t largest = largest_unit(s, false), all = 0;
    for (int i = 0; i < s->base.table->n_units; i++)
        all += s->unit[i].size;
    /* From stage 2 on a bucket is of one layer, of two units at most. */
    if (s->options.stage >= 2) all = min_i64(all, 2 * largest);
    return max_i64(largest, min_i64(s->options.reduce_bucket_size, all));
}

static void layout_gradients(ZeroStore *s, ZeroArenas *arenas)
{
    DType dtype = s->options.grad_dtype;
    for (int i = 0; i < s->base.table->n_units; i++) {
        UnitState *u = &s->unit[i];
        if (!u->here) continue;
        Tensor kept =
            arena_tensor(&arenas->gradients, dtype, 1, u->transient ? u->part : u->size, 0, 0);
        u->grad = u->transient ? NO_TENSOR : kept;
        u->grad_part = u->transient ? kept : zero_part(s, kept);
    }
    int64_t room = largest_unit(s, true);
    for (int i = 0; i < ZERO_SLOTS && room > 0; i++)
        s->slot[i].memory = arena_tensor(&arenas->transient, dtype, 1, room, 0, 0);
    if (s->options.wire_dtype != dtype && s->grid->shard.size > 1)
        s->wire = arena_tensor(&arenas->wire, s->options.wire_dtype, 1, wire_elements(s), 0, 0);
}

void zero_layout_memory(ZeroStore *s, ZeroArenas *arenas)
{
    const ParamTable *table = s->base.table;
    for (int i = 0; i < table->n_units; i++) {
        UnitState *u = &s->unit[i];
        if (!u->here) continue;
        Tensor kept = arena_tensor(&arenas->weights, table->unit[i].dtype, 1,
                                   u->sharded ? u->part : u->size, 0, 0);
        u->weight = u->sharded ? NO_TENSOR : kept;
        u->weight_part = u->sharded ? kept : zero_part(s, kept);
    }
    if (s->room > 0)
        s->gathered = arena_tensor(&arenas->gathered, table->unit[0].dtype, 1, s->room, 0, 0);
    if (s->options.gradients) layout_gradients(s, arenas);
}

Tensor zero_part(const ZeroStore *s, Tensor whole)
{
    int64_t part = tensor_count(whole) / s->grid->shard.size;
    return tensor_slice_rows(whole, part * s->grid->shard.rank, part);
}

/* Whether this rank counts a range of a unit: all rows of a range are cut alike, so its first row
 * answers for all. */
static bool counted_here(const ZeroStore *s, const Unit *unit, const Range *range)
{
    const ParamTable *table = s->base.table;
    int i = unit->first;
    while (table->param[i].offset != range->offset)
        i++;
    return param_owned_here(table, i, &s->grid->size, &s->grid->at);
}

/* Every piece of a range is a shard of its own: one optimizer group. The last range has the tail,
 * so that every rank's shard is covered, were it of padding alone. At stage 0 a rank counts what it
 * would own at stage 1: both sum the same numbers in the same order. */
int zero_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    const ZeroStore *s = (ZeroStore *)base;
    int n = 0;
    for (int i = 0; i < base->table->n_units; i++) {
        const Unit *unit = &base->table->unit[i];
        const UnitState *u = &s->unit[i];
        if (!u->here) continue;
        bool all = s->options.stage == 0 && purpose == PURPOSE_UPDATE;
        int64_t begin = all ? 0 : u->part * s->grid->shard.rank;
        int64_t end = all ? u->size : begin + u->part;
        for (int r = 0; r < unit->n_ranges; r++) {
            const Range *range = &unit->range[r];
            bool last = r + 1 == unit->n_ranges;
            int64_t from = max_i64(begin, range->offset);
            int64_t to = min_i64(end, last ? u->size : range->offset + range->count);
            if (from >= to) continue;
            if (purpose == PURPOSE_COUNT && !counted_here(s, unit, range)) continue;
            if (n++ >= max) continue;
            Tensor weight = all ? u->weight : u->weight_part;
            Tensor grad = all ? u->grad : u->grad_part;
            shards[n - 1] = (Shard){.unit = i,
                                    .offset = from,
                                    .count = to - from,
                                    .group = range->group,
                                    .weight = tensor_slice_rows(weight, from - begin, to - from)};
            if (tensor_present(grad))
                shards[n - 1].grad = tensor_slice_rows(grad, from - begin, to - from);
        }
    }
    return n;
}
