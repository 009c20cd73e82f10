/* model_fixture.c -- implements model_fixture.h: opens and runs a small GPT for tests. */
#include "tests/support/model/model_fixture.h"

#include "model/core/check.h"
#include "model/param/extents.h"
#include "model/param/init.h"
#include "parallel/grid/tp.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/schedule.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

GptShape fixture_shape(void)
{
    return (GptShape){.L = 2,
                      .C = 24,
                      .H = 4,
                      .G = 4,
                      .D = 6,
                      .F = 40,
                      .V = 37,
                      .Vp = 128,
                      .P = 16,
                      .norm = {.kind = NORM_LAYERNORM, .epsilon = 1e-5},
                      .position = POSITION_LEARNED,
                      .rope_theta = 10000,
                      .activation = ACTIVATION_GELU,
                      .norm_bias = true,
                      .attention_bias = ATTENTION_BIAS_ALL,
                      .mlp_bias = true,
                      .tied = true,
                      .init_std = 0.3,
                      .dtype = F64,
                      .grad_dtype = F64,
                      .tp = 1,
                      .row_parts = 1};
}

GptShape fixture_llama_shape(void)
{
    GptShape s = fixture_shape();
    s.G = 2;
    s.norm.kind = NORM_RMSNORM;
    s.position = POSITION_ROPE;
    s.activation = ACTIVATION_SWIGLU;
    fixture_set_biases(&s, 0);
    s.tied = false;
    s.qk_norm = true;
    return s;
}

GptShape fixture_gpt2_shape(void)
{
    GptShape s = fixture_with_dtype(fixture_shape(), F32);
    s.L = s.H = s.G = 12;
    s.D = 64;
    s.C = 768;
    s.F = 3072;
    s.V = 50257;
    s.Vp = 50304;
    s.P = 1024;
    return s;
}

GptShape fixture_mqa_shape(void)
{
    GptShape s = fixture_shape();
    s.G = 1;
    s.D = 8; /* heads times head size is not the hidden size */
    s.position = POSITION_ROPE;
    s.activation = ACTIVATION_RELU2;
    s.head_chunk = 5;
    return s;
}

void fixture_set_biases(GptShape *s, int set)
{
    static const AttentionBias attention[FIXTURE_BIASES] = {
        ATTENTION_BIAS_NONE, ATTENTION_BIAS_ALL, ATTENTION_BIAS_QKV, ATTENTION_BIAS_NONE};
    s->attention_bias = attention[set];
    s->norm_bias = s->mlp_bias = set % 2 == 1;
}

GptShape fixture_variant(int i)
{
    GptShape s = fixture_shape();
    fixture_set_biases(&s, (i & 1) + 2 * (i / 64));
    s.tied = i & 2;
    s.qk_norm = i & 4;
    s.activation = i & 8 ? ACTIVATION_SWIGLU : ACTIVATION_GELU;
    s.position = i & 16 ? POSITION_ROPE : POSITION_LEARNED;
    s.norm.kind = i & 32 ? NORM_RMSNORM : NORM_LAYERNORM;
    s.G = i & 1 ? 4 : 2;
    return s;
}

GptShape fixture_with_dtype(GptShape s, DType dtype)
{
    s.dtype = dtype;
    s.grad_dtype = dtype_compute(dtype);
    s.init_std = 0.1;
    return s;
}

struct FixtureFar {
    StepStats stats;
    double scale;
};

static GptBatch feed(void *context, const Action *action)
{
    Fixture *f = context;
    int64_t N = f->B * f->T, at = action->micro * N;
    /* Backward uses the activations of its forward pass. */
    if (action->kind == ACT_BACKWARD) return f->batch;
    if (f->poison) model_poison(f->gpt), store_poison(f->store, &f->dev);
    device_copy(&f->dev, f->batch.tokens, tensor_1d(f->tokens + at, I32, N));
    device_copy(&f->dev, f->batch.targets, tensor_1d(f->targets + at, I32, N));
    device_copy(&f->dev, f->batch.positions, tensor_1d(f->positions + at, I32, N));
    return f->batch;
}

Tensor fixture_fetch(Fixture *f, Tensor t)
{
    Tensor host = t;
    host.place = PLACE_HOST;
    host.ld = tensor_cols(t);
    host.data = must_alloc(tensor_bytes(t));
    device_copy(&f->dev, host, t);
    device_synchronize(&f->dev);
    return host;
}

void fixture_store(Fixture *f, Tensor t, Tensor host)
{
    device_copy(&f->dev, t, host);
    device_synchronize(&f->dev);
}

/* Adds small random numbers to vectors, which start at exactly one or zero, because otherwise some
 * gradients would be zero by symmetry. They are drawn by element, so all grids use the same
 * numbers. */
