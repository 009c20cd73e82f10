/* loader.c -- reads micro-batches ahead in a thread; see loader.h.
 *
 * There are hold + 1 batch buffers, used as a ring: the caller may still read `hold` of them, and
 * the thread fills the next one. There is one request at a time, {samples, micro} for the buffer
 * `next`. While its state is REQUEST_WANTED, only the thread accesses that buffer and the request,
 * without holding the lock. In every other state only the caller accesses them, holding the
 * lock. */
#include "data/loader.h"

#include "data/sampler.h"
#include "model/core/check.h"
#include "model/core/pool.h"
#include "model/core/rng.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANDOM_TRAIN_WINDOWS = 1 << 30, /* number of training windows if tokens are random */
    RANDOM_VAL_WINDOWS = 64,
};

typedef enum {
    REQUEST_NONE,   /* nothing is requested: at the start, and after an error */
    REQUEST_WANTED, /* the thread must fill the buffer */
    REQUEST_DONE,   /* the buffer is filled but has not been returned to the caller */
} RequestState;

/* A batch, and whether reading it succeeded. */
typedef struct {
    Batch batch;
    bool good;
    char error[512]; /* the error message, if reading failed */
} BatchBuffer;

struct Loader {
    LoaderOptions options;
    const TokenSet *set;        /* tokens of the split; NULL: random tokens */
    const int32_t *token_bytes; /* (n_token_bytes) bytes of text of each id; NULL: no tokenizer */
    int64_t n_token_bytes;
    Sampler sampler;
    int32_t *memory;     /* tokens, targets and positions of all batches */
    int32_t *window;     /* (T + 1) the window being read */
    BatchBuffer *buffer; /* (n_buffers) the ring of batches */
    int n_buffers, next;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when `state` or `stop` changes */
    RequestState state;
    bool stop;
    int64_t samples, micro; /* the request, for buffer `next` */
};

/* Reads one window of T + 1 tokens into l->window. */
static bool read_window(Loader *l, int64_t window, char *err, size_t n)
{
    int64_t T = l->options.T, first = window * T;
    if (l->set)
        return token_set_read(l->set, first, T + 1, l->options.vocab_size, l->window, err, n);
    uint64_t stream = rng_stream(l->options.split == SPLIT_TRAIN ? "random train" : "random val");
    for (int64_t t = 0; t <= T; t++)
        l->window[t] = (int32_t)(rng_bits(l->options.seed, stream, (uint64_t)(first + t)) %
                                 (uint64_t)l->options.vocab_size);
    return true;
}

/* Returns the number of bytes of text that these ids encode. Ids beyond the tokenizer's vocabulary,
 * which occur if the vocabulary is padded, encode none. */
static int64_t bytes_of(const Loader *l, const int32_t *ids, int64_t count)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += ids[i] < l->n_token_bytes ? l->token_bytes[ids[i]] : 0;
    return bytes;
}

/* Returns the number of windows in one evaluation. It does not depend on the number of ranks. */
static int64_t validation_windows(const Loader *l)
{
    int64_t all = l->sampler.n_windows, most = l->options.max_windows;
    return most > 0 && most < all ? most : all;
}

/* Reads a batch, row by row. Rows after the end of the validation data do not count: their targets
 * are -1, which the loss skips, and their tokens are 0, which is always a valid id. */
static void fill_batch(Loader *l, BatchBuffer *buffer, int64_t samples, int64_t micro)
{
    const LoaderOptions *o = &l->options;
    Batch *b = &buffer->batch;
    b->n_targets = b->target_bytes = 0;
    buffer->good = true;
    for (int64_t row = 0; buffer->good && row < o->B; row++) {
        int32_t *tokens = tensor_row(b->tokens, row), *targets = tensor_row(b->targets, row);
        int64_t sample = sampler_index(samples, micro, o->dp_rank, o->dp_size, o->B, row);
        if (o->split == SPLIT_VAL && sample >= validation_windows(l)) {
            memset(tokens, 0, (size_t)o->T * sizeof *tokens);
            memset(targets, 0xFF, (size_t)o->T * sizeof *targets); /* sets every target to -1 */
            continue;
        }
        buffer->good = read_window(l, sampler_window(&l->sampler, sample), buffer->error,
                                   sizeof buffer->error);
        if (!buffer->good) break;
        memcpy(tokens, l->window, (size_t)o->T * sizeof *tokens);
        memcpy(targets, l->window + 1, (size_t)o->T * sizeof *targets);
        b->n_targets += o->T;
        b->target_bytes += bytes_of(l, targets, o->T);
    }
}

/* The thread's main function: fills requested buffers until it is stopped. */
static void *prefetch(void *argument)
{
    Loader *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->state != REQUEST_WANTED) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        /* The lock is released here, because reading from a disk may take long, and loader_free
         * must be able to set `stop` during this time. */
        BatchBuffer *buffer = &l->buffer[l->next];
        int64_t samples = l->samples, micro = l->micro;
        pthread_mutex_unlock(&l->lock);
        fill_batch(l, buffer, samples, micro);
        pthread_mutex_lock(&l->lock);
        l->state = REQUEST_DONE;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Requests a batch for buffer `next`. The caller holds the lock. */
static void request(Loader *l, int64_t samples, int64_t micro)
{
    l->samples = samples;
    l->micro = micro;
    l->state = REQUEST_WANTED;
    pthread_cond_broadcast(&l->changed);
}

/* Waits until the thread has no request left. The caller holds the lock. */
static void wait_for_request(Loader *l)
{
    while (l->state == REQUEST_WANTED)
        pthread_cond_wait(&l->changed, &l->lock);
}

