/* bits.cu -- which of the device's results are the CPU's bit for bit: Philox integers, normal
 * numbers from own polynomials, AdamW with every operation rounded once. Each is computed for a
 * million inputs on both; the answer is the number of inputs that differ in a bit. Beside it, to
 * see that the comparison can fail: AdamW as nvcc contracts it when it may, and normals from CUDA's
 * own log and sincospi. The own polynomials' errors are measured on the host in long double. */
#include "model/core/rng.h"
#include "tests/probe/own_math.h"
#include "tests/probe/probe.h"
/* A constant of vmath.h is written with more digits than f32 has, which nvcc remarks on. */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1046
#include "model/kernels/cpu/vmath.h"
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

/* What the launch before it said, or else the copy of its results. */
static cudaError_t fetch(void *to, const void *from, size_t bytes)
{
    cudaError_t code = cudaGetLastError();
    return code != cudaSuccess ? code : cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
}

/* One answer; a launch that failed is said in its place. */
static void print_mismatches(const char *name, int64_t mismatches, cudaError_t code)
{
    if (code != cudaSuccess) {
        probe_word(name, probe_name("failed: %s", cudaGetErrorString(code)));
    } else {
        probe_number(name, (double)mismatches, probe_name("of %d", N));
    }
}

/* How many of the N items of `size` bytes differ. */
static int64_t count_mismatches(const void *a, const void *b, size_t size)
{
    int64_t count = 0;
    for (size_t i = 0; i < N; i++)
        count += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    return count;
}

/* ---- Philox ---------------------------------------------------------------------------------- */

/* philox4x32 of model/core/rng.h for the device, with the high halves of products by __umulhi; the
 * CUDA backend's own will take its place here. */
static __device__ void device_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Counter i: consecutive as in use for the first half, scattered over all 128 bits after it. */
static __host__ __device__ void counter_of(uint32_t i, uint64_t stream, uint32_t ctr[4])
{
    bool scattered = i >= N / 2;
    ctr[0] = scattered ? probe_hash(4 * i) : i;
    ctr[1] = scattered ? probe_hash(4 * i + 1) : 0;
    ctr[2] = scattered ? probe_hash(4 * i + 2) : (uint32_t)stream;
    ctr[3] = scattered ? probe_hash(4 * i + 3) : (uint32_t)(stream >> 32);
}

static __global__ void philox_kernel(uint32_t *out, uint64_t seed, uint64_t stream)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x, ctr[4],
             key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    if (i >= N) return;
    counter_of(i, stream, ctr);
    device_philox(ctr, key, out + 4 * (size_t)i);
}

/* `words` receives the host's draws, which the normals below start from. */
static void ask_philox(uint32_t *words)
{
    const size_t bytes = sizeof(uint32_t) * 4 * N;
    const uint32_t key[2] = {(uint32_t)SEED, (uint32_t)(SEED >> 32)};
    uint32_t *d = (uint32_t *)device_array(bytes), *got = (uint32_t *)host_array(bytes), ctr[4];
    for (uint32_t i = 0; i < N; i++) {
        counter_of(i, STREAM, ctr);
        philox4x32(ctr, key, words + 4 * (size_t)i);
    }
    philox_kernel<<<BLOCKS, BLOCK>>>(d, SEED, STREAM);
    cudaError_t code = fetch(got, d, bytes);
    print_mismatches("bits.philox4x32_10.mismatches", count_mismatches(words, got, 16), code);
    CUDA_OK(cudaFree(d));
    free(got);
}

/* ---- normals --------------------------------------------------------------------------------- */

/* What one pair of draws gives on either side: the parts and the whole. */
typedef struct {
    double log, sine, cosine, even, odd;
} Normals;

static __host__ __device__ Normals normals_of(const uint32_t words[4])
{
    Normals n;
    uint64_t a = (uint64_t)words[1] << 32 | words[0], b = (uint64_t)words[3] << 32 | words[2];
    n.log = own_log(own_add(2.0, -own_from_bits(a >> 12 | 0x3ff0000000000000u)));
    own_sincos_turn(own_add(own_from_bits(b >> 12 | 0x3ff0000000000000u), -1.0), &n.sine,
                    &n.cosine);
    own_normals(a, b, &n.even, &n.odd);
    return n;
}

