/* zero_run.c -- trains a model over a ZeRO store on several ranks and assembles whole tensors from
 * their shards. See zero_run.h. */
#include "tests/support/trainer/zero_run.h"

#include "model/core/check.h"
#include "model/param/extents.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const ZeroCase *c;
    ZeroResult *result;
    unsigned char *seen; /* per element: how often this rank counted it; or NULL */
    int rank;
} Rank;

ZeroCase zero_case(GptShape shape, int ranks, int stage)
{
    return (ZeroCase){
        .ranks = ranks,
        .steps = 2,
        .micros = 1,
        .factor = 1,
        .B = 1,
        .T = 5,
        .shape = shape,
        .zero = {.gradients = true, .stage = stage, .gather = {.max_live_parameters = INT64_MAX}}};
}

static GptShape odd_shape(void)
{
    GptShape s = fixture_shape();
    s.C = 13; /* units do not divide into shards evenly, and some shards are only padding */
    s.H = s.G = 1;
    s.D = 13;
    s.F = 7;
    s.V = 11;
    s.Vp = 16;
    s.P = 5;
    return s;
}

GptShape zero_shape(int i)
{
    return i == 0 ? fixture_shape() : i == 1 ? fixture_llama_shape() : odd_shape();
}

/* ---- putting logical tensors together -------------------------------------------------------- */

/* Copies the weights or gradients that this rank counts to their places in `out`. */
static void collect(Rank *rank, Fixture *f, bool gradients, unsigned char *out)
{
    Shard shards[512];
    ParamExtent extent[64];
    int n = f->params->shards(f->params, PURPOSE_COUNT, shards, 512);
    for (int i = 0; i < n; i++) {
        Tensor flat = fixture_fetch(f, gradients ? shards[i].grad : shards[i].weight);
        size_t size = dtype_size(flat.dtype);
        int extents = param_extents(&f->table, &f->grid.at, shards[i].unit, shards[i].offset,
                                    shards[i].count, extent, 64);
        for (int r = 0; r < extents; r++) {
            int64_t before = 0;
            for (int p = 0; p < extent[r].param; p++)
                before += param_count(&f->table.param[p]);
            for (int64_t e = 0; e < extent[r].count; e++) {
                int64_t to = before + param_extent_element(&extent[r], e);
                memcpy(out + (size_t)to * size,
                       (char *)flat.data + (size_t)(extent[r].offset - shards[i].offset + e) * size,
                       size);
                if (rank->seen) rank->seen[to]++;
            }
        }
        free(flat.data);
    }
}

