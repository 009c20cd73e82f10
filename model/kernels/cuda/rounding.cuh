/* rounding.cuh -- how an update stores weights and averages of squares: rounded to nearest, or
 * stochastically with the random bits of rounding_rule.h. */
#ifndef MODEL_KERNELS_CUDA_ROUNDING_CUH
#define MODEL_KERNELS_CUDA_ROUNDING_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/rounding_rule.h"

/* Rounds weights to nearest even. */
struct ToNearest {
    __device__ __forceinline__ ToNearest(uint64_t, const Segment *, int)
    {
    }
};

/* Rounds weights without masters, and averages of squares in bf16, stochastically. A segment is the
 * part of the updated range that belongs to one parameter. `at` is the segment of the weight that
 * the thread has reached; a thread processes its weights in ascending order. */
struct Stochastic {
    uint64_t seed;
    const Segment *at, *end;
    __device__ __forceinline__ Stochastic(uint64_t seed, const Segment *segment, int n)
        : seed(seed), at(segment), end(segment + n)
    {
    }
};

/* Advances r.at to the segment that contains weight i of the range. */
static __device__ __forceinline__ void segment_find(Stochastic &r, int64_t i)
{
    while (r.at + 1 < r.end && r.at[1].start <= i)
        r.at++;
}

template <bool SQUARES> static __device__ __forceinline__ uint64_t stream_of(const Stochastic &r)
{
    return SQUARES ? rounding_square_stream(r.at->stream) : r.at->stream;
}

/* Returns 16 random bits for each of the weights i .. i + N - 1 of the range, or for their averages
 * of squares; those of weight i are the lowest. One Philox block is enough if all N weights are in
 * one segment, one row and one half of a Philox block. Otherwise, at borders and in rows of odd
 * width, the bits are drawn one weight at a time. */
template <int N, bool SQUARES>
static __device__ __forceinline__ uint64_t noise_of(Stochastic &r, int64_t i, int64_t update)
{
    static_assert(N == 1 || (N == 4 && 2 * N == ROUNDING_BLOCK),
                  "64 bits hold four elements' noise, half a block");
    uint32_t word[4];
    segment_find(r, i);
    int64_t element = segment_element(r.at, i);
    bool whole = element % N == 0 && (r.at + 1 == r.end || r.at[1].start >= i + N) &&
                 segment_element(r.at, i + N - 1) == element + N - 1;
    if (N == 4 && whole) {
        rounding_words(r.seed, stream_of<SQUARES>(r), update, element / ROUNDING_BLOCK, word);
        return element & 4 ? (uint64_t)word[3] << 32 | word[2] : (uint64_t)word[1] << 32 | word[0];
    }
    uint64_t noise = 0;
#pragma unroll 1
    for (int j = 0; j < N; j++) {
        segment_find(r, i + j);
        element = segment_element(r.at, i + j);
        rounding_words(r.seed, stream_of<SQUARES>(r), update, element / ROUNDING_BLOCK, word);
        noise |= (uint64_t)rounding_bits(word, element) << (16 * j);
    }
    return noise;
}

/* Stores p as the N weights from index i of the range on. The type of the last argument determines
 * the rounding. */
template <class T, int N>
static __device__ __forceinline__ void store_weights(T *weight, const float (&p)[N], int64_t i,
                                                     int64_t, ToNearest &)
{
    store(weight + i, p);
}

/* Stores x in elements i .. i + N - 1, rounded with these random bits. */
template <int N>
static __device__ __forceinline__ void store_rounded(bf16 *to, const float (&x)[N], int64_t i,
                                                     uint64_t noise)
{
    Pack<bf16, N> pack;
#pragma unroll
    for (int j = 0; j < N; j++)
        pack.at[j] =
            __ushort_as_bfloat16(rounding_bf16(x[j], (uint32_t)(noise >> (16 * j)) & 0xffffu));
    *reinterpret_cast<Pack<bf16, N> *>(to + i) = pack;
}

template <int N>
static __device__ __forceinline__ void store_weights(bf16 *weight, const float (&p)[N], int64_t i,
                                                     int64_t update, Stochastic &to)
{
    store_rounded(weight, p, i, noise_of<N, false>(to, i, update));
}

/* Stores v as the N averages of squares from index i of the range on: in f32, or rounded to bf16.
 * Does not advance the last argument, the position in the table of segments, but searches with a
 * copy of it: the weights are stored next, and their search must start at the same segment. */
template <int N, class R>
static __device__ __forceinline__ void store_squares(float *square, const float (&v)[N], int64_t i,
                                                     int64_t, const R &)
{
    store(square + i, v);
}

template <int N>
static __device__ __forceinline__ void store_squares(bf16 *square, const float (&v)[N], int64_t i,
                                                     int64_t update, const Stochastic &from)
{
    Stochastic to = from;
    store_rounded(square, v, i, noise_of<N, true>(to, i, update));
}

#endif
