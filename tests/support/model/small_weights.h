/* small_weights.h -- small models in the terms of other programs, and random weights for them, for
 * tests of the files of those programs. */
#ifndef TESTS_SUPPORT_MODEL_SMALL_WEIGHTS_H
#define TESTS_SUPPORT_MODEL_SMALL_WEIGHTS_H

#include "model/weights/architecture.h"
#include "tests/support/model/memory_source.h"

/* Their vocabulary, positions, layers, width and width of the MLP. */
enum { SMALL_V = 300, SMALL_P = 7, SMALL_L = 2, SMALL_C = 8, SMALL_F = 12 };

/* Returns a GPT-2, or a Llama with fewer kv heads than heads, whose heads are together wider than
 * the model. A test may change any field before it makes weights. */
Architecture small_gpt2(void);
Architecture small_llama(void);
/* Returns a source with random weights for the model, which the caller closes. */
WeightSource *random_weights(const Architecture *model, DType dtype);

#endif
