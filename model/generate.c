/* generate.c -- see generate.h. Each pass lays its activations out again over one arena, so that it
 * may have any number of rows up to the capacity. It runs the layers of training, except that
 * attention reads all keys and values of the cache, not just those of the pass. */
#include "model/generate.h"

#include "model/core/check.h"
#include "model/core/rng.h"

#include <math.h>
#include <stdlib.h>

struct Decoder {
    const GptLayers *layers;
    Pass pass;
    KvCache *cache;  /* L, of which those of this stage's blocks have a place */
    Tensor *x;       /* L + 1, of two places in turn */
    BlockActs *acts; /* L, all in one place */
    HeadActs head;
    GptShape shape;     /* the layers', with all rows of the stream on every rank */
    const Relay *relay; /* NULL: one stage */
    LayerWork work;     /* borrows these */
    int64_t length, capacity;
    Arena fixed, scratch;
    void *fixed_memory, *scratch_memory;
    Tensor tokens, positions; /* device: (capacity) i32 */
    Tensor logits;            /* device: (1, Vp) of all columns, storage */
    int32_t *history;         /* host: the tokens so far */
    int32_t *host_positions, *order;
    void *host_logits, *host_storage;
};

/* What lives as long as the decoder. */
static void layout_fixed(Decoder *d, Arena *arena)
{
    const GptShape *s = &d->shape;
    for (int c = 0; c < d->layers->n_chunks; c++) {
        LayerRange blocks = layers_blocks(d->layers, c);
        for (int l = blocks.first; l < blocks.end; l++) {
            d->cache[l].k = arena_tensor(arena, s->dtype, 2, d->capacity, s->G * s->D, 0);
            d->cache[l].v = arena_tensor(arena, s->dtype, 2, d->capacity, s->G * s->D, 0);
        }
    }
    d->tokens = arena_tensor(arena, I32, 1, d->capacity, 0, 0);
    d->positions = arena_tensor(arena, I32, 1, d->capacity, 0, 0);
    d->logits = arena_tensor(arena, s->dtype, 2, 1, d->layers->whole.Vp, 0);
    d->pass.rope_table = rope_table_layout(s, arena);
}

/* What one pass over n tokens needs. */
typedef struct {
    Tensor x[2];
    BlockActs acts;
    HeadActs head;
} PassActs;

static void layout_pass(const GptShape *s, int64_t n, Arena *arena, PassActs *acts)
{
    acts->x[0] = arena_tensor(arena, s->dtype, 2, n, s->C, 0);
    acts->x[1] = arena_tensor(arena, s->dtype, 2, n, s->C, 0);
    block_layout(&acts->acts, s, 1, n, RECOMPUTE_FULL, arena, arena);
    head_layout(&acts->head, s, 1, false, arena);
}

typedef struct {
    size_t fixed, scratch;
} DecoderBytes;

/* A decoder without memory: its shapes, and the arrays that a layout fills. */
static Decoder *describe(const GptLayers *layers, int64_t capacity)
{
    Decoder *d = must_calloc(1, sizeof *d);
    d->layers = layers;
    d->capacity = capacity;
    d->shape = layers->shape;
    d->shape.row_parts = 1;
    size_t L = (size_t)d->shape.L;
    d->cache = must_calloc(L, sizeof *d->cache);
    d->x = must_calloc(L + 1, sizeof *d->x);
    d->acts = must_calloc(L, sizeof *d->acts);
    return d;
}

static void forget(Decoder *d)
{
    free(d->cache);
    free(d->x);
    free(d->acts);
    free(d);
}

static DecoderBytes measure(const GptLayers *layers, int64_t capacity)
{
    Arena fixed = arena_measuring(), scratch = arena_measuring();
    Decoder *d = describe(layers, capacity);
    PassActs acts;
    layout_fixed(d, &fixed);
    layout_pass(&d->shape, capacity, &scratch, &acts);
    forget(d);
    return (DecoderBytes){fixed.peak, scratch.peak};
}

size_t decoder_bytes(const GptLayers *layers, int64_t max_tokens)
{
    DecoderBytes bytes = measure(layers, max_tokens);
    return bytes.fixed + bytes.scratch < bytes.fixed ? SIZE_MAX : bytes.fixed + bytes.scratch;
}