/* Checks that all ranks see the updated weights, unit by unit, as the model would. */
static void check_replicas(const Rank *rank, Fixture *f, Comm *world)
{
    const unsigned char *at = rank->result->weights;
    comm_barrier(world); /* all ranks have collected theirs */
    f->params->step_begin(f->params, NULL, 0);
    for (int u = 0; u < f->table.n_units; u++) {
        const Unit *unit = &f->table.unit[u];
        f->params->acquire(f->params, u);
        for (int p = unit->first; p < unit->first + unit->count; p++) {
            Tensor w = fixture_fetch(f, f->params->weight(f->params, p, 1));
            size_t bytes = (size_t)param_count(&f->table.param[p]) * dtype_size(w.dtype);
            CHECK(memcmp(at, w.data, bytes) == 0, "rank %d sees another %s than was updated",
                  world->rank, f->table.param[p].name);
            at += bytes;
            free(w.data);
        }
        f->params->release(f->params, u);
    }
    f->params->step_end(f->params);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static Config optimizer_config(void)
{
    Config c = {0};
    c.optimizer.type = OPTIMIZER_ADAMW;
    c.optimizer.params.lr = 0.01;
    c.optimizer.params.betas[0] = 0.9;
    c.optimizer.params.betas[1] = 0.95;
    c.optimizer.params.eps = 1e-4;
    c.optimizer.params.weight_decay = 0.1;
    c.optimizer.params.bias_correction = true;
    return c;
}

static double sum_over(Comm *world, double x)
{
    comm_all_reduce(world, NULL, tensor_1d(&x, F64, 1), REDUCE_SUM);
    return x;
}

static void train(Rank *rank, Fixture *f, Comm *world)
{
    const ZeroCase *c = rank->c;
    Config config = optimizer_config();
    size_t bytes = optimizer_bytes(&config, f->params).device;
    void *memory = device_alloc(&f->dev, bytes, "optimizer state");
    struct Far {
        StepStats stats;
        StepDecision decision;
    } near, *far = device_alloc(&f->dev, sizeof *far, "step");
    Arena arena = device_arena(&f->dev, memory, bytes);
    Optimizer optimizer;
    optimizer_plan(&optimizer, &config, f->params, &arena, NULL);
    optimizer_init(&optimizer, &f->dev);
    GradNorm norm = grad_norm_create(f->params);
    for (int step = 0; step < c->steps; step++) {
        near.stats = (StepStats){0};
        near.decision = (StepDecision){.apply = 1, .update = step + 1, .lr = 0.01, .grad_scale = 1};
        device_copy_words(&f->dev, far, &near, sizeof near);
        double loss = sum_over(world, fixture_backward(f));
        grad_norm_add(&norm, &f->dev, &far->stats);
        device_copy_words(&f->dev, &near, far, sizeof near);
        device_synchronize(&f->dev);
        double sq_norm = sum_over(world, near.stats.sq_norm);
        if (step + 1 == c->steps) collect(rank, f, true, rank->result->gradients);
        if (rank->rank == 0) rank->result->loss[step] = loss, rank->result->sq_norm[step] = sq_norm;
        optimizer_step(&optimizer, &f->dev, f->params, &far->decision);
    }
    device_synchronize(&f->dev);
    grad_norm_free(&norm);
    optimizer_free(&optimizer);
    device_release(&f->dev, memory, bytes);
    device_release(&f->dev, far, sizeof *far);
}

/* Evaluates the model with its last weights and computes logits, neither of which announces its
 * uses of units. */
static void see_model(Rank *rank, Fixture *f, Comm *world)
{
    const GptShape *shape = &rank->c->shape;
    int64_t n = f->B * f->T * shape->Vp;
    double after = sum_over(world, fixture_loss(f));
    unsigned char *data = must_alloc((size_t)n * dtype_size(shape->dtype));
    fixture_logits(f, 0, tensor_2d(data, shape->dtype, f->B * f->T, shape->Vp));
    if (rank->rank == 0) {
        ZeroResult *r = rank->result;
        r->after = after;
        r->n_logits = n;
        r->logit = must_calloc((size_t)n, sizeof *r->logit);
        for (int64_t i = 0; i < n; i++)
            r->logit[i] = dtype_get(shape->dtype, data, i);
    }
    free(data);
}

static void subtract(CommCounts *a, const CommCounts *b)
{
    for (int v = 0; v < COMM_VERBS; v++) {
        for (int t = 0; t < DTYPE_COUNT; t++) {
            a->of[v][t].calls -= b->of[v][t].calls;
            a->of[v][t].elements -= b->of[v][t].elements;
            a->of[v][t].bytes -= b->of[v][t].bytes;
        }
    }
}

static void rank_body(Comm *world, void *context)
{
    Rank *rank = (Rank *)context + world->rank;
    const ZeroCase *c = rank->c;
    ZeroResult *result = rank->result;
    ZeroOptions zero = c->zero;
    Fixture f;
    zero.grad_dtype = c->shape.grad_dtype;
    if (!c->wire) zero.wire_dtype = zero.grad_dtype;
    fixture_open_place(&f, world, (GridPlace){1, c->ranks, 1, 1}, &zero, &c->shape, c->B, c->T,
                       c->micros);
    f.poison = c->poison;
    f.scale *= c->factor;
    result->bytes[rank->rank] = zero_bytes(f.store);
    result->held[rank->rank] = f.store_bytes;
    collect(rank, &f, false, result->first);
    CommCounts before = *comm_counts(&f.grid.shard);
    train(rank, &f, world);
    if (rank->rank == 0) {
        result->counts = *comm_counts(&f.grid.shard);
        subtract(&result->counts, &before);
    }
    rank->seen = NULL;
    collect(rank, &f, false, result->weights);
    check_replicas(rank, &f, world);
    see_model(rank, &f, world);
    fixture_close(&f);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static int64_t count_elements(const GptShape *shape)
{
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, shape, &LAYERS_WHOLE);
    int64_t n = param_table_count(&table);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return n;
}

ZeroResult zero_run(const ZeroCase *c)
{
    ZeroResult r = {.elements = count_elements(&c->shape)};
    Rank rank[ZERO_MOST_RANKS];
    unsigned char *seen = must_calloc((size_t)r.elements, (size_t)c->ranks);
    r.weight_bytes = (size_t)r.elements * dtype_size(c->shape.dtype);
    r.gradient_bytes = (size_t)r.elements * dtype_size(c->shape.grad_dtype);
    r.first = must_calloc(r.weight_bytes, 1);
    r.weights = must_calloc(r.weight_bytes, 1);
    r.gradients = must_calloc(r.gradient_bytes, 1);
    for (int i = 0; i < c->ranks; i++)
        rank[i] = (Rank){c, &r, seen + (size_t)i * (size_t)r.elements, i};
    thread_ranks(c->ranks, 60, rank_body, rank);
    /* Each element must be counted twice: in the weights before the steps and in the last
     * gradients. */
    for (int64_t e = 0; e < r.elements; e++) {
        int times = 0;
        for (int i = 0; i < c->ranks; i++)
            times += seen[(size_t)(i * r.elements + e)];
        if (times != 2) fail_msg("element %lld is counted %d times of 2", (long long)e, times);
    }
    free(seen);
    return r;
}

void zero_result_free(ZeroResult *r)
{
    free(r->first);
    free(r->logit);
    free(r->weights);
    free(r->gradients);
}

void assert_same_bits(const ZeroResult *a, const ZeroResult *b, const char *what)
{
    assert_int_equal(a->elements, b->elements);
    if (memcmp(a->first, b->first, a->weight_bytes) != 0) fail_msg("%s: first weights", what);
    for (int i = 0; i < ZERO_MOST_STEPS; i++) {
        if (memcmp(&a->loss[i], &b->loss[i], sizeof(double)) != 0)
            fail_msg("%s: loss of step %d: %.17g, %.17g", what, i, a->loss[i], b->loss[i]);
        if (memcmp(&a->sq_norm[i], &b->sq_norm[i], sizeof(double)) != 0)
            fail_msg("%s: norm of step %d: %.17g, %.17g", what, i, a->sq_norm[i], b->sq_norm[i]);
    }
    if (memcmp(a->gradients, b->gradients, a->gradient_bytes) != 0) fail_msg("%s: gradients", what);
    if (memcmp(a->weights, b->weights, a->weight_bytes) != 0) fail_msg("%s: weights", what);
    if (a->after != b->after) fail_msg("%s: loss after %.17g, %.17g", what, a->after, b->after);
    if (memcmp(a->logit, b->logit, (size_t)a->n_logits * sizeof(double)) != 0)
        fail_msg("%s: logits", what);
}

double zero_distance(const unsigned char *a, const unsigned char *b, DType dtype, int64_t n)
{
    double most = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = dtype_get(dtype, a, i), d = fabs(x - dtype_get(dtype, b, i));
        squares += x * x;
        if (!(d <= most)) most = d;
    }
    return most / sqrt(squares / (double)n);
}
