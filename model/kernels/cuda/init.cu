/* init.cu -- draws the initial weights: normal numbers as a pure function of (seed, stream,
 * element), computed by normal.h with the same bits as on the CPU. Compiled without contraction. */
#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/normal.h"
#include "model/kernels/segment_rule.h"

enum { NORMAL_THREADS = 256 };

/* Sets x (n) to std times the normal numbers of its elements of the part, rounded to f32 and then
 * to storage. Each thread computes two adjacent elements of x, which share one pair of normal
 * numbers if the part has whole rows. The first element of the first thread and the second element
 * of the last thread may be outside x. */
template <class T>
static __global__ void __launch_bounds__(NORMAL_THREADS)
    normal_kernel(T *x, uint64_t seed, Segment part, int64_t n, double std)
{
    /* Pairs are counted from the first element of the whole parameter, not of x. So a rank that
     * holds a part of the parameter draws the same numbers for it as a single rank would. */
    int64_t place =
        2 * ((int64_t)blockIdx.x * NORMAL_THREADS + threadIdx.x) - (segment_element(&part, 0) & 1);
    int64_t drawn = -1;
    NormalPair z = {0.0, 0.0};
#pragma unroll 1
    for (int64_t i = place; i < place + 2; i++) {
        if (i < 0 || i >= n) continue;
        int64_t element = segment_element(&part, i), pair = element / 2;
        if (pair != drawn) {
            uint32_t word[4];
            normal_words(seed, part.stream, (uint64_t)pair, word);
            z = normal_pair((uint64_t)word[1] << 32 | word[0], (uint64_t)word[3] << 32 | word[2]);
            drawn = pair;
        }
        /* Multiplies by std in double and then rounds to f32, as on the CPU; another order would
         * round differently. */
        x[i] = from_float<T>((float)(std * (element & 1 ? z.odd : z.even)));
    }
}

extern "C" void cuda_normal(Device *dev, Tensor x, uint64_t seed, const Segment *part, double std)
{
    int64_t n = tensor_count(x), threads = n / 2 + 1;
    if (n == 0) return;
    with_storage(x.dtype, [&](auto t) {
        typedef typename decltype(t)::Type T;
        LAUNCH(normal_kernel<T>, ceil_div(threads, NORMAL_THREADS), NORMAL_THREADS, 0,
               cuda_stream(dev), (T *)x.data, seed, *part, n, std);
    });
}
