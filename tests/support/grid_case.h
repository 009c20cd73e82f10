/* grid_case.h -- every combination of what a grid of data-parallel ranks must not change: model,
 * ranks, ZeRO stage, recompute, accumulation, dtype, clipping, optimizer, masked targets, keys. */
#ifndef TESTS_SUPPORT_GRID_CASE_H
#define TESTS_SUPPORT_GRID_CASE_H

#include "configs/config.h"

#include <stddef.h>

/* What is chosen. Of each, 0 is the simplest, to which a failing case is shrunk. */
typedef enum {
    GRID_RANKS, /* r: r + 1 data-parallel ranks */
    GRID_STAGE,
    GRID_MICROS, /* m: m + 1 micro-batches a step */
    GRID_MODEL,  /* a row of `models` */
    GRID_RECOMPUTE,
    GRID_DTYPE, /* f64, f32, bf16, f16, bf16 without masters */
    GRID_CLIP,
    GRID_OPTIMIZER, /* AdamW with eps 1e-4, SGD with momentum, AdamW with eps 1e-8 */
    GRID_MASKED,    /* targets left out, of some micro-batches all */
    GRID_KEYS,      /* buckets and thresholds of ZeRO: a row of `keys` */
    GRID_CHOICES
} GridChoice;
typedef struct {
    int of[GRID_CHOICES];
} GridCase;

/* How many values a choice has, and how many cases there are. */
int grid_choice_values(GridChoice choice);
int64_t grid_cases(void);
GridCase grid_case(int64_t index);
/* Case `i` of all in an order that the seed shuffles. */
GridCase grid_case_drawn(uint64_t seed, int64_t i);
/* The nearest case that TEST_DEVICE can run: no device but the CPU has f64, or targets where the
 * test can mask them. */
GridCase grid_case_here(GridCase c);

int grid_case_ranks(const GridCase *c);
DType grid_case_dtype(const GridCase *c);
/* Whether noise in gradients that are zero in theory becomes updates, or in all of them other
 * roundings of weights: weights are not compared, nor gradients after the first step. */
bool grid_case_noisy(const GridCase *c);
/* The same training on one rank without recompute, in one micro-batch, in this dtype. */
GridCase grid_case_single(const GridCase *c, int dtype);
/* Sequences of a step, the same for a case and its single rank. */
int64_t grid_case_batch(const GridCase *c);
/* The config of its ranks; to be freed by grid_config_free. */
Config *grid_case_config(const GridCase *c, int64_t batch);
void grid_config_free(Config *config);
/* Of the cases with a fixed seed every so many: TEST_EVERY, or 12 with TEST_SAMPLE, or all. */
int64_t grid_case_every(void);
/* "4 ranks, ZeRO 2, 3 micro-batches, llama, ..." */
const char *grid_case_text(const GridCase *c, char *out, size_t n);

#endif
