/* zero.c -- ParamStore, stage 0: full weights and gradients on every rank; gradients are summed
 * over dp when the step's last use releases them. The order of uses told at step_begin is checked
 * at every call. */
#include "parallel/zero/zero.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

#include <stdlib.h>

/* A hole between packs, or a unit's tail: zero at every reduction. */
typedef struct {
    int64_t offset, count;
} Gap;

typedef struct {
    Tensor weight, grad;   /* flat, unit->size elements */
    int releases;          /* gradient releases still to come in this step */
    int first_gap, n_gaps; /* of the store's */
    bool acquired, grad_acquired, written;
} UnitState;

struct ZeroStore {
    ParamStore base; /* first: the contract's pointer is the store's */
    Device *dev;     /* NULL: laid out, not allocated */
    Grid *grid;
    DType grad_dtype;
    bool keeps_gradients;
    UnitState *unit;
    Gap *gap;
    int n_gaps;
    const Use *uses;
    int64_t n_uses, next_use;
    void *weights, *gradients;
    ZeroBytes bytes;
};

static ZeroStore *store_of(ParamStore *base)
{
    return (ZeroStore *)base;
}

static void zero_step_begin(ParamStore *base, const Use *uses, int64_t n)
{
    ZeroStore *s = store_of(base);
    s->uses = uses;
    s->n_uses = n;
    s->next_use = 0;
    for (int u = 0; u < base->table->n_units; u++) {
        s->unit[u].releases = 0;
        s->unit[u].written = false;
    }
    for (int64_t i = 0; i < n; i++)
        s->unit[uses[i].unit].releases += uses[i].gradient;
}

/* Advances over the uses told at step_begin: the next one must be of this unit and kind. Where none
 * were told, weights are read in any order. */
static void follow(ZeroStore *s, int unit, bool gradient)
{
    if (s->n_uses == 0) return;
    if (gradient &&
        s->next_use > 0) { /* a use with weights and gradient was entered by its acquire */
        const Use *last = &s->uses[s->next_use - 1];
        if (last->weight && last->gradient && s->unit[unit].acquired) return;
    }
    CHECK(s->next_use < s->n_uses, "unit %d used after the step's %lld uses", unit,
          (long long)s->n_uses);
    const Use *use = &s->uses[s->next_use++];
    CHECK(use->unit == unit && (gradient ? use->gradient : use->weight),
          "unit %d used where unit %d was told", unit, use->unit);
}

static void zero_acquire(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    CHECK(!s->unit[unit].acquired, "unit %d acquired twice", unit);
    follow(s, unit, false);
    s->unit[unit].acquired = true;
}

static void zero_release(ParamStore *base, int unit)
{
    UnitState *u = &store_of(base)->unit[unit];
    CHECK(u->acquired, "unit %d released but not acquired", unit);
    u->acquired = false;
}

/* Rows [param, param + n) of a flat unit buffer as one tensor. */
static Tensor rows_of(const ParamTable *table, Tensor flat, int param, int n)
{
    const Param *p = &table->param[param];
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        const Param *q = &table->param[param + i];
        CHECK(q->pack == p->pack && q->offset == p->offset + rows * p->local[1],
              "%s and %s are not one pack", p->name, q->name);
        rows += q->local[0];
    }
    void *data = (char *)flat.data + (size_t)p->offset * dtype_size(flat.dtype);
    Tensor t = p->ndim == 1 ? tensor_1d(data, flat.dtype, rows)
                            : tensor_2d(data, flat.dtype, rows, p->local[1]);
    t.place = flat.place;
    return t;
}

static Tensor zero_weight(ParamStore *base, int param, int n)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[base->table->param[param].unit];
    CHECK(u->acquired, "%s asked for without its unit", base->table->param[param].name);
    return rows_of(base->table, u->weight, param, n);
}

static bool zero_grad_acquire(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[unit];
    CHECK(tensor_present(u->grad) && !u->grad_acquired, "gradient of unit %d: %s", unit,
          u->grad_acquired ? "acquired twice" : "none is kept");
    follow(s, unit, true);
    u->grad_acquired = true;
    if (!u->written) { /* what no parameter covers is nobody's to write, and is summed all the same
                        */
        for (const Gap *g = s->gap + u->first_gap; g < s->gap + u->first_gap + u->n_gaps; g++)
            op_fill(s->dev, tensor_slice_rows(u->grad, g->offset, g->count), 0.0);
    }
    return u->written;
}

static Tensor zero_grad(ParamStore *base, int param, int n)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[base->table->param[param].unit];
    CHECK(u->grad_acquired, "gradient of %s asked for without its unit",
          base->table->param[param].name);
    return rows_of(base->table, u->grad, param, n);
}

static void zero_grad_release(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[unit];
    CHECK(u->grad_acquired && u->releases > 0, "gradient of unit %d released, %d releases told",
          unit, u->releases);
    u->grad_acquired = false;
    u->written = true;
    /* Earlier releases would reduce sums that still grow: a tied table is released twice a
     * micro-batch, and every unit once a micro-batch of the step. */
    if (--u->releases == 0) comm_all_reduce(&s->grid->shard, s->dev, u->grad, REDUCE_SUM);
}

