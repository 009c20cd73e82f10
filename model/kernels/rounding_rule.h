/* rounding_rule.h -- stochastic rounding of f32 to bf16, shared by all backends: how the random
 * bits of an element are drawn, and how they round it. It is used for weights without master copies
 * and for AdamW's averages of squares.
 *
 * Sources: Zamirai, Zhang, Aberger, De Sa, "Revisiting BFloat16 Training", arXiv:2010.06192, and
 * Ozkara, Yu, Park, "Stochastic Rounding for LLM Training", arXiv:2502.20566. Weights in bf16
 * without an f32 copy still learn if each update is rounded up with the probability that makes the
 * expected value exact. With rounding to nearest, every update smaller than half a bf16 step would
 * be lost. The average of squares would freeze for the same reason: with beta2 0.999 an update
 * changes it by a thousandth at most, and half a bf16 step is two to four thousandths.
 *
 * Elements 8b .. 8b + 7 of a parameter share the Philox block with key seed and counter (b, 2^31 +
 * update, stream). Word w holds the 16 bits of element 8b + 2w in its low half and those of element
 * 8b + 2w + 1 in its high half. The counters of op_normal have a second word below 2^31, so no
 * initial weight shares a block with a rounding. The block number has 32 bits, so a parameter may
 * have at most 2^35 elements (the optimizer checks this). The random bits repeat after 2^31
 * updates. */
#ifndef MODEL_KERNELS_ROUNDING_RULE_H
#define MODEL_KERNELS_ROUNDING_RULE_H

#include "model/core/host_device.h"
#include "model/core/rng.h"
#include "model/kernels/segment_rule.h"

#include <string.h>

/* Elements per Philox block, and the largest number of elements of a parameter: beyond it block
 * numbers would repeat. */
enum { ROUNDING_BLOCK = 8 };
#define ROUNDING_ELEMENTS ((int64_t)ROUNDING_BLOCK << 32)

/* Returns the stream of the random bits with which a parameter's average of squares is rounded,
 * given that of its weights. It differs from the streams of all weights, unless the exclusive or of
 * the hashes of two parameter names is exactly this constant, 2^64 divided by the golden ratio. */
static HOST_DEVICE inline uint64_t rounding_square_stream(uint64_t stream)
{
    return stream ^ 0x9e3779b97f4a7c15u;
}

/* Computes the four Philox words of block `block` of a parameter. */
static HOST_DEVICE inline void rounding_words(uint64_t seed, uint64_t stream, int64_t update,
                                              int64_t block, uint32_t word[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t ctr[4] = {(uint32_t)block, 0x80000000u | (uint32_t)update, (uint32_t)stream,
                             (uint32_t)(stream >> 32)};
    philox4x32(ctr, key, word);
}

/* Returns the 16 random bits of an element, given the words of its block. */
static HOST_DEVICE inline uint32_t rounding_bits(const uint32_t word[4], int64_t element)
{
    uint32_t low = element & 2 ? word[1] : word[0], high = element & 2 ? word[3] : word[2];
    return (element & 4 ? high : low) >> (element & 1 ? 16 : 0) & 0xffffu;
}

/* Returns x rounded to bf16 with 16 uniformly random bits. x is rounded away from zero with
 * probability (low 16 bits of x) / 2^16, and towards zero otherwise. Values that bf16 can represent
 * are unchanged, including infinities and both zeros. Above the largest finite number the upper
 * neighbour is infinity. Every NaN becomes 0x7fc0, because devices differ in how they set a NaN's
 * payload. */
static HOST_DEVICE inline uint16_t rounding_bf16(float x, uint32_t bits)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)0x7fc0 : (uint16_t)((u + bits) >> 16);
}

#endif
