/* ptx.cuh -- replaces model/kernels/cuda/ptx.cuh on the emulated device; see that file for the
 * contracts. The fragment layouts are implemented here independently, element by element.
 * tests/cuda/test_ptx*.cu check both files against the PTX ISA. */
#ifndef MODEL_KERNELS_CUDA_PTX_CUH
#define MODEL_KERNELS_CUDA_PTX_CUH

#include "tests/emu/include/cuda_bf16.h"
#include "tests/emu/include/cuda_fp16.h"
#include "tests/emu/include/cuda_runtime.h"

template <class T> struct EmuElement;

template <> struct EmuElement<__nv_bfloat16> {
    static float value(uint32_t bits)
    {
        return __bfloat162float(__nv_bfloat16{(unsigned short)bits});
    }
    static uint32_t bits(float x)
    {
        return __float2bfloat16_rn(x).bits;
    }
};

template <> struct EmuElement<__half> {
    static float value(uint32_t bits)
    {
        return __half2float(__half{(unsigned short)bits});
    }
    static uint32_t bits(float x)
    {
        return __float2half_rn(x).bits;
    }
};

/* ---- products -------------------------------------------------------------------------------- */

typedef struct {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
} EmuProduct;

typedef float EmuRow __attribute__((vector_size(8 * sizeof(float)))); /* a row of b or d */

/* Computes d += a b for the whole warp, in float, in ascending order of the inner index. Reads and
 * writes each lane's elements at fixed places and keeps a row of d in registers, because tests of
 * attention spend much of their time here. */