bool loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n)
{
    const LoaderOptions *o = &l->options;
    pthread_mutex_lock(&l->lock);
    wait_for_request(l);
    /* If this is not the batch that was read ahead (after a resume, or when an evaluation starts
     * again), drop that batch and read the requested one into its buffer. */
    if (l->state != REQUEST_DONE || l->samples != samples || l->micro != micro) {
        request(l, samples, micro);
        wait_for_request(l);
    }
    BatchBuffer *buffer = &l->buffer[l->next];
    bool good = buffer->good;
    *out = buffer->batch;
    if (good) {
        bool last = micro + 1 >= o->micros;
        /* The next buffer in the ring holds the oldest batch, which was returned `hold` calls
         * ago. */
        l->next = (l->next + 1) % l->n_buffers;
        request(l, last ? samples + (micro + 1) * o->dp_size * o->B : samples,
                last ? 0 : micro + 1);
    } else {
        snprintf(err, n, "%s", buffer->error);
        l->state = REQUEST_NONE; /* if the same batch is requested again, try to read it again */
    }
    pthread_mutex_unlock(&l->lock);
    return good;
}

/* Allocates all memory at once. Positions are the same in every batch, so all buffers share one
 * tensor of positions. */
static void lay_out(Loader *l)
{
    int64_t B = l->options.B, T = l->options.T, count = B * T;
    l->memory = must_calloc((size_t)(count * (2 * l->n_buffers + 1)), sizeof *l->memory);
    l->window = must_alloc((size_t)(T + 1) * sizeof *l->window);
    int32_t *positions = l->memory + count * 2 * l->n_buffers;
    for (int64_t i = 0; i < count; i++)
        positions[i] = (int32_t)(i % T);
    for (int i = 0; i < l->n_buffers; i++) {
        l->buffer[i].batch.tokens = tensor_2d(l->memory + count * 2 * i, I32, B, T);
        l->buffer[i].batch.targets = tensor_2d(l->memory + count * (2 * i + 1), I32, B, T);
        l->buffer[i].batch.positions = tensor_1d(positions, I32, count);
    }
}

static void start_thread(Loader *l)
{
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    thread_start(&l->thread, prefetch, l, "the loader's thread");
}

/* Returns the number of windows in the requested split. For random tokens it is a large
 * constant. */
static int64_t count_windows(const DataSet *data, const TokenSet *set, const LoaderOptions *o)
{
    bool train = o->split == SPLIT_TRAIN;
    if (data->random) return train ? RANDOM_TRAIN_WINDOWS : RANDOM_VAL_WINDOWS;
    return sampler_windows(set->n_tokens, o->T);
}

bool loader_create(Loader **out, const DataSet *data, const LoaderOptions *options, char *err,
                   size_t n)
{
    const LoaderOptions *o = options;
    CHECK(o->B > 0 && o->T > 0 && o->vocab_size > 0 && o->micros > 0 && o->dp_size > 0 &&
              o->dp_rank >= 0 && o->dp_rank < o->dp_size && o->hold >= 0,
          "B %lld, T %lld, vocabulary %lld, %lld micro-batches, rank %lld of %lld, hold %d",
          (long long)o->B, (long long)o->T, (long long)o->vocab_size, (long long)o->micros,
          (long long)o->dp_rank, (long long)o->dp_size, o->hold);
    const TokenSet *set = o->tokens                 ? o->tokens
                          : o->split == SPLIT_TRAIN ? &data->train
                                                    : &data->val;
    int64_t windows = count_windows(data, set, o);
    *out = NULL;
    if (windows < 1)
        return error_set(
            err, n,
            "the %s data has %lld tokens, fewer than the %lld of one window (data.seq_length + 1)",
            o->split == SPLIT_TRAIN ? "training" : "validation", (long long)set->n_tokens,
            (long long)o->T + 1);
    Loader *l = must_calloc(1, sizeof *l);
    l->options = *o;
    l->set = data->random ? NULL : set;
    if (data->tokenizer) {
        l->token_bytes = tokenizer_token_bytes(data->tokenizer);
        l->n_token_bytes = tokenizer_vocab_size(data->tokenizer);
    }
    /* Validation windows are read in order, so that the validation loss does not depend on the
     * seed. */
    bool shuffle = o->shuffle && o->split == SPLIT_TRAIN && !data->random;
    l->sampler = (Sampler){.n_windows = windows, .seed = o->seed, .shuffle = shuffle};
    /* One more buffer than the caller may still be reading, so that the thread can prepare the next
     * batch in it. */
    l->n_buffers = (o->hold > 0 ? o->hold : 1) + 1;
    l->buffer = must_calloc((size_t)l->n_buffers, sizeof *l->buffer);
    lay_out(l);
    start_thread(l);
    *out = l;
    return true;
}

int64_t loader_windows(const Loader *l)
{
    return l->sampler.n_windows;
}

int64_t loader_dropped_tokens(const Loader *l)
{
    return l->set ? (l->set->n_tokens - 1) % l->options.T : 0;
}

int64_t loader_batches(const Loader *l)
{
    int64_t rows = l->options.B * l->options.dp_size;
    return (validation_windows(l) + rows - 1) / rows;
}

int64_t loader_micro_batches(const Loader *l, int64_t *all)
{
    int64_t rows = l->options.B;
    *all = (l->sampler.n_windows + rows - 1) / rows;
    return (validation_windows(l) + rows - 1) / rows;
}

void loader_free(Loader *l)
{
    if (l == NULL) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->buffer);
    free(l->memory);
    free(l->window);
    free(l);
}
