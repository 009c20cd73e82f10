/* golden.h -- the recorded values of tests/golden: tensors by name, as doubles, and the config of
 * their model. */
#ifndef TESTS_SUPPORT_MODEL_GOLDEN_H
#define TESTS_SUPPORT_MODEL_GOLDEN_H

#include "configs/config.h"
#include "model/core/tensor.h"

typedef struct Golden Golden;

/* Reads tests/golden/NAME.safetensors, relative to the working directory. Ends the program with a
 * sentence on failure. */
Golden *golden_open(const char *name);
void golden_close(Golden *golden);

/* The tensor called `name` (it must exist) as dense F64 in host memory, whatever it is stored as;
 * lives until close. Weights: "block.0.attn.q.weight"; gradients: the same with ".grad"; "logits"
 * (B, T, V); "loss" (1); "train.losses" (20), "train.norms" (20); "tokens" (20, B, T + 1). */
Tensor golden_tensor(const Golden *golden, const char *name);
/* The recorded model's config, in f64 or f32; the caller frees it. */
const Config *golden_config(const Golden *golden, bool f64);

#endif