static void zero_step_end(ParamStore *base)
{
    ZeroStore *s = store_of(base);
    CHECK(s->next_use == s->n_uses, "%lld of %lld uses happened", (long long)s->next_use,
          (long long)s->n_uses);
    for (int u = 0; u < base->table->n_units; u++)
        CHECK(s->unit[u].releases == 0, "unit %d lacks %d gradient releases", u,
              s->unit[u].releases);
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

static Shard shard_of(const ZeroStore *s, int unit, const Range *range)
{
    const UnitState *u = &s->unit[unit];
    Shard shard = {.unit = unit,
                   .offset = range->offset,
                   .count = range->count,
                   .group = range->group,
                   .weight = tensor_slice_rows(u->weight, range->offset, range->count)};
    if (tensor_present(u->grad))
        shard.grad = tensor_slice_rows(u->grad, range->offset, range->count);
    return shard;
}

/* Every range is a shard of its own: one optimizer group. */
static int zero_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    const ZeroStore *s = store_of(base);
    int n = 0;
    for (int u = 0; u < base->table->n_units; u++) {
        const Unit *unit = &base->table->unit[u];
        for (int r = 0; r < unit->n_ranges; r++) {
            const Range *range = &unit->range[r];
            if (purpose == PURPOSE_COUNT && !counted_here(s, unit, range)) continue;
            if (n < max) shards[n] = shard_of(s, u, range);
            n++;
        }
    }
    return n;
}

static void zero_publish(ParamStore *base, int unit)
{
    CHECK(!store_of(base)->unit[unit].acquired, "unit %d published while acquired", unit);
}

/* Lists the holes of every unit: what no parameter covers. */
static void find_gaps(ZeroStore *s, const ParamTable *table)
{
    s->gap = must_calloc((size_t)(table->n_params + table->n_units), sizeof *s->gap);
    for (int u = 0; u < table->n_units; u++) {
        const Unit *unit = &table->unit[u];
        int64_t at = 0;
        s->unit[u].first_gap = s->n_gaps;
        while (at < unit->size) {
            int64_t next = unit->size, end = at;
            for (int i = unit->first; i < unit->first + unit->count; i++) {
                const Param *p = &table->param[i];
                if (p->offset == at) end = at + p->local[0] * p->local[1];
                if (p->offset > at && p->offset < next) next = p->offset;
            }
            if (end == at) s->gap[s->n_gaps++] = (Gap){.offset = at, .count = next - at};
            at = end == at ? next : end;
        }
        s->unit[u].n_gaps = s->n_gaps - s->unit[u].first_gap;
    }
}

/* Lays the units out: over measuring arenas for the plan, over the device's when there is memory.
 */
static void zero_layout(ZeroStore *s, Arena *weights, Arena *gradients)
{
    const ParamTable *table = s->base.table;
    for (int u = 0; u < table->n_units; u++) {
        const Unit *unit = &table->unit[u];
        s->unit[u].weight = arena_tensor(weights, unit->dtype, 1, unit->size, 0, 0);
        if (s->keeps_gradients)
            s->unit[u].grad = arena_tensor(gradients, s->grad_dtype, 1, unit->size, 0, 0);
    }
}

ZeroStore *zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options)
{
    Arena weights = arena_measuring(), grads = arena_measuring();
    ZeroStore *s = must_calloc(1, sizeof *s);
    s->base = (ParamStore){.table = table,
                           .step_begin = zero_step_begin,
                           .acquire = zero_acquire,
                           .release = zero_release,
                           .weight = zero_weight,
                           .grad_acquire = zero_grad_acquire,
                           .grad = zero_grad,
                           .grad_release = zero_grad_release,
                           .step_end = zero_step_end,
                           .shards = zero_shards,
                           .publish = zero_publish};
    s->grid = grid;
    s->grad_dtype = options->grad_dtype;
    s->keeps_gradients = options->gradients;
    s->unit = must_calloc((size_t)table->n_units, sizeof *s->unit);
    zero_layout(s, &weights, &grads);
    s->bytes = (ZeroBytes){.weights = weights.peak, .gradients = grads.peak};
    find_gaps(s, table);
    return s;
}

ZeroBytes zero_bytes(const ZeroStore *s)
{
    return s->bytes;
}

void zero_allocate(ZeroStore *s, Device *dev)
{
    Arena grads = {0};
    s->dev = dev;
    s->weights = device_alloc(dev, s->bytes.weights, "weights");
    Arena weights = device_arena(dev, s->weights, s->bytes.weights);
    if (s->keeps_gradients) {
        s->gradients = device_alloc(dev, s->bytes.gradients, "gradients");
        grads = device_arena(dev, s->gradients, s->bytes.gradients);
    }
    zero_layout(s, &weights, &grads);
}

void zero_destroy(ZeroStore *s)
{
    if (s == NULL) return;
    if (s->dev) {
        device_release(s->dev, s->weights, s->bytes.weights);
        device_release(s->dev, s->gradients, s->bytes.gradients);
    }
    free(s->gap);
    free(s->unit);
    free(s);
}

ParamStore *zero_params(ZeroStore *store)
{
    return &store->base;
}
