/* plain_sampling.h -- samples a token from logits with simple loops, as a reference for tests of
 * generation. */
#ifndef TESTS_SUPPORT_MODEL_PLAIN_SAMPLING_H
#define TESTS_SUPPORT_MODEL_PLAIN_SAMPLING_H

#include "model/generate.h"

/* Returns the token that sample_token must return for these logits (V) at this index. Tokens are
 * taken by falling probability, equal ones by smaller id: the first top_k of them, and of these the
 * fewest whose share reaches top_p. The random number of `index`, times their total mass, selects
 * one. */
int32_t plain_sample(const Sampling *sampling, const double *logits, int64_t V, uint64_t index);

#endif
