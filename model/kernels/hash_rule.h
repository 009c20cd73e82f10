/* hash_rule.h -- the arithmetic of op_hash, shared by all backends: how a word of 64 bits is mixed
 * with its index. The hash is a sum of such numbers modulo 2^64, so it does not depend on the order
 * in which the words are read. */
#ifndef MODEL_KERNELS_HASH_RULE_H
#define MODEL_KERNELS_HASH_RULE_H

#include "model/core/host_device.h"

#include <stdint.h>

/* Returns the number that a word adds to the hash. For a fixed index it is a bijection of the word,
 * so a single changed word always changes the sum: every step is a bijection (exclusive or with a
 * constant or with higher bits, product with an odd number). The index is multiplied, so that equal
 * words at different positions, such as zeros, add unrelated numbers. */
static HOST_DEVICE inline uint64_t hash_word(uint64_t index, uint64_t word)
{
    uint64_t x = word ^ ((index + 1) * 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

#endif
