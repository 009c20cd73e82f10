/* grid_world.h -- grids of ranks, and small models that every one of these grids can cut: configs
 * for tests of what a grid saves and sends. */
#ifndef TESTS_SUPPORT_GRID_GRID_WORLD_H
#define TESTS_SUPPORT_GRID_GRID_WORLD_H

#include "configs/config.h"

/* A grid, and how its ranks train: chunks of a stage, ZeRO's stage, micro-batches, writers. */
typedef struct {
    int pp, dp, tp;
    bool sequence_parallel;
    int chunks, stage, micros, writers;
} GridWorld;

/* What all worlds of a comparison train. Models: GPT-2, tied, vocabulary 127; Llama, untied, with
 * two heads of keys and values; one such head, tied, with QK-norm. Types: f64, bf16, f16, bf16
 * without masters. */
enum { GRID_WORLD_MODELS = 3, GRID_WORLD_LAYERS = 5, GRID_WORLD_TOKENS = 12 };
typedef struct {
    int model, dtype;
} GridModel;
DType grid_world_dtype(const GridModel *what);

int grid_world_ranks(const GridWorld *world);
/* Whether the ranks can share or cut the heads of keys and values. */
bool grid_world_fits(const GridWorld *world, const GridModel *what);
/* A step has `batch` sequences of GRID_WORLD_TOKENS, on TEST_DEVICE where that has the type. The
 * caller frees it with config_free. */
Config *grid_world_config(const GridWorld *world, const GridModel *what, int64_t batch);

#endif
