/* vectors.h -- a SIMD vector of reals for the CPU level that the file is compiled for, stores past
 * the caches, and transposition of blocks of rows. */
#ifndef MODEL_KERNELS_CPU_VECTORS_H
#define MODEL_KERNELS_CPU_VECTORS_H

#include "model/kernels/cpu/cpu.h"

#include <xmmintrin.h>

enum {
    VECTOR_BYTES = __BIGGEST_ALIGNMENT__ < 64 ? __BIGGEST_ALIGNMENT__ : 64,
    LANES = VECTOR_BYTES / (int)sizeof(real),
};

typedef real Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

static inline Vector vector_load(const real *x)
{
    return *(const Vector *)x;
}

static inline void vector_store(real *x, Vector v)
{
    *(Vector *)x = v;
}

/* Returns the sum of the lanes, in an order that depends only on the CPU level and the type. */
static inline real vector_sum(const Vector *v)
{
    real s[LANES];
    memcpy(s, v, sizeof s);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

/* An integer with the width of a real, used as the index type of shuffles. */
typedef __typeof__(_Generic((real)0, float : (int32_t)0, double : (int64_t)0)) Integer;
typedef Integer Indices __attribute__((vector_size(VECTOR_BYTES)));

/* Copies n reals past the caches where `to` is aligned to 16 bytes. It is meant for results that
 * other threads read next: a normal store to a line that another core has read costs ten times as
 * much if the cores share no cache. Other threads may rely on the data only after streams_end. */
static inline void reals_stream(real *restrict to, const real *restrict from, int64_t n)
{
    const int64_t step = 16 / (int64_t)sizeof(real);
    int64_t i = 0;
    for (; (uintptr_t)to % 16 == 0 && i + step <= n; i += step)
        _mm_stream_ps((float *)(to + i), _mm_loadu_ps((const float *)(from + i)));
    for (; i < n; i++)
        to[i] = from[i];
}

static inline void streams_end(void)
{
    _mm_sfence();
}

/* Transposes v in place. Each round interleaves the first half of the rows with the second. */
static inline void transpose(Vector v[LANES])
{
    Indices low, high;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        low[i] = i / 2 + i % 2 * LANES;
        high[i] = low[i] + LANES / 2;
    }
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
        Vector w[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            w[2 * i] = __builtin_shuffle(v[i], v[i + LANES / 2], low);
            w[2 * i + 1] = __builtin_shuffle(v[i], v[i + LANES / 2], high);
        }
        memcpy(v, w, sizeof w);
    }
}

/* Packs n <= LANES rows of `from` (n x depth, ld apart): element p of row r goes to to[p * width +
 * r]. Stores whole vectors: elements past the last row repeat that row and are overwritten by the
 * rows packed next. */
static inline void rows_pack(real *restrict to, const real *restrict from, int64_t ld, int64_t n,
                             int64_t depth, int width)
{
    const real *row[LANES];
    for (int r = 0; r < LANES; r++)
        row[r] = from + (r < n ? r : n - 1) * ld;
    int64_t p = 0;
    for (; p + LANES <= depth; p += LANES) {
        Vector v[LANES];
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            v[r] = *(const Vector *)(row[r] + p);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            *(Vector *)(to + (p + i) * width) = v[i];
    }
    for (; p < depth; p++)
        for (int r = 0; r < LANES; r++)
            to[p * width + r] = row[r][p];
}

#endif
