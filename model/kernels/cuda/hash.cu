/* hash.cu -- the hash of a tensor's bytes, with the CPU's bits. The hash is a sum of integers,
 * whose order does not matter, so the blocks add their sums with atomics. */
#include "model/kernels/cuda/kernel.cuh"

#include "model/kernels/hash_rule.h"

enum { HASH_THREADS = 256, HASH_BATCH = 4, HASH_BLOCKS = 4 /* per multiprocessor */ };
typedef unsigned long long Word; /* the type that atomicAdd takes */

/* Adds to sum the hash numbers (hash_word) of all words of x: first of `packs` whole packs of N
 * words, then of the `rest` bytes after them, whose last word is filled with zeros. */
template <int N>
static __global__ void __launch_bounds__(HASH_THREADS, HASH_BLOCKS)
    hash_kernel(Word *sum, const Word *x, int64_t packs, int rest, uint64_t first)
{
    DYN_SHARED(Word, shared);
    int64_t step = (int64_t)gridDim.x * HASH_THREADS;
    Word mine = 0;
    for (int64_t at = (int64_t)blockIdx.x * HASH_THREADS + threadIdx.x; at < packs;
         at += HASH_BATCH * step) {
        Pack<Word, N> pack[HASH_BATCH];
#pragma unroll
        for (int k = 0; k < HASH_BATCH; k++)
            if (at + k * step < packs)
                pack[k] = *reinterpret_cast<const Pack<Word, N> *>(x + (at + k * step) * N);
#pragma unroll
        for (int k = 0; k < HASH_BATCH; k++)
            for (int i = 0; i < N && at + k * step < packs; i++)
                mine += hash_word(first + (uint64_t)((at + k * step) * N + i), pack[k].at[i]);
    }
    if (rest > 0 && blockIdx.x == 0 && threadIdx.x == 0) {
        const unsigned char *tail = (const unsigned char *)(x + packs * N);
        for (int at = 0; at < rest; at += 8) {
            uint64_t word = 0;
            for (int i = at; i < rest && i < at + 8; i++)
                word |= (uint64_t)tail[i] << (8 * (i - at));
            mine += hash_word(first + (uint64_t)(packs * N + at / 8), word);
        }
    }
    mine = block_sum(mine, shared);
    if (threadIdx.x == 0) atomicAdd(sum, mine);
}

extern "C" void cuda_hash(Device *dev, Tensor sum, Tensor x, int64_t first)
{
    int64_t bytes = (int64_t)tensor_bytes(x);
    int n = (uintptr_t)x.data % 16 == 0 ? 2 : 1;
    int64_t packs = bytes / (8 * n), most = HASH_BLOCKS * cuda_device(dev)->multiprocessors;
    int64_t wanted = ceil_div(packs, HASH_THREADS * HASH_BATCH);
    int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
    int rest = (int)(bytes - packs * 8 * n);
    size_t shared = WARP * sizeof(Word);
    if (n == 2)
        LAUNCH(hash_kernel<2>, blocks, HASH_THREADS, shared, cuda_stream(dev), (Word *)sum.data,
               (const Word *)x.data, packs, rest, (uint64_t)first);
    else
        LAUNCH(hash_kernel<1>, blocks, HASH_THREADS, shared, cuda_stream(dev), (Word *)sum.data,
               (const Word *)x.data, packs, rest, (uint64_t)first);
}
