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
    KvCache *cache;  /* L */
    Tensor *x;       /* L + 1, of two places in turn */
    BlockActs *acts; /* L, all in one place */
    HeadActs head;
    LayerWork work; /* borrows these */
    int64_t length, capacity;
    Arena fixed, scratch;
    void *fixed_memory, *scratch_memory;
    Tensor tokens, positions, logits; /* device: (capacity), (capacity) i32; (1, Vp) storage */
    int32_t *history;                 /* host: the tokens so far */
    int32_t *host_positions, *order;
    void *host_logits, *host_storage;
};

/* What lives as long as the decoder. */
static void layout_fixed(const GptShape *s, int64_t capacity, Arena *arena, KvCache *cache,
                         Tensor *tokens, Tensor *positions, Tensor *logits, Tensor *rope)
{
    for (int64_t l = 0; l < s->L; l++) {
        cache[l].k = arena_tensor(arena, s->dtype, 2, capacity, s->G * s->D, 0);
        cache[l].v = arena_tensor(arena, s->dtype, 2, capacity, s->G * s->D, 0);
    }
    *tokens = arena_tensor(arena, I32, 1, capacity, 0, 0);
    *positions = arena_tensor(arena, I32, 1, capacity, 0, 0);
    *logits = arena_tensor(arena, s->dtype, 2, 1, s->Vp, 0);
    *rope = rope_table_layout(s, arena);
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

static DecoderBytes measure(const GptShape *s, int64_t capacity)
{
    Arena fixed = arena_measuring(), scratch = arena_measuring();
    KvCache *cache = must_calloc((size_t)s->L, sizeof *cache);
    Tensor a, b, c, d;
    PassActs acts;
    layout_fixed(s, capacity, &fixed, cache, &a, &b, &c, &d);
    layout_pass(s, capacity, &scratch, &acts);
    free(cache);
    return (DecoderBytes){fixed.peak, scratch.peak};
}

size_t decoder_bytes(const GptShape *shape, int64_t max_tokens)
{
    DecoderBytes bytes = measure(shape, max_tokens);
    return bytes.fixed + bytes.scratch < bytes.fixed ? SIZE_MAX : bytes.fixed + bytes.scratch;
}

Decoder *decoder_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                        int64_t max_tokens)
{
    const GptShape *s = &layers->shape;
    Decoder *d = must_calloc(1, sizeof *d);
    CHECK(max_tokens >= 1 && max_tokens <= s->P, "%lld tokens of %lld positions",
          (long long)max_tokens, (long long)s->P);
    d->layers = layers;
    d->capacity = max_tokens;
    /* A pass takes the most scratch over max_tokens rows: any shorter one fits into the same. */
    DecoderBytes bytes = measure(s, max_tokens);
    d->fixed_memory = device_alloc(dev, bytes.fixed, "the cache of keys and values");
    d->scratch_memory = device_alloc(dev, bytes.scratch, "a decoding pass");
    d->fixed = device_arena(dev, d->fixed_memory, bytes.fixed);
    d->scratch = device_arena(dev, d->scratch_memory, bytes.scratch);
    d->cache = must_calloc((size_t)s->L, sizeof *d->cache);
    d->pass =
        (Pass){.dev = dev, .store = store, .tp = tp, .shape = s, .scratch = &d->scratch, .B = 1};
    d->pass.caches = d->cache;
    /* Filled in by each decoder_feed, which knows how many rows its pass has. */
    d->x = must_calloc((size_t)s->L + 1, sizeof *d->x);
    d->acts = must_calloc((size_t)s->L, sizeof *d->acts);
    d->work = (LayerWork){
        .pass = &d->pass, .layers = layers, .x = d->x, .acts = d->acts, .head = &d->head};
    layout_fixed(s, max_tokens, &d->fixed, d->cache, &d->tokens, &d->positions, &d->logits,
                 &d->pass.rope_table);
    if (tensor_present(d->pass.rope_table)) rope_table_fill(dev, d->pass.rope_table, s->rope_theta);
    /* The host keeps the tokens: when the context is full, the last of them are fed again. */
    d->history = must_calloc((size_t)max_tokens, sizeof *d->history);
    d->host_positions = must_calloc((size_t)max_tokens, sizeof *d->host_positions);
    d->order = must_calloc((size_t)s->V, sizeof *d->order);
    d->host_storage = must_calloc((size_t)s->Vp, dtype_size(s->dtype));
    d->host_logits = must_calloc((size_t)s->V, dtype_size(dtype_compute(s->dtype)));
    return d;
}

void decoder_destroy(Decoder *d)
{
    if (d == NULL) return;
    DecoderBytes bytes = measure(d->pass.shape, d->capacity);
    device_release(d->pass.dev, d->fixed_memory, bytes.fixed);
    device_release(d->pass.dev, d->scratch_memory, bytes.scratch);
    free(d->cache);
    free(d->x);
    free(d->acts);
    free(d->history);
    free(d->host_positions);
    free(d->order);
    free(d->host_storage);
    free(d->host_logits);
    free(d);
}

size_t decoder_used(const Decoder *d)
{
    return d->fixed.peak + d->scratch.peak;
}

void decoder_reset(Decoder *d)
{
    d->length = 0;
}

int64_t decoder_room(const Decoder *d)
{
    return d->capacity - d->length;
}

Tensor decoder_feed(Decoder *d, const int32_t *tokens, int64_t n)
{
    const GptShape *s = d->pass.shape;
    PassActs acts;
    CHECK(n >= 1 && n <= decoder_room(d), "%lld tokens into room for %lld", (long long)n,
          (long long)decoder_room(d));
    for (int64_t i = 0; i < n; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < s->V, "token %d of %lld", tokens[i], (long long)s->V);
        d->history[d->length + i] =
            tokens[i]; /* ascending: tokens may be a later part of history itself */
        d->host_positions[i] = (int32_t)(d->length + i);
    }
    arena_rewind(&d->scratch, 0);
    layout_pass(s, n, &d->scratch, &acts);
    d->pass.T = n;
    d->pass.tokens = tensor_slice_rows(d->tokens, 0, n);
    d->pass.positions = tensor_slice_rows(d->positions, 0, n);
    device_copy(d->pass.dev, d->pass.tokens, tensor_1d(d->history + d->length, I32, n));
    device_copy(d->pass.dev, d->pass.positions, tensor_1d(d->host_positions, I32, n));
    for (int64_t l = 0; l < s->L; l++) {
        d->x[l] = acts.x[l % 2];
        d->acts[l] = acts.acts;
        d->cache[l].length = d->length;
    }
    d->x[s->L] = acts.x[s->L % 2];
    d->head = acts.head;
    layers_logits(&d->work, d->logits); /* of the last row alone */
    d->length += n;
    Tensor storage = tensor_2d(d->host_storage, s->dtype, 1, s->Vp);
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
    /* Sorted, ties by id, so that the draw depends on logits and seed alone. */
    for (int64_t i = 0; i < V; i++)
        order[i] = (int32_t)i;
    qsort_r(order, (size_t)V, sizeof *order, by_logit, &logits);
    if (sampling->temperature <= 0) return order[0];
    if (sampling->top_k > 0 && sampling->top_k < n) n = sampling->top_k;
    double top = dtype_get(logits.dtype, logits.data, order[0]), total = 0, mass = 0;
    for (int64_t i = 0; i < n; i++)
        total +=
            exp((dtype_get(logits.dtype, logits.data, order[i]) - top) / sampling->temperature);
    for (last = 0; last < n - 1;
         last++) { /* the nucleus ends with the token that brings its mass to top_p */
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
