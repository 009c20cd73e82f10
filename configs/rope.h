/* rope.h -- the frequencies of rotary positions, from the keys of a model: for the table that the
 * model reads, and for files of other programs. */
#ifndef CONFIGS_ROPE_H
#define CONFIGS_ROPE_H

#include "configs/config_types.h"

/* Returns the frequency of pair `pair` of a head of `head_dim` numbers, in radians per token:
 * theta^(-2 pair / head_dim), slowed down as `scaling` says. */
double rope_frequency(const RopeScaling *scaling, double theta, int64_t head_dim, int64_t pair);

#endif
