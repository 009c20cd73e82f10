/* loader.h -- loads micro-batches for one rank; a thread reads ahead.
 *
 * A batch depends only on (samples, micro), so a resumed run only has to request the numbers at
 * which it stopped. While the current batch is used in computation, the thread prepares the one
 * that is expected next. Any other batch can be requested as well, but is then read while the
 * caller waits. Nothing is allocated after loader_create, and waiting threads sleep. */
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
    const TokenSet *tokens; /* for SPLIT_VAL, a set of eval.sets; NULL: the split's own tokens */
    int64_t B, T;           /* rows of a micro-batch; tokens per row */
    int64_t vocab_size;     /* every token id must be smaller than this */
    uint64_t seed;
    bool shuffle; /* only for training: validation data are always read in order */
    int64_t dp_rank, dp_size;
    int64_t max_windows; /* validation ends after this many windows; 0: after all data */
    /* Micro-batches per step. The next step starts micros x dp_size x B samples later. */
    int64_t micros;
    int hold; /* how many of the latest batches stay valid; 0 means 1 */
} LoaderOptions;

/* Host tensors owned by the loader. They stay valid until loader_next has been called `hold` more
 * times. */
typedef struct {
    Tensor tokens;        /* (B, T) i32 */
    Tensor targets;       /* (B, T) i32; -1 in rows after the end of the validation data */
    Tensor positions;     /* (B*T) i32, 0 ... T-1 in each row */
    int64_t n_targets;    /* number of targets that are not -1 */
    int64_t target_bytes; /* bytes of text that these targets encode; 0 without a tokenizer */
} Batch;

/* Creates a loader. Returns false if the split has no complete window; the error message says how
 * many tokens it has and how many are needed. `data` is borrowed and must outlive the loader. */
bool loader_create(Loader **out, const DataSet *data, const LoaderOptions *options, char *err,
                   size_t n);
/* Loads micro-batch `micro` of a step. `samples` is the number of samples consumed or skipped
 * before that step (see sampler_index). Returns false if the data are damaged (EXIT_DAMAGED); the
 * error message names the file and offset. */
bool loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);
/* Returns the number of windows in the split: one training epoch, or all validation data. */
int64_t loader_windows(const Loader *l);
/* Returns how many tokens at the end of the split do not belong to a complete window. */
int64_t loader_dropped_tokens(const Loader *l);
/* Returns how often each rank calls loader_next for one evaluation: ceil(windows / (B x dp_size)),
 * where windows is at most max_windows. */
int64_t loader_batches(const Loader *l);
/* Returns how many micro-batches an evaluation reads, over all ranks, and sets *all to the number
 * in the whole validation data. Neither depends on the number of ranks. */
int64_t loader_micro_batches(const Loader *l, int64_t *all);
/* Stops the thread, waits for it and frees the loader. NULL is allowed. */
void loader_free(Loader *l);

#endif
