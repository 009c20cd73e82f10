/* zero.c -- implements the ParamStore interface; every call is checked against the uses given to
 * step_begin. reduce.c and partial_sums.c sum gradients; publish.c and gather.c gather weights. */
#include "model/core/check.h"
#include "model/core/flight.h"
#include "model/kernels/ops.h"
#include "parallel/zero/state.h"

#include <stdlib.h>
#include <string.h>

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
    s->makes_gradients = false;
    s->published = 0;
    zero_issue_gathers(s, &s->publishing);
    zero_begin_plan(s, uses, n);
    for (int u = 0; u < base->table->n_units; u++) {
        s->unit[u].releases = s->unit[u].released = 0;
        s->unit[u].grad_state = GRAD_NONE;
    }
    for (int64_t i = 0; i < n; i++) {
        s->unit[uses[i].unit].releases += uses[i].gradient;
        s->makes_gradients |= uses[i].gradient;
    }
    /* The step may begin with a wait for another stage, so the gathers of its first weights are
     * issued here and run during this wait.
     */
    zero_ask_ahead(s);
}

/* Advances in the uses given to step_begin: the next use must be of this unit and kind. If no uses
 * were given, weights may be read in any order. */
static void follow(ZeroStore *s, int unit, bool gradient)
{
    if (s->n_uses == 0) return;
    if (gradient && s->next_use > 0) {
        /* A use of both weights and gradient was already counted when its weights were acquired. */
        const Use *last = &s->uses[s->next_use - 1];
        if (last->weight && last->gradient && s->unit[unit].weight_state == WEIGHTS_HELD) return;
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
    CHECK(s->unit[unit].weight_state != WEIGHTS_HELD, "unit %d acquired twice", unit);
    CHECK(s->unit[unit].at_home, "unit %d is of another stage", unit);
    follow(s, unit, false);
    zero_issue_layer_sums(s);
    if (s->room > 0) zero_ask_for_use(s, unit);
    zero_await_weights(s, unit);
    s->unit[unit].weight_state = WEIGHTS_HELD;
    s->held++;
    flight_unit(s->dev->flight, unit);
}

/* Called after each release. If nothing of the layer is held any more, issues the layer's sums and
 * the gathers for later layers now, and not when the next layer begins: by then the compute stream
 * may have to wait for another stage, and collectives wait for all work issued to it. Collectives
 * are executed in the order in which they are issued. The weights of the next use were requested
 * first (zero_grad_release). Then come the sums, whose slots are needed again two uses later, and
 * then the prefetched weights. */
static void end_layer(ZeroStore *s)
{
    if (s->held > 0) return;
    zero_issue_layer_sums(s);
    zero_ask_ahead(s);
}

static void zero_release(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    CHECK(s->unit[unit].weight_state == WEIGHTS_HELD, "unit %d released but not acquired", unit);
    s->unit[unit].weight_state = WEIGHTS_HERE;
    s->held--;
    if (s->held == 0) flight_unit(s->dev->flight, -1);
    zero_drop_after_use(s, unit);
    end_layer(s);
}

/* Returns parameters [param, param + n) of a flat unit buffer, which must lie one after the other,
 * as one tensor. */
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
    CHECK(u->weight_state == WEIGHTS_HELD, "%s asked for without its unit",
          base->table->param[param].name);
    return rows_of(base->table, u->weight, param, n);
}

static bool zero_grad_acquire(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[unit];
    bool twice = u->grad_state == GRAD_HELD, add = u->grad_state == GRAD_KEPT;
    CHECK(s->options.gradients && !twice, "gradient of unit %d: %s", unit,
          twice ? "acquired twice" : "none is kept");
    CHECK(u->at_home, "unit %d is of another stage", unit);
    follow(s, unit, true);
    zero_issue_layer_sums(s);
    u->grad_state = GRAD_HELD;
    s->held++;
    flight_unit(s->dev->flight, unit);
    if (add) return true;
    /* The slot contains the gradient of another micro-batch or unit, which is overwritten. */
    if (u->transient) zero_take_slot(s, unit);
    /* Gaps are summed, too, although no layer writes to them, so they are set to zero. */
    for (const Gap *g = s->gap + u->first_gap; g < s->gap + u->first_gap + u->n_gaps; g++)
        op_fill(s->dev, tensor_slice_rows(u->grad, g->offset, g->count), 0.0);
    return false;
}

