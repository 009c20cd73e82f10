/* bits.h -- shared by bits.cu and bits_contracted.cu: runs computations of the backend (Philox, the
 * normals of normal.h, AdamW of update_rule.h) on a million inputs each and counts how many results
 * differ bitwise between device and host. The host's results are right if g++ has no FMA to
 * contract products and sums into (x86-64 without -mfma or -march); host_rounds_products() checks
 * that. */
#ifndef TESTS_PROBE_BITS_H
#define TESTS_PROBE_BITS_H

#include "model/core/host_device.h"
#include "model/kernels/ops.h"
#include "tests/probe/probe.h"

#include <math.h>

/* Make device functions of these headers, as model/kernels/cuda/kernel.cuh does. A constant of
 * vmath.h has more digits than f32 can hold, which nvcc warns about. */
#undef HOST_DEVICE
#define HOST_DEVICE __host__ __device__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1046
#include "model/kernels/normal.h"
#undef real_sqrt /* vmath.h's macro handles both floating types in C */
#define real_sqrt(x) sqrtf(x)
typedef float real;
#include "model/kernels/update_rule.h"
#pragma nv_diagnostic pop

enum { N = 1000000, BLOCK = 256, BLOCKS = (N + BLOCK - 1) / BLOCK };

static const uint64_t SEED = 0x0123456789abcdefu, STREAM = 0xfedcba9876543210u;

static void *device_array(size_t bytes)
{
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes));
    return p;
}

static void *host_array(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(PROBE_FAILED);
    }
    return p;
}

/* Returns the error of the preceding launch, if any. Otherwise copies its results to the host. */
static cudaError_t fetch(void *to, const void *from, size_t bytes)
{
    cudaError_t code = cudaGetLastError();
    return code != cudaSuccess ? code : cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
}

/* Prints one result, or the error if the launch failed. */
static void print_mismatches(const char *name, int64_t mismatches, cudaError_t code)
{
    if (code != cudaSuccess) {
        probe_word(name, probe_name("failed: %s", cudaGetErrorString(code)));
    } else {
        probe_number(name, (double)mismatches, probe_name("of %d", N));
    }
}

/* Returns how many of the N items of `size` bytes differ. */
static int64_t count_mismatches(const void *a, const void *b, size_t size)
{
    int64_t count = 0;
    for (size_t i = 0; i < N; i++)
        count += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    return count;
}

/* Returns whether the host code, as compiled, rounds a product before adding to it. With x = 1 +
 * 2^-30, the rounded x^2 is 1 + 2^-29, but a fused multiply-add keeps the term 2^-60. */
static bool host_rounds_products(void)
{
    volatile double given = 1.0 + 0x1p-30;
    double x = given;
    return x * x - (1.0 + 0x1p-29) == 0.0;
}

/* ---- Philox ---------------------------------------------------------------------------------- */

/* Uses consecutive counters, as the program does, for the first half of the inputs, and counters
 * scattered over all 128 bits for the second half. */
static __host__ __device__ void words_of(uint32_t i, uint64_t seed, uint64_t stream,
                                         uint32_t word[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t ctr[4] = {probe_hash(4 * i), probe_hash(4 * i + 1), probe_hash(4 * i + 2),
                             probe_hash(4 * i + 3)};
    if (i >= N / 2)
        philox4x32(ctr, key, word);
    else
        normal_words(seed, stream, i, word);
}

static __global__ void philox_kernel(uint32_t *out, uint64_t seed, uint64_t stream)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) words_of(i, seed, stream, out + 4 * (size_t)i);
}

/* Compares Philox's output. `words` receives the host's draws, which the normals below start
 * from. */
static void ask_philox(const char *kind, uint32_t *words)
{
    const size_t bytes = sizeof(uint32_t) * 4 * N;
    uint32_t *d = (uint32_t *)device_array(bytes), *got = (uint32_t *)host_array(bytes);
    for (uint32_t i = 0; i < N; i++)
        words_of(i, SEED, STREAM, words + 4 * (size_t)i);
    philox_kernel<<<BLOCKS, BLOCK>>>(d, SEED, STREAM);
    cudaError_t code = fetch(got, d, bytes);
    print_mismatches(probe_name("bits.%s.philox4x32_10.mismatches", kind),
                     count_mismatches(words, got, 16), code);
    CUDA_OK(cudaFree(d));
    free(got);
}

/* ---- normals --------------------------------------------------------------------------------- */

/* Results computed from one pair of draws: intermediate values and the pair of normals. */
typedef struct {
    double log, sine, cosine;
    NormalPair pair;
} Normals;

static __host__ __device__ uint64_t draw_a(const uint32_t word[4])
{
    return (uint64_t)word[1] << 32 | word[0];
}

static __host__ __device__ uint64_t draw_b(const uint32_t word[4])
{
    return (uint64_t)word[3] << 32 | word[2];
}

/* Returns draw b in quarter turns, minus the nearest integer: a value in [-1/2, 1/2], exactly. */
static __host__ __device__ double part_of_quarter(uint64_t b)
{
    double turns = 4.0 * (normal_one_to_two(b) - 1.0);
    return turns - rint(turns);
}

static __host__ __device__ Normals normals_of(const uint32_t word[4])
{
    Normals n;
    double t = part_of_quarter(draw_b(word)) * 0x1.921fb54442d18p+0;
    n.log = log_f64(2.0 - normal_one_to_two(draw_a(word)));
    n.sine = normal_sine(t, t * t);
    n.cosine = normal_cosine(t * t);
    n.pair = normal_pair(draw_a(word), draw_b(word));
    return n;
}

static __global__ void normals_kernel(Normals *out, const uint32_t *words)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) out[i] = normals_of(words + 4 * (size_t)i);
}

