/* golden.h -- reads the recorded reference values in tests/golden: tensors by name, as doubles, and
 * the config of their model. */
#ifndef TESTS_SUPPORT_MODEL_GOLDEN_H
#define TESTS_SUPPORT_MODEL_GOLDEN_H

#include "configs/config.h"
#include "model/core/tensor.h"

typedef struct Golden Golden;

/* Reads tests/golden/NAME.safetensors, relative to the working directory. Prints an error message
 * and ends the program on failure. */
Golden *golden_open(const char *name);
void golden_close(Golden *golden);

/* Returns the tensor called `name`, which must exist, as dense F64 in host memory, whatever type is
 * stored. It is valid until golden_close. Weights: "block.0.attn.q.weight"; gradients: the same
 * with ".grad"; "logits" (B, T, V); "loss" (1); "train.losses" (20), "train.norms" (20); "tokens"
 * (20, B, T + 1). */
Tensor golden_tensor(const Golden *golden, const char *name);
/* Returns the recorded model's config, in f64 or f32; the caller frees it. */
const Config *golden_config(const Golden *golden, bool f64);

#endif
