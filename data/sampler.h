/* sampler.h -- maps sample number i to a window of tokens: a pure function of (seed, epoch, i), so
 * no shuffle order is stored.
 *
 * Window w of a token sequence is tokens wT ... wT + T inclusive: T inputs, and T targets that are
 * shifted by one. Samples are numbered over the whole run; epoch = sample / windows, and each epoch
 * visits every window once in its own order. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t n_windows;
    uint64_t seed;
    bool shuffle; /* false: windows are read in order */
} Sampler;

/* Returns the number of complete windows of T + 1 tokens. Consecutive windows overlap by one token,
 * so it is floor((n_tokens - 1) / T), or 0 if there are fewer than T + 1 tokens. */
int64_t sampler_windows(int64_t n_tokens, int64_t T);
/* Returns the window of a sample (>= 0); n_windows must be at least 1. */
int64_t sampler_window(const Sampler *s, int64_t sample);
/* Returns where the epoch's permutation of [0, n) maps i: a bijection for each (seed, epoch),
 * computed in O(1). */
int64_t sampler_permute(uint64_t seed, uint64_t epoch, int64_t n, int64_t i);
/* Returns the global sample index of one row of a micro-batch: from the samples consumed before the
 * step, the micro-batch's number, the rank on the data axis, and the row (of B). */
int64_t sampler_index(int64_t samples, int64_t micro, int64_t dp_rank, int64_t dp_size, int64_t B,
                      int64_t row);

#endif
