/* grid_world.h -- grids of ranks and small models that all these grids can divide: configs for
 * tests of checkpoints and of communication. */
#ifndef TESTS_SUPPORT_GRID_GRID_WORLD_H
#define TESTS_SUPPORT_GRID_GRID_WORLD_H

#include "configs/config.h"

/* A grid and how its ranks train: chunks per stage, ZeRO stage, micro-batches, writers. */
typedef struct {
    int pp, dp, tp;
    bool sequence_parallel;
    int chunks, stage, micros, writers;
    int shard;   /* data-parallel ranks of a shard group; 0: all */
    int offload; /* percent of the optimizer's states that lie on the host */
} GridWorld;

/* The models and dtypes of a comparison. Models: GPT-2, tied, vocabulary 127; Llama, untied, with
 * two key/value heads; a model with one key/value head, tied, with QK-norm. Dtypes: f64, bf16, f16,
 * bf16 without master weights. */
enum { GRID_WORLD_MODELS = 3, GRID_WORLD_LAYERS = 5, GRID_WORLD_TOKENS = 12 };
typedef struct {
    int model, dtype;
} GridModel;
DType grid_world_dtype(const GridModel *what);

int grid_world_ranks(const GridWorld *world);
/* Returns whether the ranks can share or divide the key/value heads. */
bool grid_world_fits(const GridWorld *world, const GridModel *what);
/* Returns a config with `batch` sequences of GRID_WORLD_TOKENS per step, on TEST_DEVICE if that has
 * the dtype. The caller frees it with config_free. */
Config *grid_world_config(const GridWorld *world, const GridModel *what, int64_t batch);

#endif
