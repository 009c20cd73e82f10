/* grid_case.h -- every combination of what a grid of ranks must not change: its axes, schedule, how
 * layers are split among stages, sequence parallelism, ZeRO stage, recompute, accumulation; on
 * models, dtypes, clipping, optimizers, masked targets, keys. */
#ifndef TESTS_SUPPORT_GRID_GRID_CASE_H
#define TESTS_SUPPORT_GRID_GRID_CASE_H

#include "configs/config.h"
#include "model/param/param.h"

#include <stddef.h>

/* What is chosen. Of each, 0 is the simplest, to which a failing case is shrunk. */
typedef enum {
    GRID_DATA,     /* d: d + 1 data-parallel ranks */
    GRID_TENSOR,   /* t: t + 1 tensor-parallel ranks */
    GRID_PIPELINE, /* p: p + 1 stages */
    GRID_SCHEDULE, /* 1f1b, gpipe, interleaved in 2 chunks, in 3 */
    GRID_SPLIT,    /* of layers among stages: best, parameters, uniform, by hand and uneven */
    GRID_SEQUENCE, /* sequence parallelism */
    GRID_STAGE,    /* of ZeRO */
    GRID_MICROS,   /* m: m + 1 micro-batches a step */
    GRID_BLOCKS,   /* b: b + 1 blocks */
    GRID_MODEL,    /* a row of grid_models.c */
    GRID_RECOMPUTE,
    GRID_DTYPE, /* f64, f32, bf16, f16, bf16 without masters */
    GRID_CLIP,
    GRID_OPTIMIZER, /* AdamW with eps 1e-2, SGD with momentum, AdamW with eps 1e-8 */
    GRID_MASKED,    /* targets left out, of some micro-batches all */
    GRID_KEYS,      /* buckets and thresholds of ZeRO: a row of `keys` */
    GRID_CHOICES
} GridChoice;
typedef struct {
    int of[GRID_CHOICES];
} GridCase;

/* The rate of AdamW; weights of tensors that are smaller are compared as if they were of its size.
 */
#define GRID_RATE 0.001

/* A model without its number of blocks, as part of a config. */
typedef struct {
    const char *name, *json;
    int seq_length;
    int tensor; /* bit t: t + 1 tensor-parallel ranks may share it */
} GridModel;
enum { GRID_MODELS = 20 };
extern const GridModel grid_model[GRID_MODELS];

/* How many values of a choice are drawn, and how many combinations there are. */
int grid_choice_values(GridChoice choice);
int64_t grid_cases(void);
/* Case `i` of all in an order that the seed shuffles; its nearest legal one. */
GridCase grid_case_drawn(uint64_t seed, int64_t i);
/* The nearest case that a config may ask for, on at most GRID_MOST_RANKS ranks (16; the variable of
 * that name): fewer tensor-parallel ranks where heads are too few, more blocks where stages are too
 * many, and so on. A legal case is left as it is. */
GridCase grid_case_legal(GridCase c);
/* The nearest case that TEST_DEVICE can run: no device but the CPU has f64, or targets where the
 * test can mask them; an emulated one has time for 8 ranks and few blocks; of several devices
 * each rank takes one. */
GridCase grid_case_here(GridCase c);

/* Ranks in all. */
int grid_case_ranks(const GridCase *c);
DType grid_case_dtype(const GridCase *c);
/* Whether noise in gradients that are zero in theory becomes updates, or in all of them other
 * roundings of weights: weights are not compared, nor gradients after the first step. */
bool grid_case_noisy(const GridCase *c);
/* The same training on one rank without recompute, in one micro-batch, in this dtype. */
GridCase grid_case_single(const GridCase *c, int dtype);
/* Sequences of a step, the same for a case and its single rank. */
int64_t grid_case_batch(const GridCase *c);
/* The config of its ranks; to be freed by config_free. */
Config *grid_case_config(const GridCase *c, int64_t batch);
/* "dp 2 x tp 2, ZeRO 2, 3 micro-batches, 2 blocks of llama, ..." */
const char *grid_case_text(const GridCase *c, char *out, size_t n);
/* Its numbers, "1,0,2,...", and back: false where that is none. */
const char *grid_case_numbers(const GridCase *c, char *out, size_t n);
bool grid_case_read(GridCase *c, const char *numbers);

#endif