/* own: own polynomials; else CUDA's functions and whatever contraction nvcc likes. */
static __global__ void normals_kernel(Normals *out, const uint32_t *words, bool own)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    const uint32_t *w = words + 4 * (size_t)i;
    if (own) {
        out[i] = normals_of(w);
        return;
    }
    Normals n;
    double u = 1.0 - (double)(((uint64_t)w[1] << 32 | w[0]) >> 12) * 0x1p-52;
    double v = (double)(((uint64_t)w[3] << 32 | w[2]) >> 12) * 0x1p-52;
    n.log = log(u);
    sincospi(2.0 * v, &n.sine, &n.cosine);
    n.even = sqrt(-2.0 * n.log) * n.cosine;
    n.odd = sqrt(-2.0 * n.log) * n.sine;
    out[i] = n;
}

/* Numbers of differing bits for each part, in double and (the normals) rounded to f32. */
static void print_normals(const char *kind, const Normals *host, const Normals *device,
                          cudaError_t code)
{
    int64_t log_count = 0, sincos_count = 0, double_count = 0, float_count = 0;
    for (int64_t i = 0; i < N; i++) {
        const Normals *h = host + i, *d = device + i;
        float hf[2] = {(float)h->even, (float)h->odd}, df[2] = {(float)d->even, (float)d->odd};
        log_count += own_bits(h->log) != own_bits(d->log);
        sincos_count +=
            own_bits(h->sine) != own_bits(d->sine) || own_bits(h->cosine) != own_bits(d->cosine);
        double_count +=
            own_bits(h->even) != own_bits(d->even) || own_bits(h->odd) != own_bits(d->odd);
        float_count += memcmp(hf, df, sizeof hf) != 0;
    }
    print_mismatches(probe_name("bits.%s.log.mismatches", kind), log_count, code);
    print_mismatches(probe_name("bits.%s.sincos.mismatches", kind), sincos_count, code);
    print_mismatches(probe_name("bits.%s.normal.f64.mismatches", kind), double_count, code);
    print_mismatches(probe_name("bits.%s.normal.f32.mismatches", kind), float_count, code);
}

static void ask_normals(const uint32_t *words)
{
    const size_t bytes = sizeof(Normals) * N, word_bytes = sizeof(uint32_t) * 4 * N;
    Normals *host = (Normals *)host_array(bytes), *got = (Normals *)host_array(bytes);
    Normals *d = (Normals *)device_array(bytes);
    uint32_t *d_words = (uint32_t *)device_array(word_bytes);
    CUDA_OK(cudaMemcpy(d_words, words, word_bytes, cudaMemcpyHostToDevice));
    for (int64_t i = 0; i < N; i++)
        host[i] = normals_of(words + 4 * i);
    for (int own = 1; own >= 0; own--) {
        normals_kernel<<<BLOCKS, BLOCK>>>(d, d_words, own);
        cudaError_t code = fetch(got, d, bytes);
        print_normals(own ? "own" : "cuda_math", host, got, code);
    }
    CUDA_OK(cudaFree(d));
    CUDA_OK(cudaFree(d_words));
    free(host);
    free(got);
}

/* ---- own polynomials on the host ------------------------------------------------------------- */

static double ulps(double value, long double exact)
{
    int exponent;
    if (exact == 0.0L) return value == 0.0 ? 0.0 : HUGE_VAL;
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)value - exact) / ldexpl(1.0L, exponent - 53));
}

/* The own functions against the C library's long double; log against the CPU backend's too. The
 * quarter turn is taken off exactly before the library's sine and cosine see the angle. */
