/* rope.h -- computes the frequencies of rotary positions (RoPE) from a model's keys, for the
 * model's own table and for files of other programs. */
#ifndef CONFIGS_ROPE_H
#define CONFIGS_ROPE_H

#include "configs/config_types.h"

/* Returns the frequency of the pair of numbers with index `pair` in a head of `head_dim` numbers,
 * in radians per token: theta^(-2 pair / head_dim), slowed down according to `scaling`. */
double rope_frequency(const RopeScaling *scaling, double theta, int64_t head_dim, int64_t pair);

#endif
