/* rounding_rule.h -- stochastic rounding of f32 to bf16, once for every backend: the random bits of
 * an element, and the rule that uses them.
 *
 * Zamirai, Zhang, Aberger, De Sa, "Revisiting BFloat16 Training", arXiv:2010.06192, and Ozkara, Yu,
 * Park, "Stochastic Rounding for LLM Training", arXiv:2502.20566: weights in bf16 without an f32
 * copy learn when each update is rounded up with the probability that makes the mean right; rounded
 * to nearest, an update below half a step is lost, every time.
 *
 * Elements 8b .. 8b + 7 of a parameter share the Philox block with key seed and counter (b, 2^31 +
 * update, stream): word w has the 16 bits of element 8b + 2w in its low half, those of 8b + 2w + 1
 * in its high half. op_normal's counters have a second word below 2^31, so that no initial weight
 * shares a block with a rounding. The block number has 32 bits, so a parameter may have at most
 * 2^35 elements (the optimizer checks this); the random bits repeat after 2^31 updates.
 *
 * A .cu file turns these functions, and those of the headers below, into device functions. */
#ifndef MODEL_KERNELS_ROUNDING_RULE_H
#define MODEL_KERNELS_ROUNDING_RULE_H

#include "model/core/rng.h"
#include "model/kernels/segment_rule.h"

#include <string.h>

/* Elements per Philox block, and how many elements of one parameter have blocks of their own. */
enum { ROUNDING_BLOCK = 8 };
#define ROUNDING_ELEMENTS ((int64_t)ROUNDING_BLOCK << 32)

/* The four words of block `block` of a parameter. */
static inline void rounding_words(uint64_t seed, uint64_t stream, int64_t update, int64_t block,
                                  uint32_t word[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t ctr[4] = {(uint32_t)block, 0x80000000u | (uint32_t)update, (uint32_t)stream,
                             (uint32_t)(stream >> 32)};
    philox4x32(ctr, key, word);
}

/* The 16 bits of an element among its block's words. */
static inline uint32_t rounding_bits(const uint32_t word[4], int64_t element)
{
    uint32_t low = element & 2 ? word[1] : word[0], high = element & 2 ? word[3] : word[2];
    return (element & 4 ? high : low) >> (element & 1 ? 16 : 0) & 0xffffu;
}

/* x as bf16: away from zero with the probability that its low 16 bits are of the step between its
 * neighbours, towards zero otherwise, for 16 random bits each as likely as any other. What bf16 can
 * hold stays as it is, infinities and zeros of both signs included; beyond the largest finite
 * number the upper neighbour is infinity; every NaN becomes 0x7fc0, whatever the device made of its
 * payload. */
static inline uint16_t rounding_bf16(float x, uint32_t bits)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)0x7fc0 : (uint16_t)((u + bits) >> 16);
}

#endif