Decoder *decoder_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                        const Relay *relay, int64_t max_tokens)
{
    Decoder *d = describe(layers, max_tokens);
    const GptShape *s = &d->shape;
    CHECK(max_tokens >= 1 && max_tokens <= s->P, "%lld tokens of %lld positions",
          (long long)max_tokens, (long long)s->P);
    CHECK(tp->parts == 1, "a pass of few rows cut into %lld", (long long)tp->parts);
    d->relay = relay;
    /* A pass takes the most scratch over max_tokens rows: any shorter one fits into the same. */
    DecoderBytes bytes = measure(layers, max_tokens);
    d->fixed_memory = device_alloc(dev, bytes.fixed, "the cache of keys and values");
    d->scratch_memory = device_alloc(dev, bytes.scratch, "a decoding pass");
    d->fixed = device_arena(dev, d->fixed_memory, bytes.fixed);
    d->scratch = device_arena(dev, d->scratch_memory, bytes.scratch);
    d->pass =
        (Pass){.dev = dev, .store = store, .tp = tp, .shape = s, .scratch = &d->scratch, .B = 1};
    d->pass.caches = d->cache;
    /* Filled in by each decoder_feed, which knows how many rows its pass has. */
    d->work = (LayerWork){
        .pass = &d->pass, .layers = layers, .x = d->x, .acts = d->acts, .head = &d->head};
    layout_fixed(d, &d->fixed);
    if (tensor_present(d->pass.rope_table)) rope_table_fill(dev, d->pass.rope_table, s->rope_theta);
    /* The host keeps the tokens: when the context is full, the last of them are fed again. */
    d->history = must_calloc((size_t)max_tokens, sizeof *d->history);
    d->host_positions = must_calloc((size_t)max_tokens, sizeof *d->host_positions);
    d->order = must_calloc((size_t)s->V, sizeof *d->order);
    d->host_storage = must_calloc((size_t)layers->whole.Vp, dtype_size(s->dtype));
    d->host_logits = must_calloc((size_t)s->V, dtype_size(dtype_compute(s->dtype)));
    return d;
}

void decoder_destroy(Decoder *d)
{
    if (d == NULL) return;
    DecoderBytes bytes = measure(d->layers, d->capacity);
    device_release(d->pass.dev, d->fixed_memory, bytes.fixed);
    device_release(d->pass.dev, d->scratch_memory, bytes.scratch);
    free(d->history);
    free(d->host_positions);
    free(d->order);
    free(d->host_storage);
    free(d->host_logits);
    forget(d);
}

size_t decoder_used(const Decoder *d)
{
    return d->fixed.peak + d->scratch.peak;
}

/* Forgets the sequence. */
static void decoder_reset(Decoder *d)
{
    d->length = 0;
}

int64_t decoder_room(const Decoder *d)
{
    return d->capacity - d->length;
}

/* Runs the layers over the tokens of the pass: this stage's chunks in their turn among those of the
 * others. d->logits = those of the last row, on all ranks. */
static void run_stages(Decoder *d)
{
    const GptLayers *layers = d->layers;
    const Relay *relay = d->relay;
    for (int c = 0; c < layers->n_chunks; c++) {
        LayerRange blocks = layers_blocks(layers, c);
        if (!layers_begin(layers, c)) relay->receive(relay->self, c, d->x[blocks.first]);
        layers_logits(&d->work, c, d->logits);
        if (!layers_end(layers, c)) relay->send(relay->self, c, d->x[blocks.end]);
    }
    if (relay) relay->share(relay->self, d->logits);
}

