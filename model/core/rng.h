/* rng.h -- Philox4x32-10, a counter-based generator: random numbers are a pure function of key and
 * counter, without any state.
 *
 * Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A value
 * depends only on the seed, a stream (the hash of a name) and a global index, so every rank, thread
 * and device can compute its own part. */
#ifndef MODEL_CORE_RNG_H
#define MODEL_CORE_RNG_H

#include "model/core/host_device.h"

#include <stdint.h>

/* out = Philox4x32-10(ctr, key): four independent 32-bit words. */
static HOST_DEVICE inline void philox4x32(const uint32_t ctr[4], const uint32_t key[2],
                                          uint32_t out[4])
{
    /* Each round multiplies two words, which spreads every bit over many others, and swaps the
     * halves. The authors found that ten rounds pass every test with a safety margin. Both
     * multiplications are 32 x 32 -> 64 bits, which CPUs and GPUs have in hardware. */
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u; /* golden ratio and sqrt(3) - 1: each round gets another key */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Returns 64 random bits for (seed, stream, index). */
static HOST_DEVICE inline uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t ctr[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                       (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    philox4x32(ctr, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}

/* Returns a uniform number in [0, 1) with 53 random bits for (seed, stream, index). */
static HOST_DEVICE inline double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    /* A double holds 53 bits, so the product is exact and never rounds up to 1. */
    return (double)(rng_bits(seed, stream, index) >> 11) * 0x1p-53;
}

/* Returns the FNV-1a hash of a name, which selects the stream of its random numbers. */
static HOST_DEVICE inline uint64_t rng_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 0x100000001b3u;
    return h;
}

#endif
