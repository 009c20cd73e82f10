/* gpt.c -- see gpt.h. */
#include "model/gpt.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Gpt {
    const GptLayers *layers;
    Pass pass;
    GptMode mode;
    GptFeed feed;
    void *feed_context;
    LayerWork work;    /* borrows all of these */
    Tensor *x;         /* L + 1 of (S, C), S rows of the stream: between layers */
    ResidualGrad grad; /* of it */
    BlockActs *acts;   /* L */
    HeadActs head;
    Arena slot, scratch, angles;
    void *slot_memory, *scratch_memory, *rope_memory;
    GptBytes bytes;
};

double gpt_flops_per_token(const GptShape *s, int64_t T)
{
    double attention = (double)(shape_qkv_width(s) + s->H * s->D) * (double)s->C;
    double mlp = (double)(shape_up_width(s) + s->F) * (double)s->C;
    double products = (double)s->L * (attention + mlp) + (double)s->Vp * (double)s->C;
    return 6.0 * products + 6.0 * (double)s->L * (double)(s->H * s->D) * (double)T;
}

/* Lays out everything that keeps its place for the whole run. Scratch begins with the gradient of
 * the residual stream, which all layers hand on. Behind it blocks and the head share one region,
 * for the head runs when no block does: in it lie the fields that blocks do not keep, or all of the
 * head's. `scratch` is left behind the fields of a block, where the block's backward takes its own.
 */
static void gpt_layout(const GptShape *s, int64_t B, int64_t T, GptMode mode, Tensor *x,
                       ResidualGrad *grad, BlockActs *acts, HeadActs *head, Arena *slot,
                       Arena *scratch)
{
    int64_t N = B * T, S = shape_stream_rows(s, N);
    bool train = mode == GPT_TRAIN;
    RecomputePolicy policy = train ? s->recompute : RECOMPUTE_FULL;
    /* Backward reads every x again; without backward two take turns. */
    for (int64_t l = 0; l <= s->L; l++)
        x[l] = train || l < 2 ? arena_tensor(slot, s->dtype, 2, S, s->C, 0) : x[l - 2];
    *grad = train ? residual_layout(s, N, scratch) : (ResidualGrad){0};
    size_t shared = arena_mark(scratch);
    head_layout(head, s, N, train, scratch);
    for (int64_t l = 0; l < s->L; l++) {
        arena_rewind(scratch, shared); /* one block runs at a time: they share what is not kept */
        block_layout(&acts[l], s, B, T, policy, slot, scratch);
    }
}

GptBytes gpt_bytes(const GptShape *s, int64_t B, int64_t T, GptMode mode)
{
    Arena slot = arena_measuring(), scratch = arena_measuring(), angles = arena_measuring();
    Tensor *x = must_calloc((size_t)s->L + 1, sizeof *x);
    ResidualGrad grad;
    BlockActs *acts = must_calloc((size_t)s->L, sizeof *acts);
    HeadActs head;
    gpt_layout(s, B, T, mode, x, &grad, acts, &head, &slot, &scratch);
    if (mode == GPT_TRAIN) block_backward_layout(s, B * T, &scratch);
    embedding_layout(s, B * T, &scratch);
    free(x);
    free(acts);
    rope_table_layout(s, &angles);
    return (GptBytes){.activations = slot.peak, .scratch = scratch.peak, .angles = angles.peak};
}

Tensor rope_table_layout(const GptShape *s, Arena *arena)
{
    if (s->position != POSITION_ROPE) return NO_TENSOR;
    return arena_tensor(arena, dtype_compute(s->dtype), 2, s->P, s->D, 0);
}

void rope_table_fill(Device *dev, Tensor table, double theta)
{
    int64_t P = table.dim[0], D = table.dim[1];
    char *host = must_alloc(tensor_bytes(table));
    for (int64_t p = 0; p < P; p++) {
        for (int64_t i = 0; i < D / 2; i++) {
            double angle = (double)p * pow(theta, -2.0 * (double)i / (double)D);
            dtype_set(table.dtype, host, p * D + i, cos(angle));
            dtype_set(table.dtype, host, p * D + D / 2 + i, sin(angle));
        }
    }
    device_copy(dev, table, tensor_2d(host, table.dtype, P, D));
    device_synchronize(dev);
    free(host);
}

