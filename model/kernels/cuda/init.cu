/* init.cu -- normal numbers as a pure function of (seed, stream, element): normal.h's, which are
 * the CPU's bit for bit. Compiled without contraction. */
#include "model/kernels/cuda/kernel.cuh"

#include <math.h>
#include <string.h>

/* The functions of normal.h run on both sides. */
#define inline inline __host__ __device__
#include "model/kernels/normal.h"
#undef inline

enum { NORMAL_THREADS = 256 };

/* x (n) = std * normals first .. first + n, rounded to storage by way of f32. One pair of normals a
 * thread; the first and the last pair may lie half outside. */
template <class T>
static __global__ void __launch_bounds__(NORMAL_THREADS)
    normal_kernel(T *x, uint64_t seed, uint64_t stream, int64_t first, int64_t n, double std)
{
    /* Pairs are counted from the parameter's first element, not from x's: a rank that has a part of
     * it draws the numbers which that part has on one rank. */
    int64_t pair = first / 2 + (int64_t)blockIdx.x * NORMAL_THREADS + threadIdx.x;
    int64_t even = 2 * pair - first, odd = even + 1;
    if (even >= n) return;
    uint32_t word[4];
    normal_words(seed, stream, (uint64_t)pair, word);
    NormalPair z =
        normal_pair((uint64_t)word[1] << 32 | word[0], (uint64_t)word[3] << 32 | word[2]);
    /* Times std in double, then by way of f32, as on the CPU: another order rounds otherwise. */
    if (even >= 0) x[even] = from_float<T>((float)(std * z.even));
    if (odd < n) x[odd] = from_float<T>((float)(std * z.odd));
}

extern "C" void cuda_normal(Device *dev, Tensor x, uint64_t seed, uint64_t stream, int64_t first,
                            double std)
{
    int64_t n = tensor_count(x), pairs = (first + n + 1) / 2 - first / 2;
    if (n == 0) return;
    WITH_STORAGE(x.dtype, T,
                 LAUNCH(normal_kernel<T>, (unsigned)ceil_div(pairs, NORMAL_THREADS), NORMAL_THREADS,
                        0, cuda_stream(dev), (T *)x.data, seed, stream, first, n, std));
}