template <class T> static inline void emu_mma_finish(EmuWarp *warp, uint32_t lanes)
{
    float a[16][16];
    EmuRow b[16], d[16];
    if (lanes != 0xffffffffu) emu_die("mma by a part of a warp (lanes %08x)", lanes);
    for (int lane = 0; lane < EMU_WARP; lane++) {
        const EmuProduct *p = (const EmuProduct *)warp->lane[lane]->argument;
        int group = lane / 4, quad = lane % 4;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            a[group + i / 2 % 2 * 8][quad * 2 + i % 2 + i / 4 * 8] =
                EmuElement<T>::value(p->a[i / 2] >> i % 2 * 16);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            b[quad * 2 + i % 2 + i / 2 * 8][group] =
                EmuElement<T>::value(p->b[i / 2] >> i % 2 * 16);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            d[group + i / 2 * 8][quad * 2 + i % 2] = p->d[i];
    }
    for (int row = 0; row < 16; row++) {
        EmuRow sum = d[row];
#pragma GCC unroll 16
        for (int k = 0; k < 16; k++)
            sum += a[row][k] * b[k];
        d[row] = sum;
    }
    for (int lane = 0; lane < EMU_WARP; lane++) {
        const EmuProduct *p = (const EmuProduct *)warp->lane[lane]->argument;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            p->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

template <class T>
static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, EMU_HERE)
{
    EmuProduct product = {d, a, {b0, b1}};
    emu_collective(0xffffffffu, EMU_PLACE("mma"), &product, emu_mma_finish<T>);
}

template <class T> static inline uint32_t pair(float low, float high)
{
    return EmuElement<T>::bits(low) | EmuElement<T>::bits(high) << 16;
}

/* ---- loading fragments from shared memory ---------------------------------------------------- */

typedef struct {
    uint32_t *r;
    const unsigned char *row;
} EmuMatrices;

/* Returns the element at (line, along) of matrix i, whose rows are at the addresses passed by lanes
 * 8 i to 8 i + 7. */
static inline uint32_t emu_matrix_element(const EmuWarp *warp, int i, int line, int along)
{
    uint16_t bits;
    memcpy(&bits, ((const EmuMatrices *)warp->lane[i * 8 + line]->argument)->row + along * 2, 2);
    return bits;
}

template <int COUNT, bool TRANS>
static inline void emu_ldmatrix_finish(EmuWarp *warp, uint32_t lanes)
{
    if (lanes != 0xffffffffu) emu_die("ldmatrix by a part of a warp (lanes %08x)", lanes);
    for (int lane = 0; lane < EMU_WARP; lane++) {
        int line = lane / 4, along = lane % 4 * 2;
        uint32_t *r = ((EmuMatrices *)warp->lane[lane]->argument)->r;
        for (int i = 0; i < COUNT; i++)
            r[i] = TRANS ? emu_matrix_element(warp, i, along, line) |
                               emu_matrix_element(warp, i, along + 1, line) << 16
                         : emu_matrix_element(warp, i, line, along) |
                               emu_matrix_element(warp, i, line, along + 1) << 16;
    }
}

template <int COUNT, bool TRANS>
static inline void emu_ldmatrix(uint32_t *r, const void *row, EmuPlace place)
{
    EmuMatrices matrices = {r, (const unsigned char *)row};
    emu_thread->place = place;
    if ((uintptr_t)row % 16 != 0)
        emu_die("%s: row address %p is not a multiple of 16", place.what, row);
    if (emu_thread->lane < COUNT * 8) emu_check_shared(row, 16, place.what);
    emu_collective(0xffffffffu, place, &matrices, emu_ldmatrix_finish<COUNT, TRANS>);
}

static inline void ldmatrix_4(uint32_t (&r)[4], const void *row, EMU_HERE)
{
    emu_ldmatrix<4, false>(r, row, EMU_PLACE("ldmatrix_4"));
}

static inline void ldmatrix_4_trans(uint32_t (&r)[4], const void *row, EMU_HERE)
{
    emu_ldmatrix<4, true>(r, row, EMU_PLACE("ldmatrix_4_trans"));
}

static inline void ldmatrix_2(uint32_t (&r)[2], const void *row, EMU_HERE)
{
    emu_ldmatrix<2, false>(r, row, EMU_PLACE("ldmatrix_2"));
}

static inline void ldmatrix_2_trans(uint32_t (&r)[2], const void *row, EMU_HERE)
{
    emu_ldmatrix<2, true>(r, row, EMU_PLACE("ldmatrix_2_trans"));
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

static inline void cp_async_16(void *shared, const void *global, int bytes = 16, EMU_HERE)
{
    emu_copy_start(shared, global, bytes, EMU_PLACE("cp_async_16"));
}

static inline void cp_async_commit()
{
    emu_copy_commit();
}

template <int N> static inline void cp_async_wait()
{
    emu_copy_wait(N);
}

/* ---- stores to global memory ----------------------------------------------------------------- */

static inline void emu_store_words(void *p, const uint32_t *word, size_t bytes, EmuPlace place)
{
    const EmuBlock *block = emu_thread->block;
    emu_thread->place = place;
    if ((uintptr_t)p % bytes != 0)
        emu_die("%s: address %p is not a multiple of %zu", place.what, p, bytes);
    if ((uintptr_t)p - (uintptr_t)block->shared < block->launch->shared)
        emu_die("%s: address %p is in shared memory", place.what, p);
    memcpy(p, word, bytes);
}

static inline void store_words(void *p, const uint32_t (&word)[4], EMU_HERE)
{
    emu_store_words(p, word, sizeof word, EMU_PLACE("store_words"));
}

static inline void store_words(void *p, const uint32_t (&word)[2], EMU_HERE)
{
    emu_store_words(p, word, sizeof word, EMU_PLACE("store_words"));
}

/* ---- functions ------------------------------------------------------------------------------- */

static inline int unmoved(int x)
{
    return x;
}

/* Returns x, or the signed zero that an instruction with .ftz reads or writes instead. */
static inline float emu_flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* Returns y, the correctly rounded result for the argument x, moved up or down by at most `most`
 * representable numbers, and flushed. `most` is the error that the PTX ISA allows the instruction.
 * How far y is moved depends on the bits of x, so equal arguments have equal results. */
static inline float emu_approximate(float y, float x, unsigned most)
{
    unsigned mixed = (__float_as_uint(x) * 0x9e3779b1u) >> 8, step = mixed % (2 * most + 1);
    if (y != y || isinf(y) || emu_flushed(y) == 0.0f) return emu_flushed(y);
    return emu_flushed(__uint_as_float(__float_as_uint(y) + step - most));
}

static inline float exp2_approx(float x)
{
    return emu_flushed(x) == 0.0f ? 1.0f : emu_approximate((float)exp2((double)x), x, 2);
}

static inline float reciprocal_approx(float x)
{
    return emu_approximate(1.0f / emu_flushed(x), x, 1);
}

#endif