Gpt *gpt_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                int64_t B, int64_t T, GptMode mode, const int *slots)
{
    const GptShape *s = &layers->shape;
    CHECK(slots == NULL || slots[0] == 1, "%d sets of activations", slots[0]);
    Gpt *g = must_calloc(1, sizeof *g);
    g->layers = layers;
    g->mode = mode;
    /* Measured by the layouts that then hand out the memory: one that took more than it had said
     * would end the program (arena.h). */
    g->bytes = gpt_bytes(s, B, T, mode);
    g->slot_memory = device_alloc(dev, g->bytes.activations, "activations");
    g->scratch_memory = device_alloc(dev, g->bytes.scratch, "scratch");
    g->slot = device_arena(dev, g->slot_memory, g->bytes.activations);
    g->scratch = device_arena(dev, g->scratch_memory, g->bytes.scratch);
    g->x = must_calloc((size_t)s->L + 1, sizeof *g->x);
    g->acts = must_calloc((size_t)s->L, sizeof *g->acts);
    gpt_layout(s, B, T, mode, g->x, &g->grad, g->acts, &g->head, &g->slot, &g->scratch);
    g->pass = (Pass){
        .dev = dev, .store = store, .tp = tp, .shape = s, .scratch = &g->scratch, .B = B, .T = T};
    g->work = (LayerWork){.pass = &g->pass,
                          .layers = layers,
                          .x = g->x,
                          .acts = g->acts,
                          .head = &g->head,
                          .grad = &g->grad};
    /* Memory of its own: filled once and only read, while slot and scratch are written by each
     * micro-batch. */
    if (s->position == POSITION_ROPE) {
        g->rope_memory = device_alloc(dev, g->bytes.angles, "rotary angles");
        g->angles = device_arena(dev, g->rope_memory, g->bytes.angles);
        g->pass.rope_table = rope_table_layout(s, &g->angles);
        rope_table_fill(dev, g->pass.rope_table, s->rope_theta);
    }
    return g;
}

void gpt_destroy(Gpt *g)
{
    if (g == NULL) return;
    Device *dev = g->pass.dev;
    device_release(dev, g->rope_memory, g->bytes.angles);
    device_release(dev, g->slot_memory, g->bytes.activations);
    device_release(dev, g->scratch_memory, g->bytes.scratch);
    free(g->x);
    free(g->acts);
    free(g);
}

static void poison(Device *dev, void *memory, size_t bytes)
{
    int64_t count = (int64_t)bytes;
    void *host = must_alloc(bytes);
    memset(host, 0xFF, bytes);
    device_copy(dev, tensor_1d(memory, U8, count), tensor_1d(host, U8, count));
    device_synchronize(dev);
    free(host);
}

void gpt_poison(Gpt *g)
{
    poison(g->pass.dev, g->slot_memory, g->bytes.activations);
    poison(g->pass.dev, g->scratch_memory, g->bytes.scratch);
}

GptBytes gpt_used(const Gpt *g)
{
    return (GptBytes){
        .activations = g->slot.peak, .scratch = g->scratch.peak, .angles = g->angles.peak};
}

void gpt_set_stats(Gpt *g, StepStats *stats)
{
    g->work.stats = tensor_1d(&stats->nats, F64, 2);
}

void gpt_connect(Gpt *g, GptFeed feed, void *feed_context, StepStats *stats, double *scale)
{
    g->feed = feed;
    g->feed_context = feed_context;
    gpt_set_stats(g, stats);
    g->work.scale = scale ? tensor_1d(scale, F64, 1) : NO_TENSOR;
}

static void set_batch(Gpt *g, const GptBatch *batch)
{
    g->pass.tokens = batch->tokens;
    g->pass.targets = batch->targets;
    g->pass.positions = batch->positions;
}

static void stage_forward(void *self, const Action *action, Tensor in, Tensor out)
{
    Gpt *g = self;
    GptBatch batch = g->feed(g->feed_context, action);
    (void)in, (void)out;
    set_batch(g, &batch);
    layers_run(&g->work, action->kind, action->chunk);
}

static void stage_backward(void *self, const Action *action, Tensor dout, Tensor din)
{
    Gpt *g = self;
    GptBatch batch = g->feed(g->feed_context, action);
    (void)dout, (void)din;
    set_batch(g, &batch);
    layers_run(&g->work, action->kind, action->chunk);
}

Stage gpt_stage(Gpt *g)
{
    return (Stage){
        .forward = stage_forward, .backward = stage_backward, .evaluate = stage_forward, .self = g};
}

int64_t gpt_max_uses(const GptShape *s, int64_t n_actions)
{
    return n_actions * layers_max_uses(s);
}

int64_t gpt_uses(const GptLayers *layers, const Action *actions, int64_t n, Use *uses)
{
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (actions[i].kind != ACT_EXCHANGE)
            k += layers_uses(layers, actions[i].kind, actions[i].chunk, uses + k);
    return k;
}

void gpt_logits(Gpt *g, const GptBatch *batch, Tensor logits)
{
    set_batch(g, batch);
    layers_logits(&g->work, logits);
}
