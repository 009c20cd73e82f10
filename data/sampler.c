/* sampler.c -- a shuffle without stored state; see sampler.h.
 *
 * A Feistel network over 2h bits is a bijection for any round function (Luby, Rackoff 1988); the
 * round function here is Philox. A result outside [0, n) is passed through the network again until
 * it is inside ("cycle walking", Black, Rogaway 2002), which gives a bijection of [0, n). The
 * network's domain has fewer than 4n values, so the expected number of passes is below four. */
#include "data/sampler.h"

#include "model/core/check.h"
#include "model/core/rng.h"

enum { ROUNDS = 8 };

int64_t sampler_windows(int64_t n_tokens, int64_t T)
{
    return n_tokens < 1 ? 0 : (n_tokens - 1) / T;
}

/* Computes a permutation of [0, 4^half_bits). Each round changes one half by a function of the
 * other half, which can be undone whatever that function is. */
static uint64_t feistel(uint64_t seed, uint64_t epoch, int half_bits, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t ctr[4] = {(uint32_t)right, round, (uint32_t)epoch, (uint32_t)(epoch >> 32)};
        philox4x32(ctr, key, out);
        uint64_t next = left ^ (out[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t sampler_permute(uint64_t seed, uint64_t epoch, int64_t n, int64_t i)
{
    CHECK(i >= 0 && i < n, "%lld of %lld", (long long)i, (long long)n);
    /* Find the smallest domain 4^half_bits that contains n values. Half of the bits are used as a
     * 32-bit word of Philox's counter. */
    int half_bits = 1;
    while (half_bits < 31 && (INT64_C(1) << 2 * half_bits) < n)
        half_bits++;
    CHECK((INT64_C(1) << 2 * half_bits) >= n, "%lld windows are too many to shuffle", (long long)n);
    /* This loop ends for every i: applying the permutation repeatedly to a value below n returns to
     * a value below n, at the latest to i itself. */
    uint64_t value = (uint64_t)i;
    do {
        value = feistel(seed, epoch, half_bits, value);
    } while (value >= (uint64_t)n);
    return (int64_t)value;
}

int64_t sampler_window(const Sampler *s, int64_t sample)
{
    CHECK(s->n_windows >= 1 && sample >= 0, "sample %lld of %lld windows", (long long)sample,
          (long long)s->n_windows);
    int64_t epoch = sample / s->n_windows, i = sample % s->n_windows;
    return s->shuffle ? sampler_permute(s->seed, (uint64_t)epoch, s->n_windows, i) : i;
}

int64_t sampler_index(int64_t samples, int64_t micro, int64_t dp_rank, int64_t dp_size, int64_t B,
                      int64_t row)
{
    return samples + (micro * dp_size + dp_rank) * B + row;
}
