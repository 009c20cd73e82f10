/* layout.c -- lays out units: computes padding and shards, gaps, memory, and the pieces of units
 * that this rank counts in the gradient norm and updates. */
#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/zero/state.h"

#include <stdlib.h>

/* Lists the gaps of a unit: the elements that belong to no parameter, including its padding to
 * equal shards. */
static void find_gaps(ZeroStore *s, const Unit *unit, UnitState *u)
{
    const ParamTable *table = s->base.table;
    int64_t at = 0;
    u->first_gap = s->n_gaps;
    while (at < u->size) {
        /* A unit stores its parameters in another order than the table lists them. So all of them
         * are searched for the one that begins here, or else for the next one. Padding rows belong
         * to their parameter, whose gradient includes them. */
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

/* Chooses the units whose gradients are transient: computed in a slot and summed at every release.
 * This requires a single release per micro-batch. A tied table with embedding and head on this
 * stage has two releases and would occupy a slot between them, so it is stored whole. Every unit
 * has at least one release per micro-batch, so the units with the fewest releases in the step have
 * exactly one. */
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
        if (s->unit[i].at_home) fewest = min_i64(fewest, releases[i]);
    CHECK(fewest > 0, "a unit without a gradient in a step");
    for (int i = 0; i < s->base.table->n_units; i++)
        s->unit[i].transient = s->unit[i].at_home && releases[i] == fewest;
    free(releases);
}

/* Creates the buckets and chooses their sizes. Waiting for a sum or a gather means waiting for its
 * whole bucket. With overlap_comm the buckets are small enough, for models of any size, that most
 * sums run while other gradients are still computed, and most gathers while other weights are
 * already used. The last sum of a step cannot overlap with anything, so large models have more
 * buckets: 40 million elements (160 MB in f32) are still enough for the full rate of NVLink. */
static void create_buckets(ZeroStore *s)
{
    const int64_t AT_LEAST = 8, LARGEST = 40000000; /* buckets; elements */
    const ZeroOptions *o = &s->options;
    int units = s->base.table->n_units;
    int64_t all = 0, most = INT64_MAX;
    if (o->overlap_comm) {
        /* Each size is limited, because a sum over absurdly large units could overflow. The limit
         * does not change the result. */
        for (int i = 0; i < units; i++)
            all += min_i64(s->unit[i].size, AT_LEAST * LARGEST);
        most = min_i64(all / AT_LEAST + 1, LARGEST);
    }
    s->summing = bucket_create(units, min_i64(o->reduce_bucket_size, most));
    s->publishing = bucket_create(units, min_i64(o->allgather_bucket_size, most));
    s->gathering = bucket_create(units, min_i64(o->allgather_bucket_size, most));
}

/* Sets UnitState.used_late, and base.order: the order of the table, but with these units last.
 * Gathers of updated weights are executed in the order in which they are issued. The gather of a
 * unit that a step uses late must not come before the gathers of units that the step uses first: on
 * the last stage a tied table is the first unit of the table, but the last one used. */
static void find_used_late(ZeroStore *s)
{
    int units = s->base.table->n_units, n = 0;
    bool *used = must_calloc((size_t)units, sizeof *used);
    int highest = -1; /* the highest unit used so far */
    for (int64_t i = 0; i < s->options.n_uses; i++) {
        const Use *use = &s->options.uses[i];
        /* Only the first use determines when the weights are needed. */
        if (!use->weight || used[use->unit]) continue;
        used[use->unit] = true;
        s->unit[use->unit].used_late = use->unit < highest;
        if (use->unit > highest) highest = use->unit;
    }
    free(used);
    s->order = must_calloc((size_t)units, sizeof *s->order);
    for (int late = 0; late < 2; late++)
        for (int i = 0; i < units; i++)
            if (s->unit[i].used_late == late) s->order[n++] = i;
    s->base.order = s->order;
}

void zero_layout_units(ZeroStore *s)
{
    const ParamTable *table = s->base.table;
    /* The shares that ranks update begin at aligned elements and have equal sizes. */
    int64_t grain = PARAM_ALIGNMENT * s->grid->shard.size * s->grid->replicate.size;
    s->gap = must_calloc((size_t)(table->n_params + table->n_units), sizeof *s->gap);
    for (int i = 0; i < table->n_units; i++) {
        UnitState *u = &s->unit[i];
        u->at_home = home_is(&table->unit[i].home, s->grid->at.pp);
        if (!u->at_home) continue;
        u->size = (table->unit[i].size + grain - 1) / grain * grain;
        u->part = u->size / s->grid->shard.size;
        u->own = u->part / s->grid->replicate.size;
        find_gaps(s, &table->unit[i], u);
    }
    create_buckets(s);
    find_used_late(s);
    choose_transient(s);
    zero_plan_gathers(s);
}

/* Returns the size of the largest unit, or of the largest one with a transient gradient. */
static int64_t largest_unit(const ZeroStore *s, bool transient)
{
    int64_t largest = 0;
    for (int i = 0; i < s->base.table->n_units; i++)
        if (s->unit[i].transient || !transient) largest = max_i64(largest, s->unit[i].size);
    return largest;
}

/* Returns the elements of the wire buffer, which holds the largest bucket of gradients if they are
 * sent in another dtype than they are stored in. */
static int64_t wire_elements(const ZeroStore *s)
{
    int64_t largest = largest_unit(s, false), all = 0;
    for (int i = 0; i < s->base.table->n_units; i++)
        all += s->unit[i].size;
    /* From stage 2 on a bucket is issued at the end of each layer, which has at most two units. */
    if (s->options.stage >= 2) all = min_i64(all, 2 * largest);
    /* A unit larger than a bucket gets a bucket of its own. */
    return max_i64(largest, min_i64(s->summing.most, all));
}

static void layout_gradients(ZeroStore *s, ZeroArenas *arenas)
{
    DType dtype = s->options.grad_dtype;
    for (int i = 0; i < s->base.table->n_units; i++) {
        UnitState *u = &s->unit[i];
        if (!u->at_home) continue;
        Tensor kept =
            arena_tensor(&arenas->gradients, dtype, 1, u->transient ? u->part : u->size, 0, 0);
        /* A transient gradient gets a slot when it is computed; only the shard of its sum is kept.
         */
        u->grad = u->transient ? NO_TENSOR : kept;
        u->grad_part = u->transient ? kept : zero_part(s, kept);
    }
    int64_t room = largest_unit(s, true);
    for (int i = 0; i < ZERO_SLOTS && room > 0; i++)
        s->slot[i].memory = arena_tensor(&arenas->transient, dtype, 1, room, 0, 0);
    if (s->options.wire_dtype != dtype && s->grid->dp.size > 1)
        s->wire = arena_tensor(&arenas->wire, s->options.wire_dtype, 1, wire_elements(s), 0, 0);
}

void zero_layout_memory(ZeroStore *s, ZeroArenas *arenas)
{
    const ParamTable *table = s->base.table;
    for (int i = 0; i < table->n_units; i++) {
        UnitState *u = &s->unit[i];
        if (!u->at_home) continue;
        Tensor kept = arena_tensor(&arenas->weights, table->unit[i].dtype, 1,
                                   u->sharded ? u->part : u->size, 0, 0);
        /* The shard is a part of the whole weights, so an updated shard need not be copied. */
        u->weight_state = u->sharded ? WEIGHTS_AWAY : WEIGHTS_HERE;
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

Tensor zero_own(const ZeroStore *s, Tensor part)
{
    int64_t own = tensor_count(part) / s->grid->replicate.size;
    return tensor_slice_rows(part, own * s->grid->replicate.rank, own);
}

int64_t zero_own_begin(const ZeroStore *s, const UnitState *u)
{
    return u->part * s->grid->shard.rank + u->own * s->grid->replicate.rank;
}

/* Returns whether this rank counts a range of a unit in the gradient norm and saves it
 * (PURPOSE_COUNT); other ranks may hold the same range. All rows of a range are split in the same
 * way, so the first row is enough to decide. */
static bool counted_here(const ZeroStore *s, const Unit *unit, const Range *range)
{
    const ParamTable *table = s->base.table;
    int i = unit->first;
    while (table->param[i].offset != range->offset)
        i++;
    return param_owned_here(table, i, &s->grid->size, &s->grid->at);
}

/* Implements ParamStore.shards. Every piece of a range is a separate shard, because each range has
 * one optimizer group. */
int zero_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    const ZeroStore *s = (ZeroStore *)base;
    /* At stage 0 a rank updates everything. For the norm it counts the shard that it would own at
     * stage 1, so that both stages add the same numbers in the same order. */
    bool all = s->options.stage == 0 && purpose == PURPOSE_UPDATE;
    int n = 0;
    for (int i = 0; i < base->table->n_units; i++) {
        const Unit *unit = &base->table->unit[i];
        const UnitState *u = &s->unit[i];
        if (!u->at_home) continue;
        int64_t begin = all ? 0 : zero_own_begin(s, u);
        int64_t end = all ? u->size : begin + u->own;
        for (int r = 0; r < unit->n_ranges; r++) {
            const Range *range = &unit->range[r];
            /* The last range includes the unit's tail, so every element belongs to a range, even on
             * a rank whose shard is only padding. */
            bool last = r + 1 == unit->n_ranges;
            int64_t from = max_i64(begin, range->offset);
            int64_t to = min_i64(end, last ? u->size : range->offset + range->count);
            if (from >= to) continue;
            if (purpose == PURPOSE_COUNT && !counted_here(s, unit, range)) continue;
            /* Shards beyond `max` are only counted, because callers first call this function to
             * learn the number. */
            if (n++ >= max) continue;
            Tensor weight = all ? u->weight : zero_own(s, u->weight_part);
            Tensor grad =
                all || !tensor_present(u->grad_part) ? u->grad : zero_own(s, u->grad_part);
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