static void ask_own_errors(const uint32_t *words)
{
    const long double quarter_turn = 1.5707963267948966192313216916397514L;
    double log_most = 0, sine_most = 0, cosine_most = 0;
    int64_t differing = 0;
    for (int64_t i = 0; i < N; i++) {
        const uint32_t *w = words + 4 * i;
        double u = 1.0 - (double)(((uint64_t)w[1] << 32 | w[0]) >> 12) * 0x1p-52;
        double v = (double)(((uint64_t)w[3] << 32 | w[2]) >> 12) * 0x1p-52, near = rint(4.0 * v);
        Normals n = normals_of(w);
        long double t = (4.0L * (long double)v - (long double)near) * quarter_turn;
        long double s = sinl(t), c = cosl(t);
        int quarter = (int)near & 3;
        long double s_turned = quarter & 1 ? c : s, c_turned = quarter & 1 ? s : c;
        if (quarter & 2) s_turned = -s_turned;
        if ((quarter + 1) & 2) c_turned = -c_turned;
        log_most = fmax(log_most, ulps(n.log, logl((long double)u)));
        sine_most = fmax(sine_most, ulps(n.sine, s_turned));
        cosine_most = fmax(cosine_most, ulps(n.cosine, c_turned));
        differing += own_bits(n.log) != own_bits(log_f64(u));
    }
    probe_number("host.own.log.error", log_most, "ulp");
    probe_number("host.own.sin.error", sine_most, "ulp");
    probe_number("host.own.cos.error", cosine_most, "ulp");
    print_mismatches("host.own.log.against_cpu_backend.mismatches", differing, cudaSuccess);
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* The CPU backend's constants of one update (model/kernels/cpu/optimizer.c). */
typedef struct {
    float grad_scale, decay, l2, beta1, rest1, beta2, rest2, step, root_correction, epsilon;
} Constants;

typedef struct {
    float p, grad, m, v;
} Element;

/* adamw_run's element, in its order; contracted where the compiler may. */
static __host__ __device__ Element adamw_plain(Element e, Constants k)
{
    float g = e.grad * k.grad_scale + k.l2 * e.p;
    float m = k.beta1 * e.m + k.rest1 * g;
    float v = k.beta2 * e.v + k.rest2 * (g * g);
    float update = k.step * (m / (sqrtf(v) * k.root_correction + k.epsilon));
    return Element{e.p - (update + k.decay * e.p), e.grad, m, v};
}

static __device__ Element adamw_rounded(Element e, Constants k)
{
    float g = __fadd_rn(__fmul_rn(e.grad, k.grad_scale), __fmul_rn(k.l2, e.p));
    float m = __fadd_rn(__fmul_rn(k.beta1, e.m), __fmul_rn(k.rest1, g));
    float v = __fadd_rn(__fmul_rn(k.beta2, e.v), __fmul_rn(k.rest2, __fmul_rn(g, g)));
    float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v), k.root_correction), k.epsilon);
    float update = __fmul_rn(k.step, __fdiv_rn(m, root));
    return Element{__fsub_rn(e.p, __fadd_rn(update, __fmul_rn(k.decay, e.p))), e.grad, m, v};
}

static __global__ void adamw_kernel(Element *out, const Element *in, Constants k, bool rounded)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    out[i] = rounded ? adamw_rounded(in[i], k) : adamw_plain(in[i], k);
}

/* +-2^[low, high), uniform in the exponent. */
static float spread(uint32_t seed, double low, double high)
{
    double x = exp2(low + (high - low) * probe_hash(seed) * 0x1p-32);
    return (float)(probe_hash(seed ^ 0x80000000u) & 1 ? -x : x);
}

/* Weights around 2^-6, gradients and moments down to where g^2 is denormal or 0. */
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

static void ask_adamw(const char *kind, Constants k)
{
    const size_t bytes = sizeof(Element) * N;
    Element *in = (Element *)host_array(bytes), *host = (Element *)host_array(bytes);
    Element *got = (Element *)host_array(bytes), *d_in = (Element *)device_array(bytes);
    Element *d_out = (Element *)device_array(bytes);
    fill_elements(in);
    for (int64_t i = 0; i < N; i++)
        host[i] = adamw_plain(in[i], k);
    CUDA_OK(cudaMemcpy(d_in, in, bytes, cudaMemcpyHostToDevice));
    for (int rounded = 1; rounded >= 0; rounded--) {
        adamw_kernel<<<BLOCKS, BLOCK>>>(d_out, d_in, k, rounded);
        cudaError_t code = fetch(got, d_out, bytes);
        print_mismatches(probe_name("bits.adamw.%s.%s.mismatches", kind,
                                    rounded ? "each_rounded" : "contracted"),
                         count_mismatches(host, got, sizeof(Element)), code);
    }
    CUDA_OK(cudaFree(d_in));
    CUDA_OK(cudaFree(d_out));
    free(in);
    free(host);
    free(got);
}

int main(void)
{
    Constants k = {.grad_scale = 0.7341f,
                   .decay = 6e-4f * 0.1f,
                   .l2 = 0.0f,
                   .beta1 = 0.9f,
                   .rest1 = (float)(1.0 - 0.9),
                   .beta2 = 0.95f,
                   .rest2 = (float)(1.0 - 0.95),
                   .step = 6e-4f / 0.271f,
                   .root_correction = (float)(1.0 / sqrt(0.142625)),
                   .epsilon = 1e-8f};
    Constants coupled = k;
    coupled.decay = 0.0f;
    coupled.l2 = 0.01f;
    probe_device();
    probe_word("host.products_rounded_before_sums", own_math_uncontracted() ? "yes" : "no");
    uint32_t *words = (uint32_t *)host_array(sizeof(uint32_t) * 4 * N);
    ask_philox(words);
    ask_normals(words);
    ask_own_errors(words);
    ask_adamw("decoupled", k);
    ask_adamw("coupled", coupled);
    free(words);
    return 0;
}