static void move_vectors(Fixture *f, const Shard *shard)
{
    ParamExtent extent[64];
    int n =
        param_extents(&f->table, &f->grid.at, shard->unit, shard->offset, shard->count, extent, 64);
    Tensor w = fixture_fetch(f, shard->weight);
    for (int r = 0; r < n; r++) {
        if (f->table.param[extent[r].param].ndim != 1) continue;
        for (int64_t i = 0; i < extent[r].count; i++) {
            int64_t at = extent[r].offset - shard->offset + i;
            double moved = 0.1 * drawn_normal((uint64_t)extent[r].param + 100,
                                              param_extent_element(&extent[r], i));
            dtype_set(w.dtype, w.data, at, dtype_get(w.dtype, w.data, at) + moved);
        }
    }
    fixture_store(f, shard->weight, w);
    free(w.data);
}

static void draw_weights(Fixture *f)
{
    Shard shards[512];
    param_init(&f->dev, f->params, 7);
    int n = f->params->shards(f->params, PURPOSE_UPDATE, shards, 512);
    for (int i = 0; i < n; i++)
        move_vectors(f, &shards[i]);
    for (int u = 0; u < f->table.n_units; u++)
        f->params->publish(f->params, u, NULL);
}

static const char *test_backend(const GptShape *shape)
{
    const char *backend = getenv("TEST_DEVICE");
    return backend == NULL || shape->dtype == F64 ? "cpu" : backend;
}

void fixture_open(Fixture *f, const GptShape *shape, int64_t B, int64_t T, int64_t micros,
                  int threads, CpuLevel level)
{
    fixture_open_on(f, test_backend(shape), shape, B, T, micros, threads, level);
}

static Tensor row_of_tokens(Fixture *f)
{
    int64_t N = f->B * f->T;
    return tensor_1d(device_alloc(&f->dev, (size_t)N * sizeof(int32_t), "tokens"), I32, N);
}

static void open_device(Fixture *f, const char *backend, int threads, CpuLevel level)
{
    char err[512];
    bool hopper = strcmp(backend, "hopper") == 0;
    DeviceOptions options = {.threads = threads, .level = level, .hopper_attention = hopper};
    *f = (Fixture){0};
    if (!device_open(&f->dev, hopper ? "cuda" : backend, &options, err, sizeof err))
        fail(EXIT_UNAVAILABLE, "%s", err);
}

static void draw_batches(Fixture *f, int64_t V)
{
    int64_t N = f->B * f->T, n = f->micros * N;
    f->tokens = must_calloc((size_t)n, sizeof *f->tokens);
    f->targets = must_calloc((size_t)n, sizeof *f->targets);
    f->positions = must_calloc((size_t)n, sizeof *f->positions);
    for (int64_t i = 0; i < n; i++) {
        int64_t micro = i / N * f->grid.size.dp + f->grid.at.dp, at = micro * N + i % N;
        f->tokens[i] = (int32_t)(drawn_uniform(1, at) * (double)V);
        f->targets[i] = (int32_t)(drawn_uniform(2, at) * (double)V);
        f->positions[i] = (int32_t)(i % f->T);
    }
}

/* Returns a schedule for the whole batch on one stage. */
static Schedule schedule_of(int64_t micros, bool backward)
{
    return schedule_create(&(ScheduleSpec){.kind = SCHEDULE_1F1B,
                                           .stages = 1,
                                           .chunks = 1,
                                           .micros = micros,
                                           .evaluate = !backward},
                           0);
}

/* Opens the rest of the fixture on f->dev and f->grid. */
static void open_model(Fixture *f, const ZeroOptions *zero, const GptShape *shape, int64_t B,
                       int64_t T, int64_t micros)
{
    f->B = B;
    f->T = T;
    f->micros = micros;
    f->scale = 1.0 / (double)(f->grid.size.dp * micros * B * T);
    f->tp = tp_region_open(&f->grid.tp, &f->dev, zero->sequence_parallel);
    LayersPart part = {.size = f->grid.size,
                       .at = f->grid.at,
                       .sequence_parallel = zero->sequence_parallel,
                       .chunks = 1};
    gpt_layers_build(&f->layers, &f->table, shape, &part);
    /* Create the store for the unit uses of fixture_backward. */
    ZeroOptions options = *zero;
    Schedule s = schedule_of(micros, true);
    Use *uses = must_calloc((size_t)gpt_uses(&f->layers, s.action, s.n, NULL), sizeof *uses);
    options.uses = uses;
    options.n_uses = gpt_uses(&f->layers, s.action, s.n, uses);
    f->store = zero_create(&f->table, &f->grid, &options);
    schedule_free(&s);
    free(uses);
    f->store_bytes = f->dev.held;
    zero_allocate(f->store, &f->dev);
    f->store_bytes = f->dev.held - f->store_bytes;
    f->params = zero_params(f->store);
    f->gpt = gpt_create(&f->dev, &f->layers, f->params, &f->tp, B, T, GPT_TRAIN, NULL);
    f->far = device_alloc(&f->dev, sizeof *f->far, "stats");
    gpt_connect(f->gpt, feed, f, &f->far->stats, &f->far->scale);
    f->batch = (GptBatch){
        .tokens = row_of_tokens(f), .targets = row_of_tokens(f), .positions = row_of_tokens(f)};
    draw_batches(f, shape->V);
    draw_weights(f);
}

