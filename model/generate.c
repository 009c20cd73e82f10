/* generate.c -- implements generate.h: decoding with a cache of keys and values, and sampling.
 *
 * The decoder runs the same layers as training, except that attention reads all keys and values in
 * the cache. All passes use the same memory for activations, which each pass lays out for its own
 * number of rows, up to the capacity. */
#include "model/generate.h"

#include "model/core/check.h"
#include "model/core/rng.h"

#include <math.h>
#include <stdlib.h>

struct Decoder {
    const GptLayers *layers;
    Pass pass;
    /* L entries; only those of the blocks on this stage have memory. */
    KvCache *cache;
    Tensor *x;       /* L + 1 residual streams that alternate between two tensors */
    BlockActs *acts; /* L entries that all use the same memory */
    HeadActs head;
    /* The layers' shape, but each rank has all rows of the residual stream. */
    GptShape shape;
    const Relay *relay; /* NULL if there is only one pipeline stage */
    LayerWork work;     /* its pointers refer to the fields above */
    int64_t length, capacity;
    Arena fixed, scratch;
    void *fixed_memory, *scratch_memory;
    Tensor tokens, positions; /* on the device: (capacity) i32 */
    Tensor logits;            /* on the device: (1, Vp), all columns, storage dtype */
    int32_t *history;         /* on the host: the tokens so far */
    int32_t *host_positions, *order;
    void *host_logits, *host_storage;
};

/* Reserves memory for everything that lives as long as the decoder. */
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

/* The activations of one pass over n tokens. */
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

/* Creates a decoder without memory: its shapes, and the arrays that the layout fills in. */
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
    /* A pass with max_tokens rows needs the most scratch; shorter passes fit into it. */
    DecoderBytes bytes = measure(layers, max_tokens);
    d->fixed_memory = device_alloc(dev, bytes.fixed, "the cache of keys and values");
    d->scratch_memory = device_alloc(dev, bytes.scratch, "a decoding pass");
    d->fixed = device_arena(dev, d->fixed_memory, bytes.fixed);
    d->scratch = device_arena(dev, d->scratch_memory, bytes.scratch);
    d->pass =
        (Pass){.dev = dev, .store = store, .tp = tp, .shape = s, .scratch = &d->scratch, .B = 1};
    d->pass.caches = d->cache;
    /* decoder_feed fills in these arrays, because it knows how many rows its pass has. */
    d->work = (LayerWork){
        .pass = &d->pass, .layers = layers, .x = d->x, .acts = d->acts, .head = &d->head};
    layout_fixed(d, &d->fixed);
    if (tensor_present(d->pass.rope_table)) rope_table_fill(dev, d->pass.rope_table, s);
    /* Keep the tokens on the host: when the context is full, the last of them are fed again. */
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

/* Runs the layers over the tokens of the pass: the stages take turns, each running its chunks of
 * layers. Sets d->logits on all ranks to the logits of the last row. */
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
        /* Copy in ascending order, because `tokens` may point to a later part of the history
         * itself. */
        d->history[d->length + i] = tokens[i];
        d->host_positions[i] = (int32_t)(d->length + i);
    }
    /* The activations of the last pass are no longer needed; only the cache is kept. */
    arena_rewind(&d->scratch, 0);
    layout_pass(s, n, &d->scratch, &acts);
    d->pass.T = n;
    d->pass.tokens = tensor_slice_rows(d->tokens, 0, n);
    d->pass.positions = tensor_slice_rows(d->positions, 0, n);
    device_copy(d->pass.dev, d->pass.tokens, tensor_1d(d->history + d->length, I32, n));
    device_copy(d->pass.dev, d->pass.positions, tensor_1d(d->host_positions, I32, n));
    /* No activations are kept for a backward pass: all blocks share one set, and the residual
     * stream alternates between two tensors. */
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

/* Compares for descending logits. Equal logits are ordered by smaller token id, so that the order
 * is unique. */
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
    /* Sort with ties broken by token id, so that the sample depends only on logits, seed and
     * index. */
    for (int64_t i = 0; i < V; i++)
        order[i] = (int32_t)i;
    qsort_r(order, (size_t)V, sizeof *order, by_logit, &logits);
    if (sampling->temperature <= 0) return order[0];
    if (sampling->top_k > 0 && sampling->top_k < n) n = sampling->top_k;
    double top = dtype_get(logits.dtype, logits.data, order[0]), total = 0, mass = 0;
    for (int64_t i = 0; i < n; i++)
        total +=
            exp((dtype_get(logits.dtype, logits.data, order[i]) - top) / sampling->temperature);
    /* The nucleus ends with the token at which the probability mass reaches top_p. */
    for (last = 0; last < n - 1; last++) {
        mass +=
            exp((dtype_get(logits.dtype, logits.data, order[last]) - top) / sampling->temperature);
        if (mass >= sampling->top_p * total) break;
    }
    if (last == n - 1) mass = total; /* no token was cut off */
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
    /* When the context is full, feed its last half again as if the text began there. Dropping one
     * token at a time would change all positions and cost a whole pass per token. */
    int64_t keep = d->capacity / 2 > 0 ? d->capacity / 2 : 1;
    decoder_reset(d);
    if (n > d->capacity) { /* use only the last tokens of a prompt that is too long */
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
