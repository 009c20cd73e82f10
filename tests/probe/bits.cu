/* bits.cu -- compares results of the device bitwise with results of the CPU, for the computations
 * of the CUDA backend (see bits.h). It is compiled like the backend, without contraction of
 * products and sums (scripts/gpu_probe.sh passes -fmad=false). It also tries CUDA's own log and
 * sincospi, to see whether the program's versions are needed, and measures the errors of the
 * program's versions on the host in long double. */
#include "tests/probe/bits.h"

/* Computes the same normals with CUDA's functions instead of the program's. */
static __global__ void cuda_math_kernel(Normals *out, const uint32_t *words)
{
    uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    const uint32_t *w = words + 4 * (size_t)i;
    Normals n;
    double u = 1.0 - (double)(draw_a(w) >> 12) * 0x1p-52, v = (double)(draw_b(w) >> 12) * 0x1p-52;
    double part = part_of_quarter(draw_b(w)), sine, cosine;
    n.log = log(u);
    sincospi(0.5 * part, &n.sine, &n.cosine);
    sincospi(2.0 * v, &sine, &cosine);
    n.pair.even = sqrt(-2.0 * n.log) * cosine;
    n.pair.odd = sqrt(-2.0 * n.log) * sine;
    out[i] = n;
}

static double ulps(double value, long double exact)
{
    int exponent;
    if (exact == 0.0L) return value == 0.0 ? 0.0 : HUGE_VAL;
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)value - exact) / ldexpl(1.0L, exponent - 53));
}

/* Measures the program's functions against the C library's long double functions. */
static void ask_own_errors(const uint32_t *words, const Normals *host)
{
    const long double quarter_turn = 1.5707963267948966192313216916397514L;
    double log_most = 0, sine_most = 0, cosine_most = 0;
    for (int64_t i = 0; i < N; i++) {
        const uint32_t *w = words + 4 * i;
        double u = 1.0 - (double)(draw_a(w) >> 12) * 0x1p-52;
        long double t = (long double)part_of_quarter(draw_b(w)) * quarter_turn;
        log_most = fmax(log_most, ulps(host[i].log, logl((long double)u)));
        sine_most = fmax(sine_most, ulps(host[i].sine, sinl(t)));
        cosine_most = fmax(cosine_most, ulps(host[i].cosine, cosl(t)));
    }
    probe_number("host.log.error", log_most, "ulp");
    probe_number("host.sin.error", sine_most, "ulp");
    probe_number("host.cos.error", cosine_most, "ulp");
}

int main(void)
{
    probe_device();
    probe_word("host.products_rounded_before_sums", host_rounds_products() ? "yes" : "no");
    uint32_t *words = (uint32_t *)host_array(sizeof(uint32_t) * 4 * N);
    ask_bits("uncontracted", words);
    Normals *host = host_normals(words);
    ask_normals("cuda_math", cuda_math_kernel, words, host);
    ask_own_errors(words, host);
    free(host);
    free(words);
    return 0;
}