static Tensor zero_grad(ParamStore *base, int param, int n)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[base->table->param[param].unit];
    CHECK(u->grad_state == GRAD_HELD, "gradient of %s asked for without its unit",
          base->table->param[param].name);
    return rows_of(base->table, u->grad, param, n);
}

static void zero_grad_release(ParamStore *base, int unit)
{
    ZeroStore *s = store_of(base);
    UnitState *u = &s->unit[unit];
    CHECK(u->grad_state == GRAD_HELD && u->released < u->releases,
          "gradient of unit %d released, %d releases told", unit, u->releases - u->released);
    u->grad_state = u->transient ? GRAD_IN_SLOT : GRAD_KEPT;
    u->released++;
    s->held--;
    if (s->held == 0) flight_unit(s->dev->flight, -1);
    /* If only this unit's weights are still held, the layer has finished computing. The weights of
     * the next use are requested before this layer's sums, because that use need not wait for the
     * sums. */
    if (s->held == (int)(u->weight_state == WEIGHTS_HELD)) zero_ask_for_next_use(s);
    /* A gradient that is stored whole is accumulated with every release, once or twice per
     * micro-batch. It is complete only after the last release of the step. */
    if (u->released == u->releases || u->transient) zero_queue_sum(s, unit);
    end_layer(s);
}

static void zero_step_end(ParamStore *base)
{
    ZeroStore *s = store_of(base);
    CHECK(s->next_use == s->n_uses, "%lld of %lld uses happened", (long long)s->next_use,
          (long long)s->n_uses);
    for (int u = 0; u < base->table->n_units; u++)
        CHECK(s->unit[u].released == s->unit[u].releases, "unit %d lacks %d gradient releases", u,
              s->unit[u].releases - s->unit[u].released);
    zero_end_sums(s);
    /* Waits for weights that were requested but never used: the update may write their shards only
     * after the gathers have read them. */
    for (int u = 0; u < base->table->n_units; u++)
        zero_await_weights(s, u);
}

ZeroOptions zero_options(const Config *config, bool gradients)
{
    return (ZeroOptions){
        .gradients = gradients,
        .grad_dtype = config_grad_dtype(config),
        .wire_dtype = config_communication_dtype(config),
        .stage = (int)config->zero_optimization.stage,
        .sequence_parallel = config->parallel.sequence_parallel,
        .all_reduce = !config->zero_optimization.reduce_scatter,
        .overlap_comm = config->zero_optimization.overlap_comm,
        .updates_apart = config->zero_optimization.overlap_comm &&
                         config->zero_optimization.offload_optimizer.device == OFFLOAD_CPU,
        .reduce_bucket_size = config->zero_optimization.reduce_bucket_size,
        .allgather_bucket_size = config->zero_optimization.allgather_bucket_size,
        .gather = {.prefetch_bucket_size = config->zero_optimization.stage3_prefetch_bucket_size,
                   .max_live_parameters = config->zero_optimization.stage3_max_live_parameters,
                   .max_reuse_distance = config->zero_optimization.stage3_max_reuse_distance},
        .param_persistence_threshold = config->zero_optimization.stage3_param_persistence_threshold,
        .model_persistence_threshold = config->zero_optimization.stage3_model_persistence_threshold,
    };
}

