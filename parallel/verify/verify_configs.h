/* verify_configs.h -- the configs that `./train verify` compares, made from the user's. */
#ifndef PARALLEL_VERIFY_VERIFY_CONFIGS_H
#define PARALLEL_VERIFY_VERIFY_CONFIGS_H

#include "parallel/verify/verify.h"

/* The configs that are compared: the grid; a single rank with the same sequences in the same order;
 * and for 16 bits, a single rank in f32. */
typedef struct {
    const Config *given, *grid, *single, *exact;
} VerifyConfigs;

/* Loads the configs. Returns false after printing error messages and setting *code if one is
 * refused. Call verify_configs_free in any case. */
bool verify_configs_load(VerifyConfigs *configs, const VerifyOptions *options, int *code);
void verify_configs_free(VerifyConfigs *configs);

#endif