void fixture_open_on(Fixture *f, const char *backend, const GptShape *shape, int64_t B, int64_t T,
                     int64_t micros, int threads, CpuLevel level)
{
    ZeroOptions zero = {.gradients = true, .grad_dtype = shape->grad_dtype};
    open_device(f, backend, threads, level);
    f->grid = grid_single();
    open_model(f, &zero, shape, B, T, micros);
}

void fixture_open_place(Fixture *f, Comm *world, GridPlace size, const ZeroOptions *zero,
                        const GptShape *shape, int64_t B, int64_t T, int64_t micros)
{
    GridGroups groups = {.kv = (int)shape->G, .tied = shape->tied};
    open_device(f, test_backend(shape), 1, CPU_LEVEL_AUTO);
    f->grid = grid_open(world, size, &groups);
    open_model(f, zero, shape, B, T, micros);
}

void fixture_close(Fixture *f)
{
    gpt_destroy(f->gpt);
    zero_destroy(f->store);
    gpt_layers_free(&f->layers);
    param_table_free(&f->table);
    tp_region_close(&f->tp);
    grid_close(&f->grid);
    device_drop(&f->dev, f->batch.tokens);
    device_drop(&f->dev, f->batch.targets);
    device_drop(&f->dev, f->batch.positions);
    device_release(&f->dev, f->far, sizeof *f->far);
    device_close(&f->dev);
    free(f->tokens);
    free(f->targets);
    free(f->positions);
}

Tensor fixture_weight(Fixture *f, int param)
{
    const Param *p = &f->table.param[param];
    f->params->step_begin(f->params, NULL, 0);
    f->params->acquire(f->params, p->unit);
    Tensor w = tensor_slice_rows(f->params->weight(f->params, param, 1), 0, p->dim[0]);
    f->params->release(f->params, p->unit);
    return w;
}

Tensor fixture_grad(Fixture *f, int param)
{
    const Param *p = &f->table.param[param];
    Shard shards[512];
    int n = f->params->shards(f->params, PURPOSE_COUNT, shards, 512);
    for (int i = 0; i < n; i++) {
        const Shard *s = &shards[i];
        if (s->unit != p->unit || p->offset < s->offset || p->offset >= s->offset + s->count)
            continue;
        void *data =
            (char *)s->grad.data + (size_t)(p->offset - s->offset) * dtype_size(s->grad.dtype);
        return p->ndim == 1 ? tensor_1d(data, s->grad.dtype, p->dim[0])
                            : tensor_2d(data, s->grad.dtype, p->dim[0], p->dim[1]);
    }
    fail(EXIT_BUG, "%s has no gradient here", p->name);
}

unsigned char *fixture_gradients(Fixture *f, size_t *bytes)
{
    Shard shards[512];
    int n = f->params->shards(f->params, PURPOSE_COUNT, shards, 512);
    *bytes = 0;
    for (int i = 0; i < n; i++)
        *bytes += tensor_bytes(shards[i].grad);
    unsigned char *out = must_alloc(*bytes), *at = out;
    for (int i = 0; i < n; at += tensor_bytes(shards[i].grad), i++)
        device_copy(&f->dev, tensor_1d(at, shards[i].grad.dtype, tensor_count(shards[i].grad)),
                    tensor_flat(shards[i].grad));
    device_synchronize(&f->dev);
    return out;
}

static double run(Fixture *f, bool backward)
{
    Schedule s = schedule_of(f->micros, backward);
    Use *uses = must_calloc((size_t)gpt_uses(&f->layers, s.action, s.n, NULL), sizeof *uses);
    int64_t n_uses = gpt_uses(&f->layers, s.action, s.n, uses);
    Stage stage = gpt_stage(f->gpt);
    struct FixtureFar near = {.scale = f->scale};
    device_copy_words(&f->dev, f->far, &near, sizeof near);
    f->params->step_begin(f->params, uses, n_uses);
    pipeline_run(NULL, &stage, s.action, s.n, s.transfer);
    f->params->step_end(f->params);
    schedule_free(&s);
    free(uses);
    device_copy_words(&f->dev, &near, f->far, sizeof near);
    device_synchronize(&f->dev);
    f->stats = near.stats;
    return f->stats.nats * f->scale;
}

double fixture_loss(Fixture *f)
{
    return run(f, false);
}

double fixture_backward(Fixture *f)
{
    return run(f, true);
}

void fixture_logits(Fixture *f, int64_t micro, Tensor logits)
{
    GptBatch batch = feed(f, &(Action){.micro = micro});
    f->params->step_begin(f->params, NULL, 0);
    Tensor far = device_put(&f->dev, logits);
    model_logits(f->gpt, &batch, far);
    device_take(&f->dev, logits, far);
}
