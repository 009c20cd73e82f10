/* sampler.h -- which window is sample number i: a pure function of (seed, epoch, i), with nothing
 * stored.
 *
 * Window w of a run of tokens is tokens wT ... wT + T inclusive: T inputs and, one further, T
 * targets. Samples are counted over the whole run; epoch = sample / windows, and each epoch visits
 * every window once in an order of its own. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t n_windows;
    uint64_t seed;
    bool shuffle; /* false: consecutive windows */
} Sampler;

/* Complete windows of T + 1 tokens, overlapping by one: floor((n_tokens - 1) / T), 0 for fewer than
 * T + 1 tokens. */
int64_t sampler_windows(int64_t n_tokens, int64_t T);
/* The window of a sample (>= 0); needs n_windows >= 1. */
int64_t sampler_window(const Sampler *s, int64_t sample);
/* The permutation of [0, n) that it uses: a bijection for each (seed, epoch), computed in O(1). */
int64_t sampler_permute(uint64_t seed, uint64_t epoch, int64_t n, int64_t i);
/* Global sample index of a row: samples done before the step, micro-batch, rank on the data axis,
 * row of B. */
int64_t sampler_index(int64_t samples, int64_t micro, int64_t dp_rank, int64_t dp_size, int64_t B,
                      int64_t row);

#endif
