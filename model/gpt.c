/* gpt.c -- implements gpt.h: the memory of a stage's activations, and the stage's actions. */
#include "model/gpt.h"

#include "configs/rope.h"
#include "model/core/check.h"
#include "model/core/device_counted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The activations of a chunk of layers. Each of the `slots` slots holds one micro-batch: the
 * activations of `blocks` blocks and the residual stream before each block and after the last. */
typedef struct {
    int slots, first, blocks;
    bool begins, ends; /* whether it has the embedding, and the head */
    Tensor *x;         /* residual streams: slots * (blocks + 1) */
    BlockActs *acts;   /* activations: slots * blocks */
    size_t *border;    /* slots + 1 arena offsets: start of each slot, and the end */
} Chunk;

/* Tensors whose memory is placed once for the whole run. */
typedef struct {
    Chunk *chunk;
    int n_chunks;
    HeadActs head;
    ResidualGrad grad; /* gradient of the residual stream */
} Layout;

struct Gpt {
    const GptLayers *layers;
    Pass pass;
    GptMode mode;
    GptFeed feed;
    void *feed_context;
    Layout layout;
    LayerWork work; /* its pointers refer to the fields above */
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

double gpt_layer_flops(const GptShape *s, int64_t T, int row)
{
    GptShape one = *s;
    one.L = row == 0 || row == s->L + 1 ? 0 : 1; /* no block for embedding and head, else one */
    double head = 6.0 * (double)s->Vp * (double)s->C, all = gpt_flops_per_token(&one, T);
    return row == 0 ? 0 : row == s->L + 1 ? head : all - head;
}

static Layout layout_create(const GptLayers *layers, const int *slots)
{
    Layout l = {.n_chunks = layers->n_chunks};
    l.chunk = must_calloc((size_t)l.n_chunks, sizeof *l.chunk);
    for (int c = 0; c < l.n_chunks; c++) {
        LayerRange blocks = layers_blocks(layers, c);
        Chunk *chunk = &l.chunk[c];
        *chunk = (Chunk){.slots = slots ? slots[c] : 1,
                         .first = blocks.first,
                         .blocks = blocks.end - blocks.first,
                         .begins = layers_begin(layers, c),
                         .ends = layers_end(layers, c)};
        size_t sets = (size_t)chunk->slots, n = (size_t)chunk->blocks;
        chunk->x = must_calloc(sets * (n + 1), sizeof *chunk->x);
        chunk->acts = must_calloc(sets * n + 1, sizeof *chunk->acts);
        chunk->border = must_calloc(sets + 1, sizeof *chunk->border);
    }
    return l;
}

static void layout_free(Layout *l)
{
    for (int c = 0; c < l->n_chunks; c++) {
        free(l->chunk[c].x);
        free(l->chunk[c].acts);
        free(l->chunk[c].border);
    }
    free(l->chunk);
}

static Tensor *streams_of(const Chunk *c, int slot)
{
    return c->x + (size_t)slot * (size_t)(c->blocks + 1);
}

static BlockActs *acts_of(const Chunk *c, int slot)
{
    return c->acts + (size_t)slot * (size_t)c->blocks;
}

static Tensor stream_tensor(const GptShape *s, int64_t N, Arena *arena)
{
    return arena_tensor(arena, s->dtype, 2, shape_stream_rows(s, N), s->C, 0);
}

/* Places one slot of a chunk's activations. If the head follows the last block, the slot also holds
 * the stream after that block. Otherwise another stage reads that stream, so it is written directly
 * to the pipeline's buffer. */
static void layout_slot(const GptShape *s, int64_t B, int64_t T, GptMode mode, const Chunk *c,
                        int slot, Arena *saved, Arena *scratch)
{
    bool train = mode == GPT_TRAIN;
    int kept = c->blocks + c->ends;
    Tensor *x = streams_of(c, slot);
    BlockActs *acts = acts_of(c, slot);
    size_t shared = arena_mark(scratch);
    /* Backward reads every x again. Without backward, two tensors alternate. */
    for (int l = 0; l < kept; l++)
        x[l] = train || l < 2 ? stream_tensor(s, B * T, saved) : x[l - 2];
    for (int l = 0; l < c->blocks; l++) {
        /* Blocks run one at a time, so they share the memory of fields that are not kept. */
        arena_rewind(scratch, shared);
        block_layout(&acts[l], s, B, T, train ? s->recompute : RECOMPUTE_FULL, saved, scratch);
    }
}

/* Places all activations and scratch. Scratch begins with the gradient of the residual stream,
 * which all layers use. The memory after it holds the block fields that are not kept, or all fields
 * of the head: blocks and head never run at the same time. On return, `scratch` is just after a
 * block's fields, where the block's backward takes its gradients. */
static void layout_fill(Layout *l, const GptShape *s, int64_t B, int64_t T, GptMode mode,
                        Arena *saved, Arena *scratch)
{
    int64_t N = B * T;
    bool train = mode == GPT_TRAIN;
    l->grad = train ? residual_layout(s, N, scratch) : (ResidualGrad){0};
    size_t shared = arena_mark(scratch);
    if (l->chunk[l->n_chunks - 1].ends) head_layout(&l->head, s, N, train, scratch);
    for (int c = 0; c < l->n_chunks; c++) {
        l->chunk[c].border[0] = arena_mark(saved);
        for (int slot = 0; slot < l->chunk[c].slots; slot++) {
            if (l->chunk[c].blocks > 0) arena_rewind(scratch, shared);
            layout_slot(s, B, T, mode, &l->chunk[c], slot, saved, scratch);
            l->chunk[c].border[slot + 1] = arena_mark(saved);
        }
    }
}

GptBytes gpt_bytes(const GptLayers *layers, const int *slots, int64_t B, int64_t T, GptMode mode)
{
    const GptShape *s = &layers->shape;
    Arena saved = arena_measuring(), scratch = arena_measuring(), angles = arena_measuring();
    Layout l = layout_create(layers, slots);
    bool blocks = false;
    layout_fill(&l, s, B, T, mode, &saved, &scratch);
    for (int c = 0; c < l.n_chunks; c++)
        blocks |= l.chunk[c].blocks > 0;
    if (mode == GPT_TRAIN && blocks) block_backward_layout(s, B * T, &scratch);
    if (layers_begin(layers, 0)) embedding_layout(s, B * T, &scratch);
    layout_free(&l);
    rope_table_layout(s, &angles);
    return (GptBytes){.activations = saved.peak, .scratch = scratch.peak, .angles = angles.peak};
}

Tensor rope_table_layout(const GptShape *s, Arena *arena)
{
    if (s->position != POSITION_ROPE) return NO_TENSOR;
    return arena_tensor(arena, dtype_compute(s->dtype), 2, s->P, s->D, 0);
}

void rope_table_fill(Device *dev, Tensor table, const GptShape *s)
{
    int64_t P = table.dim[0], D = table.dim[1];
    if (device_is_counted(dev)) return;
    char *host = must_alloc(tensor_bytes(table));
    for (int64_t i = 0; i < D / 2; i++) {
        double frequency = rope_frequency(&s->rope_scaling, s->rope_theta, D, i);
        for (int64_t p = 0; p < P; p++) {
            double angle = (double)p * frequency;
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
    Gpt *g = must_calloc(1, sizeof *g);
    g->layers = layers;
    g->mode = mode;
    /* The same layout functions measure here and hand out memory below. If they took more than they
     * measured, the arena would end the program (arena.h). */
    g->bytes = gpt_bytes(layers, slots, B, T, mode);
    if (g->bytes.activations > 0)
        g->slot_memory = device_alloc(dev, g->bytes.activations, "activations");
    if (g->bytes.scratch > 0) g->scratch_memory = device_alloc(dev, g->bytes.scratch, "scratch");
    g->slot = device_arena(dev, g->slot_memory, g->bytes.activations);
    g->scratch = device_arena(dev, g->scratch_memory, g->bytes.scratch);
    g->layout = layout_create(layers, slots);
    layout_fill(&g->layout, s, B, T, mode, &g->slot, &g->scratch);
    g->pass = (Pass){
        .dev = dev, .store = store, .tp = tp, .shape = s, .scratch = &g->scratch, .B = B, .T = T};
    g->work = (LayerWork){
        .pass = &g->pass, .layers = layers, .head = &g->layout.head, .grad = &g->layout.grad};
    /* The table of rotary angles has memory of its own: it is filled once and then only read, while
     * slots and scratch are written by each micro-batch. */
    if (s->position == POSITION_ROPE) {
        g->rope_memory = device_alloc(dev, g->bytes.angles, "rotary angles");
        g->angles = device_arena(dev, g->rope_memory, g->bytes.angles);
        g->pass.rope_table = rope_table_layout(s, &g->angles);
        rope_table_fill(dev, g->pass.rope_table, s);
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
    layout_free(&g->layout);
    free(g);
}

GptInside gpt_inside(const Gpt *g, int chunk, int slot)
{
    const Chunk *c = &g->layout.chunk[chunk];
    char *slots = g->slot_memory;
    size_t from = c->border[slot], bytes = c->border[slot + 1] - from;
    GptInside inside = {.work = g->work,
                        .slots = tensor_1d(slots, U8, (int64_t)g->bytes.activations),
                        .slot = tensor_1d(slots ? slots + from : NULL, U8, (int64_t)bytes),
                        .scratch = tensor_1d(g->scratch_memory, U8, (int64_t)g->bytes.scratch),
                        .used = {.activations = g->slot.peak,
                                 .scratch = g->scratch.peak,
                                 .angles = g->angles.peak}};
    inside.work.first = c->first;
    inside.work.x = streams_of(c, slot);
    inside.work.acts = acts_of(c, slot);
    return inside;
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

/* Returns what the layers need for an action: the tensors of its chunk and slot, and the batch. If
 * the chunk does not end with the head, a forward pass writes its output to `last`. */
static LayerWork work_of(Gpt *g, const Action *action, Tensor last)
{
    CHECK(action->chunk < g->layout.n_chunks, "chunk %d of %d", action->chunk, g->layout.n_chunks);
    const Chunk *c = &g->layout.chunk[action->chunk];
    CHECK(action->slot < c->slots, "slot %d of %d", action->slot, c->slots);
    GptBatch batch = g->feed(g->feed_context, action);
    set_batch(g, &batch);
    LayerWork work = g->work;
    work.first = c->first;
    work.x = streams_of(c, action->slot);
    work.acts = acts_of(c, action->slot);
    if (tensor_present(batch.sequence_stats)) work.stats = batch.sequence_stats;
    if (!c->ends) work.x[c->blocks] = last;
    return work;
}

static void stage_forward(void *self, const Action *action, Tensor in, Tensor out)
{
    Gpt *g = self;
    LayerWork work = work_of(g, action, out);
    if (tensor_present(in)) op_copy(g->pass.dev, work.x[0], in);
    layers_run(&work, action->kind, action->chunk);
}

static void stage_backward(void *self, const Action *action, Tensor dout, Tensor din)
{
    Gpt *g = self;
    LayerWork work = work_of(g, action, NO_TENSOR);
    ResidualGrad grad = g->layout.grad;
    /* Write the gradient for the previous stage directly into the pipeline's buffer. A gradient
     * that was received from another stage has no column sums yet. */
    if (tensor_present(din)) grad.d = din;
    if (tensor_present(dout)) op_copy(g->pass.dev, grad.d, dout);
    grad.summed = false;
    work.grad = &grad;
    layers_run(&work, action->kind, action->chunk);
}

Stage gpt_stage(Gpt *g)
{
    return (Stage){
        .forward = stage_forward, .backward = stage_backward, .evaluate = stage_forward, .self = g};
}

int64_t gpt_uses(const GptLayers *layers, const Action *actions, int64_t n, Use *uses)
{
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (actions[i].kind != ACT_EXCHANGE)
            k += layers_uses(layers, actions[i].kind, actions[i].chunk, uses ? uses + k : NULL);
    return k;
}
