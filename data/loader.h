/* loader.h -- micro-batches for one rank, read ahead by a thread.
 *
 * A batch is a function of (samples, micro) alone, so resuming is asking for other numbers. The
 * thread prepares the batch that is expected next while the current one is computed on; an
 * unexpected request is served too, only not ahead. Nothing is allocated after loader_create;
 * waiting threads sleep. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "data/dataset.h"
#include "model/core/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Loader Loader;

typedef struct {
    Split split;
    int64_t B, T;       /* rows of a micro-batch, tokens of a row */
    int64_t vocab_size; /* every id must be below */
    uint64_t seed;
    bool shuffle; /* training only: validation is always in order */
    int64_t dp_rank, dp_size;
    int64_t max_windows; /* validation ends after so many windows; 0: with the data */
    int64_t micros; /* micro-batches per step; the next step begins with micros dp B samples more */
    int hold;       /* batches that stay valid: the latest `hold` ones; 0 means 1 */
} LoaderOptions;

/* Host tensors, owned by the loader and valid until `hold` further calls of loader_next. */
typedef struct {
    Tensor tokens;        /* (B, T) i32 */
    Tensor targets;       /* (B, T) i32; -1 in rows past the end of validation */
    Tensor positions;     /* (B*T) i32, 0 ... T-1 in each row */
    int64_t n_targets;    /* targets that are not -1 */
    int64_t target_bytes; /* bytes of text that they stand for; 0 without a tokenizer */
} Batch;

/* False if the split has no complete window: the sentence says how many tokens it has and how many
 * are needed. `data` is borrowed. */
bool loader_create(Loader **out, const DataSet *data, const LoaderOptions *options, char *err,
                   size_t n);
/* Loads micro-batch `micro` of a step; `samples` is the number of samples consumed before that step
 * (see sampler_index). Returns false if the data are damaged (EXIT_DAMAGED); the error message
 * names the file and offset. */
bool loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);
/* Windows of the split: an epoch of training, all of the validation data. Tokens that no window
 * uses (fewer than T + 1). */
int64_t loader_windows(const Loader *l);
int64_t loader_dropped_tokens(const Loader *l);
/* Calls of loader_next by each rank after which validation is through: ceil(windows / (B dp)), of
 * at most max_windows. */
int64_t loader_batches(const Loader *l);
/* Stops the thread and waits for it. NULL is allowed. */
void loader_free(Loader *l);

#endif