ZeroStore *zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options)
{
    size_t units = (size_t)table->n_units;
    ZeroArenas arenas = {0}; /* all arenas only measure */
    ZeroStore *s = must_calloc(1, sizeof *s);
    s->base = (ParamStore){.table = table,
                           .at = grid->at,
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
    s->options = *options;
    CHECK(options->stage > 0 || grid->replicate.size == 1, "shard groups of stage 0");
    /* A shard group of one rank has nothing to divide, but the data-parallel ranks still divide the
     * update among them, as in stage 1. */
    if (grid->shard.size == 1) s->options.stage = options->stage > 0 && grid->dp.size > 1;
    s->base.publish_overlaps = s->options.stage > 0 && options->overlap_comm;
    s->unit = must_calloc(units, sizeof *s->unit);
    zero_layout_units(s);
    zero_layout_memory(s, &arenas);
    s->options.uses = NULL; /* they belong to the caller, who may free them */
    s->bytes = (ZeroBytes){.weights = arenas.weights.peak,
                           .gradients = arenas.gradients.peak,
                           .gathered = arenas.gathered.peak,
                           .transient = arenas.transient.peak,
                           .wire = arenas.wire.peak,
                           .host = (size_t)s->n_planned * sizeof *s->planned +
                                   (size_t)s->plan.n * sizeof *s->plan.gather};
    return s;
}

ZeroBytes zero_bytes(const ZeroStore *s)
{
    return s->bytes;
}

Tensor zero_whole_weights(const ZeroStore *s, int unit)
{
    const UnitState *u = &s->unit[unit];
    return u->at_home && !u->sharded ? u->weight : NO_TENSOR;
}

Tensor zero_common_part(const ZeroStore *s, int unit)
{
    const UnitState *u = &s->unit[unit];
    return u->at_home && u->sharded && s->grid->replicate.size > 1 ? u->weight_part : NO_TENSOR;
}

static Arena allocated(Device *dev, void **memory, size_t bytes, const char *what)
{
    if (bytes == 0) return (Arena){0};
    *memory = device_alloc(dev, bytes, what);
    return device_arena(dev, *memory, bytes);
}

void zero_allocate(ZeroStore *s, Device *dev)
{
    s->dev = dev;
    s->comm = device_on(dev, dev->comm);
    ZeroArenas arenas = {
        .weights = allocated(dev, &s->weights, s->bytes.weights, "weights"),
        .gradients = allocated(dev, &s->gradients, s->bytes.gradients, "gradients"),
        .gathered = allocated(dev, &s->gathered_memory, s->bytes.gathered, "gathered weights"),
        .transient = allocated(dev, &s->transient, s->bytes.transient, "gradients in the making"),
        .wire = allocated(dev, &s->wire_memory, s->bytes.wire, "gradients that travel")};
    zero_layout_memory(s, &arenas);
    /* The first record creates an event, which must not happen within a step. */
    device_event_record(dev, &s->computed);
    device_event_record(dev, &s->reduced);
    for (int i = 0; i < ZERO_SLOTS; i++)
        device_event_record(dev, &s->slot[i].free);
    for (int u = 0; u < s->base.table->n_units; u++)
        device_event_record(dev, &s->unit[u].ready);
}

static void give_back(ZeroStore *s)
{
    device_synchronize(s->dev);
    device_event_destroy(s->dev, &s->computed);
    device_event_destroy(s->dev, &s->reduced);
    for (int i = 0; i < ZERO_SLOTS; i++)
        device_event_destroy(s->dev, &s->slot[i].free);
    for (int u = 0; u < s->base.table->n_units; u++)
        device_event_destroy(s->dev, &s->unit[u].ready);
    device_release(s->dev, s->weights, s->bytes.weights);
    device_release(s->dev, s->gradients, s->bytes.gradients);
    device_release(s->dev, s->gathered_memory, s->bytes.gathered);
    device_release(s->dev, s->transient, s->bytes.transient);
    device_release(s->dev, s->wire_memory, s->bytes.wire);
}

void zero_destroy(ZeroStore *s)
{
    if (s == NULL) return;
    if (s->dev) give_back(s);
    bucket_free(&s->summing);
    bucket_free(&s->publishing);
    bucket_free(&s->gathering);
    free(s->planned);
    gathers_free(&s->plan);
    free(s->gap);
    free(s->order);
    free(s->unit);
    free(s);
}

int zero_idle_buffers(ZeroStore *s, Tensor idle[ZERO_MOST_IDLE])
{
    int gathered = 0, n = 0;
    /* Slots and the wire buffer are empty after their sums. */
    zero_issue_layer_sums(s);
    zero_await_sums(s, &s->grid->shard);
    for (int u = 0; u < s->base.table->n_units; u++)
        if (s->unit[u].sharded && s->unit[u].weight_state != WEIGHTS_AWAY) gathered++;
    if (gathered == 0) idle[n++] = tensor_1d(s->gathered_memory, U8, (int64_t)s->bytes.gathered);
    idle[n++] = tensor_1d(s->transient, U8, (int64_t)s->bytes.transient);
    idle[n++] = tensor_1d(s->wire_memory, U8, (int64_t)s->bytes.wire);
    return n;
}

ParamStore *zero_params(ZeroStore *store)
{
    return &store->base;
}
