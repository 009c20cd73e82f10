/* plain_sampling.h -- a token drawn from logits by the plainest loops, for tests of generation. */
#ifndef TESTS_SUPPORT_MODEL_PLAIN_SAMPLING_H
#define TESTS_SUPPORT_MODEL_PLAIN_SAMPLING_H

#include "model/generate.h"

/* The token that sample_token promises for these logits (V) at this index. Tokens are taken by
 * falling probability, of equal ones the smaller id first: the first top_k of them, and of these
 * the fewest whose share reaches top_p. The index's uniform number, times their mass, falls into
 * one. */
int32_t plain_sample(const Sampling *sampling, const double *logits, int64_t V, uint64_t index);

#endif
