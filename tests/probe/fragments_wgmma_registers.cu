/* fragments_wgmma_registers.cu -- determines which element of A each half of a register holds in
 * wgmma m64nNk16 with A in registers, and checks the products of every wrapper in
 * model/kernels/cuda/ptx_wgmma.cuh: bf16 and f16, N = 64 and 128, A in registers and in shared
 * memory, B K-major and MN-major, over two panels of operands with the 128-byte swizzle.
 *
 * For the map, B is the identity, so that the first 16 columns of D are A. Each half of a register
 * holds its own number, split over two runs because bf16 is exact only up to 256.
 *
 * Lines of the first warp, for f16 only if they differ, or of the first warp that differs:
 * map.wgmma.a.registers.TYPE.threadT = rR:(row,column)(row,column)... */
#include "tests/probe/probe.h"
#include "tests/probe/wgmma_product.cuh"

enum { K = 16, SLOTS = 8, CODES = WG_THREADS * SLOTS, N = 64, SPACE = 65536 };

/* out (64, N) = A B, where B is the identity and A has `word` of thread i in its registers. */
template <class T>
static __global__ void __launch_bounds__(WG_THREADS) map_kernel(float *out, const uint32_t *word)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *image = shared + (-shared_address(shared) & (WG_ATOM - 1));
    uint32_t a[4];
    float d[N / 2];
    for (int i = (int)threadIdx.x; i < N * K; i += WG_THREADS)
        *(T *)(image + wg_byte(false, N, i / K, i % K)) = from_float<T>(i / K == i % K ? 1 : 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = word[(int)threadIdx.x * 4 + i];
    proxy_fence();
    __syncthreads();
    wgmma_fence();
    wgmma_registers<T, N, false>(d, a, wgmma_descriptor(shared_address(image), 16, WG_ATOM), false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
    wg_store<N>(out, d);
}

static uint32_t bits_of(bool f16, int value)
{
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!f16 || value == 0) return bits >> 16;
    return ((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff);
}

/* Sets slot[row * K + column] to the number of the half register that is this element of A. */
template <class T> static cudaError_t slots_read(bool f16, int *slot)
{
    static uint32_t word[CODES / 2], *on_device;
    static float d[WG_M * N], *out;
    CUDA_OK(cudaMalloc(&on_device, sizeof word));
    CUDA_OK(cudaMalloc(&out, sizeof d));
    memset(slot, 0, sizeof *slot * WG_M * K);
    cudaError_t code = cudaSuccess;
    for (int high = 0; high < 2 && code == cudaSuccess; high++) {
        for (int i = 0; i < CODES / 2; i++)
            word[i] = bits_of(f16, high ? 2 * i >> 7 : 2 * i & 127) |
                      bits_of(f16, high ? (2 * i + 1) >> 7 : (2 * i + 1) & 127) << 16;
        CUDA_OK(cudaMemcpy(on_device, word, sizeof word, cudaMemcpyHostToDevice));
        map_kernel<T><<<1, WG_THREADS, N * WG_LINE + WG_ATOM>>>(out, on_device);
        code = cudaMemcpy(d, out, sizeof d, cudaMemcpyDeviceToHost);
        for (int i = 0; i < WG_M * K; i++)
            slot[i] += (int)d[i / K * N + i % K] << (high ? 7 : 0);
    }
    cudaFree(on_device);
    cudaFree(out);
    return code;
}

/* Returns the documented element of slot i of a thread, as row * K + column. */
static int element_of(int thread, int i)
{
    const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    return row * K + thread % 4 * 2 + i % 2 + i / 4 * 8;
}

/* Prints what the registers of `thread`'s warp hold; (-1,-1) if no element was read from there. */
static void print_map(const char *type, const int *slot, int thread)
{
    const int from = thread / 32 * 32;
    for (thread = from; thread < from + 32; thread++) {
        char text[256];
        int at = 0;
        for (int i = 0; i < SLOTS; i++) {
            int e = WG_M * K - 1;
            while (e >= 0 && slot[e] != thread * SLOTS + i)
                e--;
            if (i % 2 == 0)
                at += snprintf(text + at, sizeof text - (size_t)at, "%sr%d:", i ? " " : "", i / 2);
            at += snprintf(text + at, sizeof text - (size_t)at, "(%d,%d)", e < 0 ? -1 : e / K,
                           e < 0 ? -1 : e % K);
        }
        probe_word(probe_name("map.wgmma.a.registers.%s.thread%d", type, thread), text);
    }
}

template <class T> static void ask_map(const char *type, bool f16)
{
    static int slot[WG_M * K];
    const char *name = probe_name("wgmma.a.registers.%s.expected", type);
    int differing = 0, first = 0;
    cudaError_t code = slots_read<T>(f16, slot);
    for (int i = 0; i < CODES; i++)
        if (slot[element_of(i / SLOTS, i % SLOTS)] != i && differing++ == 0) first = i / SLOTS;
    probe_word(name, code != cudaSuccess ? probe_name("failed: %s", cudaGetErrorString(code))
                     : differing ? probe_name("differs in %d of %d elements", differing, CODES)
                                 : "match");
    if (code == cudaSuccess && (differing || !f16)) print_map(type, slot, first);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns a small integer without a pattern. */
static int number(int i)
{
    return (int)(probe_hash((uint32_t)i) % 13) - 6;
}

/* Compares start + a b of the wrappers with the sums of integers, which are exact. */
template <class T, int COLUMNS, bool REGISTERS, bool B_MN>
static void ask_product(const char *type, bool f16)
{
    static uint16_t a[WG_M * WG_K], b[WG_K * COLUMNS];
    static float got[WG_M * COLUMNS];
    char name[64];
    uint16_t *on_a, *on_b;
    float *out;
    int differing = 0, first = 0;
    snprintf(name, sizeof name, "wgmma.product.%s.%s.n%d.%s", type,
             REGISTERS ? "registers" : "shared", COLUMNS, B_MN ? "mn" : "k");
    for (int i = 0; i < WG_M * WG_K; i++)
        a[i] = (uint16_t)(bits_of(f16, abs(number(i))) | (number(i) < 0 ? 0x8000 : 0));
    for (int i = 0; i < WG_K * COLUMNS; i++) {
        const int x = number(i + 12345);
        b[B_MN ? i : i % COLUMNS * WG_K + i / COLUMNS] =
            (uint16_t)(bits_of(f16, abs(x)) | (x < 0 ? 0x8000 : 0));
    }
    CUDA_OK(cudaMalloc(&on_a, sizeof a));
    CUDA_OK(cudaMalloc(&on_b, sizeof b));
    CUDA_OK(cudaMalloc(&out, sizeof got));
    CUDA_OK(cudaMemcpy(on_a, a, sizeof a, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(on_b, b, sizeof b, cudaMemcpyHostToDevice));
    CUDA_OK(cudaFuncSetAttribute((const void *)wg_product_kernel<T, COLUMNS, REGISTERS, B_MN>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, SPACE));
    wg_product_kernel<T, COLUMNS, REGISTERS, B_MN>
        <<<1, WG_THREADS, SPACE>>>(out, (const T *)on_a, (const T *)on_b, 3);
    cudaError_t code = cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
    for (int i = 0; i < WG_M * COLUMNS; i++) {
        int want = 3;
        for (int k = 0; k < WG_K; k++)
            want += number(i / COLUMNS * WG_K + k) * number(k * COLUMNS + i % COLUMNS + 12345);
        if (got[i] != (float)want && differing++ == 0) first = i;
    }
    probe_word(name, code != cudaSuccess ? probe_name("failed: %s", cudaGetErrorString(code))
                     : differing
                         ? probe_name("differs in %d of %d elements, first in (%d,%d)", differing,
                                      WG_M * COLUMNS, first / COLUMNS, first % COLUMNS)
                         : "match");
    cudaFree(on_a);
    cudaFree(on_b);
    cudaFree(out);
}

template <class T, int COLUMNS> static void ask_products(const char *type, bool f16)
{
    ask_product<T, COLUMNS, false, false>(type, f16);
    ask_product<T, COLUMNS, false, true>(type, f16);
    ask_product<T, COLUMNS, true, false>(type, f16);
    ask_product<T, COLUMNS, true, true>(type, f16);
}

int main(void)
{
    probe_device();
    ask_map<bf16>("bf16", false);
    ask_map<f16>("f16", true);
    ask_products<bf16, 64>("bf16", false);
    ask_products<bf16, 128>("bf16", false);
    ask_products<f16, 64>("f16", true);
    ask_products<f16, 128>("f16", true);
    return 0;
}
