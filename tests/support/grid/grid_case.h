/* grid_case.h -- all combinations of choices under which a grid of ranks must train like a single
 * rank: axes, schedule, the split of layers among stages, sequence parallelism, ZeRO stage,
 * recompute, accumulation, models, dtypes, clipping, optimizers, masked targets and keys. */
#ifndef TESTS_SUPPORT_GRID_GRID_CASE_H
#define TESTS_SUPPORT_GRID_GRID_CASE_H

#include "configs/config.h"
#include "model/param/param.h"

#include <stddef.h>

/* The choices. Value 0 of each is the simplest; failing cases are simplified towards it. */
typedef enum {
    GRID_DATA,     /* d: d + 1 data-parallel ranks */
    GRID_TENSOR,   /* t: t + 1 tensor-parallel ranks */
    GRID_PIPELINE, /* p: p + 1 stages */
    GRID_SCHEDULE, /* 1f1b, gpipe, interleaved in 2 chunks, in 3 */
    GRID_SPLIT, /* split of layers among stages: best, parameters, uniform, uneven by pipeline_split
                 */
    GRID_SEQUENCE, /* sequence parallelism */
    GRID_STAGE,    /* ZeRO stage */
    GRID_MICROS,   /* m: m + 1 micro-batches a step */
    GRID_BLOCKS,   /* b: b + 1 blocks */
    GRID_MODEL,    /* a row of grid_models.c */
    GRID_RECOMPUTE,
    GRID_DTYPE, /* f64, f32, bf16, f16, bf16 without masters, the same with bf16 moments,
                 * bf16 with bf16 moments */
    GRID_CLIP,
    GRID_OPTIMIZER, /* AdamW with eps 1e-2, SGD with momentum, AdamW with eps 1e-8 */
    GRID_MASKED,    /* some targets are masked, in some micro-batches all */
    GRID_KEYS,      /* buckets and thresholds of ZeRO: a row of `keys` */
    GRID_SHARD,     /* shard groups of all data-parallel ranks, of half of them, of a quarter */
    GRID_OFFLOAD,   /* the optimizer's states on the host: none, all, half of them */
    GRID_CHOICES
} GridChoice;
typedef struct {
    int of[GRID_CHOICES];
} GridCase;

/* The learning rate of AdamW. Deviations of weights smaller than this are compared with bounds for
 * weights of this size. */
#define GRID_RATE 0.001

/* A model without its number of blocks, as part of a config. */
typedef struct {
    const char *name, *json;
    int seq_length;
    int tensor; /* bit t: t + 1 tensor-parallel ranks can divide it */
} GridModel;
/* From GRID_BIASES on, the models have biases in some of their linear layers only, or rotations
 * that are scaled. */
enum { GRID_BIASES = 20, GRID_MODELS = 25 };
extern const GridModel grid_model[GRID_MODELS];

/* Return the number of values of a choice, and the number of combinations. */
int grid_choice_values(GridChoice choice);
int64_t grid_cases(void);
/* Returns the legal case nearest to combination `i`, in an order shuffled by the seed. */
GridCase grid_case_drawn(uint64_t seed, int64_t i);
/* Returns the nearest case that a config may ask for, on at most GRID_MOST_RANKS ranks (the
 * environment variable; default 16): fewer tensor-parallel ranks if there are too few heads, more
 * blocks if there are too many stages, and so on. A legal case is unchanged. */
GridCase grid_case_legal(GridCase c);
/* Returns the nearest case that TEST_DEVICE can run. Only the CPU has f64, and only on the CPU can
 * the test mask targets. Emulated devices are slow and get at most 8 ranks and few blocks; if there
 * are several devices, each rank uses one. */
GridCase grid_case_here(GridCase c);

/* Returns the number of all ranks. */
int grid_case_ranks(const GridCase *c);
DType grid_case_dtype(const GridCase *c);
/* Returns whether rounding errors become large updates: because the optimizer amplifies gradients
 * that are zero in theory, or because weights are rounded stochastically. Then weights, and
 * gradients after the first step, are not compared. */
bool grid_case_noisy(const GridCase *c);
/* Returns the same training on one rank, without recompute, in one micro-batch and in this dtype.
 */
GridCase grid_case_single(const GridCase *c, int dtype);
/* Returns the number of sequences per step, the same for a case and its single rank. */
int64_t grid_case_batch(const GridCase *c);
/* Returns the config of the case's ranks; free it with config_free. */
Config *grid_case_config(const GridCase *c, int64_t batch);
/* Describes the case: "dp 2 x tp 2, ZeRO 2, 3 micro-batches, 2 blocks of llama, ..." */
const char *grid_case_text(const GridCase *c, char *out, size_t n);
/* Write a case as numbers, "1,0,2,...", and read it back; reading returns false if the text is not
 * a case. */
const char *grid_case_numbers(const GridCase *c, char *out, size_t n);
bool grid_case_read(GridCase *c, const char *numbers);

#endif