/* Prints how many values of each kind differ: intermediate values, and normals in f64 and rounded
 * to f32. */
static void print_normals(const char *kind, const Normals *host, const Normals *device,
                          cudaError_t code)
{
    int64_t logs = 0, sines = 0, doubles = 0, floats = 0;
    for (int64_t i = 0; i < N; i++) {
        const Normals *h = host + i, *d = device + i;
        float hf[2] = {(float)h->pair.even, (float)h->pair.odd};
        float df[2] = {(float)d->pair.even, (float)d->pair.odd};
        logs += memcmp(&h->log, &d->log, sizeof h->log) != 0;
        sines += memcmp(&h->sine, &d->sine, 2 * sizeof h->sine) != 0;
        doubles += memcmp(&h->pair, &d->pair, sizeof h->pair) != 0;
        floats += memcmp(hf, df, sizeof hf) != 0;
    }
    print_mismatches(probe_name("bits.%s.log.mismatches", kind), logs, code);
    print_mismatches(probe_name("bits.%s.sincos.mismatches", kind), sines, code);
    print_mismatches(probe_name("bits.%s.normal.f64.mismatches", kind), doubles, code);
    print_mismatches(probe_name("bits.%s.normal.f32.mismatches", kind), floats, code);
}

/* Computes the normals of the draws in `words` on the host; the caller frees the result. */
static Normals *host_normals(const uint32_t *words)
{
    Normals *host = (Normals *)host_array(sizeof(Normals) * N);
    for (int64_t i = 0; i < N; i++)
        host[i] = normals_of(words + 4 * i);
    return host;
}

/* Runs a kernel that computes the normals of the draws and compares its results with the host's. */
static void ask_normals(const char *kind, void (*kernel)(Normals *, const uint32_t *),
                        const uint32_t *words, const Normals *host)
{
    const size_t bytes = sizeof(Normals) * N, word_bytes = sizeof(uint32_t) * 4 * N;
    Normals *got = (Normals *)host_array(bytes), *d = (Normals *)device_array(bytes);
    uint32_t *d_words = (uint32_t *)device_array(word_bytes);
    CUDA_OK(cudaMemcpy(d_words, words, word_bytes, cudaMemcpyHostToDevice));
    kernel<<<BLOCKS, BLOCK>>>(d, d_words);
    cudaError_t code = fetch(got, d, bytes);
    print_normals(kind, host, got, code);
    CUDA_OK(cudaFree(d));
    CUDA_OK(cudaFree(d_words));
    free(got);
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

typedef struct {
    float p, grad, m, v;
} Element;

static __host__ __device__ Element updated(Element e, const UpdateConstants *k)
{
    e.p = adamw_element(e.p, e.grad, &e.m, &e.v, k);
    return e;
}

static __global__ void adamw_kernel(Element *out, const Element *in, UpdateConstants k)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) out[i] = updated(in[i], &k);
}

/* Returns a random value +-2^[low, high), uniform in the exponent. */
static float spread(uint32_t seed, double low, double high)
{
    double x = exp2(low + (high - low) * probe_hash(seed) * 0x1p-32);
    return (float)(probe_hash(seed ^ 0x80000000u) & 1 ? -x : x);
}

/* Fills in weights of a typical size (around 2^-6), and gradients and moments down to sizes at
 * which g^2 is denormal or 0. */
static void fill_elements(Element *e)
{
    for (uint32_t i = 0; i < N; i++) {
        double low = i % 8 ? -30 : -80;
        e[i].p = spread(4 * i, -16, 1);
        e[i].grad = spread(4 * i + 1, low, 2);
        e[i].m = spread(4 * i + 2, low, 1);
        e[i].v = fabsf(spread(4 * i + 3, 2 * low, 2));
        if (i % 16 == 0) e[i].m = e[i].v = 0;
    }
}

/* Compares the third update, with weight decay either applied to the weights (decoupled) or added
 * to the gradients. */
static void ask_adamw(const char *kind, bool decoupled)
{
    const StepDecision decision = {.apply = 1, .update = 3, .lr = 6e-4, .grad_scale = 0.7341};
    const AdamW hyper = {.beta1 = 0.9,
                         .beta2 = 0.95,
                         .epsilon = 1e-8,
                         .weight_decay = 0.1,
                         .decoupled = decoupled,
                         .bias_correction = true};
    const UpdateConstants k = adamw_constants(&decision, &hyper);
    const size_t bytes = sizeof(Element) * N;
    Element *in = (Element *)host_array(bytes), *host = (Element *)host_array(bytes);
    Element *got = (Element *)host_array(bytes), *d_in = (Element *)device_array(bytes);
    Element *d_out = (Element *)device_array(bytes);
    fill_elements(in);
    for (int64_t i = 0; i < N; i++)
        host[i] = updated(in[i], &k);
    CUDA_OK(cudaMemcpy(d_in, in, bytes, cudaMemcpyHostToDevice));
    adamw_kernel<<<BLOCKS, BLOCK>>>(d_out, d_in, k);
    cudaError_t code = fetch(got, d_out, bytes);
    print_mismatches(
        probe_name("bits.%s.adamw.%s.mismatches", kind, decoupled ? "decoupled" : "coupled"),
        count_mismatches(host, got, sizeof(Element)), code);
    CUDA_OK(cudaFree(d_in));
    CUDA_OK(cudaFree(d_out));
    free(in);
    free(host);
    free(got);
}

/* Runs all comparisons; `words` has room for 4 N elements. */
static void ask_bits(const char *kind, uint32_t *words)
{
    ask_philox(kind, words);
    Normals *host = host_normals(words);
    ask_normals(kind, normals_kernel, words, host);
    free(host);
    ask_adamw(kind, true);
    ask_adamw(kind, false);
}

#endif