Tensor decoder_feed(Decoder *d, const int32_t *tokens, int64_t n)
{
    const GptShape *s = &d->shape;
    PassActs acts;
    CHECK(n >= 1 && n <= decoder_room(d), "%lld tokens into room for %lld", (long long)n,
          (long long)decoder_room(d));
    for (int64_t i = 0; i < n; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < s->V, "token %d of %lld", tokens[i], (long long)s->V);
        /* In ascending order, for tokens may be a later part of the history itself. */
        d->history[d->length + i] = tokens[i];
        d->host_positions[i] = (int32_t)(d->length + i);
    }
    /* The activations of the last pass are of no more use; what lives on is in the cache. */
    arena_rewind(&d->scratch, 0);
    layout_pass(s, n, &d->scratch, &acts);
    d->pass.T = n;
    d->pass.tokens = tensor_slice_rows(d->tokens, 0, n);
    d->pass.positions = tensor_slice_rows(d->positions, 0, n);
    device_copy(d->pass.dev, d->pass.tokens, tensor_1d(d->history + d->length, I32, n));
    device_copy(d->pass.dev, d->pass.positions, tensor_1d(d->host_positions, I32, n));
    /* Nothing is kept for a backward pass: blocks share their activations, and two streams take
     * turns. */
    for (int64_t l = 0; l < s->L; l++) {
        d->x[l] = acts.x[l % 2];
        d->acts[l] = acts.acts;
        d->cache[l].length = d->length;
    }
    d->x[s->L] = acts.x[s->L % 2];
    d->head = acts.head;
    run_stages(d);
    d->length += n;
    Tensor storage = tensor_2d(d->host_storage, s->dtype, 1, tensor_cols(d->logits));
    device_copy(d->pass.dev, storage, d->logits);
    device_synchronize(d->pass.dev);
    Tensor logits = tensor_1d(d->host_logits, dtype_compute(s->dtype), s->V);
    for (int64_t i = 0; i < s->V; i++)
        dtype_set(logits.dtype, logits.data, i, dtype_get(storage.dtype, storage.data, i));
    return logits;
}

/* Descending logits; of equal ones the smaller id first, so that the order is total. */
static int by_logit(const void *a, const void *b, void *context)
{
    const Tensor *logits = context;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    double x = dtype_get(logits->dtype, logits->data, i),
           y = dtype_get(logits->dtype, logits->data, j);
    if (x != y) return x > y ? -1 : 1;
    return (i > j) - (i < j);
}

int32_t sample_token(const Sampling *sampling, Tensor logits, uint64_t index, int32_t *order)
{
    int64_t V = logits.dim[0], n = V, last = 0;
    /* Sorted, with ties by id, so that the draw depends on logits and seed alone. */
    for (int64_t i = 0; i < V; i++)
        order[i] = (int32_t)i;
    qsort_r(order, (size_t)V, sizeof *order, by_logit, &logits);
    if (sampling->temperature <= 0) return order[0];
    if (sampling->top_k > 0 && sampling->top_k < n) n = sampling->top_k;
    double top = dtype_get(logits.dtype, logits.data, order[0]), total = 0, mass = 0;
    for (int64_t i = 0; i < n; i++)
        total +=
            exp((dtype_get(logits.dtype, logits.data, order[i]) - top) / sampling->temperature);
    /* The nucleus ends with the token that brings its mass to top_p. */
    for (last = 0; last < n - 1; last++) {
        mass +=
            exp((dtype_get(logits.dtype, logits.data, order[last]) - top) / sampling->temperature);
        if (mass >= sampling->top_p * total) break;
    }
    if (last == n - 1) mass = total; /* nothing was cut off */
    double draw = rng_uniform(sampling->seed, rng_stream("generate"), index) * mass, sum = 0;
    for (int64_t i = 0; i < last; i++) {
        sum += exp((dtype_get(logits.dtype, logits.data, order[i]) - top) / sampling->temperature);
        if (draw < sum) return order[i];
    }
    return order[last];
}

void generate(Decoder *d, const Sampling *sampling, const int32_t *prompt, int64_t n,
              int64_t tokens, TokenSink sink, void *context)
{
    CHECK(n >= 1, "a prompt of %lld tokens", (long long)n);
    /* When the context is full, its last half is fed as if it began the text. To drop one token at
     * a time would cost a whole pass for every token: all positions change. */
    int64_t keep = d->capacity / 2 > 0 ? d->capacity / 2 : 1;
    decoder_reset(d);
    if (n > d->capacity) { /* only the end of a prompt longer than the context counts */
        prompt += n - d->capacity;
        n = d->capacity;
    }
    Tensor logits = decoder_feed(d, prompt, n);
    for (int64_t i = 0; i < tokens; i++) {
        int32_t token = sample_token(sampling, logits, (uint64_t)i, d->order);
        if (!sink(context, token) || i == tokens - 1) return;
        if (decoder_room(d) == 0) {
            int64_t from = d->capacity - keep;
            decoder_reset(d);
            if (d->capacity > 1) decoder_feed(d, d->history + from, keep);
        }
        if (decoder_room(d) == 0) decoder_reset(d);
        logits = decoder_feed(d, &token, 1);
    }
}
