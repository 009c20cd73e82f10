/* test_ptx.cu -- the products of model/kernels/cuda/ptx.cuh: which lane and register holds which
 * element, written down here from the index formulas of the PTX ISA (mma.m16n8k16), and what the
 * arithmetic promises. On a GPU it asks the instructions, emulated the twin in tests/emu. Elements
 * carry distinct values, so that no two can change places unseen. Skipped where no CUDA device is.
 */
#include "model/kernels/cuda/ptx.cuh"
#include "tests/support/device/kernel_test.cuh"

#include <stdlib.h>
#include <string.h>

enum { M = 16, N = 8, K = 16, A_SLOTS = 8, B_SLOTS = 4, D_SLOTS = 4 };

/* The types of 16 bits, as model/core/dtype.h converts them. */
template <class T> static DType dtype_of(void);
template <> DType dtype_of<bf16>(void)
{
    return BF16;
}
template <> DType dtype_of<f16>(void)
{
    return F16;
}

template <class T> static uint32_t bits_of(double x)
{
    uint16_t bits;
    dtype_set(dtype_of<T>(), &bits, 0, x);
    return bits;
}

template <class T> static double value_of(uint32_t bits)
{
    uint16_t half = (uint16_t)bits;
    return dtype_get(dtype_of<T>(), &half, 0);
}

/* ---- products: layout ------------------------------------------------------------------------ */

/* One product: the matrices, and the registers of 32 lanes. */
typedef struct {
    double a[M][K], b[K][N], c[M][N];
} Matrices;

typedef struct {
    uint32_t a[WARP][4], b[WARP][2];
    float d[WARP][4];
} Registers;

typedef struct {
    int row, column;
} Element;

/* The ISA's formulas for .f16 and .bf16: groupID = laneid >> 2, threadID_in_group = laneid % 4. */
static Element a_place(int lane, int i)
{
    int group = lane >> 2, in_group = lane % 4;
    int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
    int column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
    return Element{row, column};
}

static Element b_place(int lane, int i)
{
    int group = lane >> 2, in_group = lane % 4;
    return Element{i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8, group};
}

static Element d_place(int lane, int i)
{
    int group = lane >> 2, in_group = lane % 4;
    return Element{i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

template <class T> static void spread(Registers *r, const Matrices *m)
{
    memset(r, 0, sizeof *r);
    for (int lane = 0; lane < WARP; lane++) {
        for (int i = 0; i < A_SLOTS; i++) {
            Element p = a_place(lane, i);
            r->a[lane][i / 2] |= bits_of<T>(m->a[p.row][p.column]) << (i % 2 * 16);
        }
        for (int i = 0; i < B_SLOTS; i++) {
            Element p = b_place(lane, i);
            r->b[lane][i / 2] |= bits_of<T>(m->b[p.row][p.column]) << (i % 2 * 16);
        }
        for (int i = 0; i < D_SLOTS; i++) {
            Element p = d_place(lane, i);
            r->d[lane][i] = (float)m->c[p.row][p.column];
        }
    }
}

/* c + a b, and the sum of the terms' magnitudes. */
static double product_at(const Matrices *m, Element p, double *magnitude)
{
    double sum = m->c[p.row][p.column], most = fabs(sum);
    for (int k = 0; k < K; k++) {
        sum += m->a[p.row][k] * m->b[k][p.column];
        most += fabs(m->a[p.row][k] * m->b[k][p.column]);
    }
    *magnitude = most;
    return sum;
}

/* Block i multiplies r[i]. */
template <class T> __global__ void __launch_bounds__(WARP) mma_kernel(Registers *r)
{
    Registers *own = r + blockIdx.x;
    int lane = threadIdx.x;
    uint32_t a[4];
    float d[4];
    for (int i = 0; i < 4; i++)
        a[i] = own->a[lane][i];
    for (int i = 0; i < 4; i++)
        d[i] = own->d[lane][i];
    mma<T>(d, a, own->b[lane][0], own->b[lane][1]);
    for (int i = 0; i < 4; i++)
        own->d[lane][i] = d[i];
}

/* Every D of `runs` products is within `ulps` units of 2^-23 of its terms' magnitudes. */
template <class T> static void check_products(const Matrices *m, int runs, double ulps)
{
    Registers *r = (Registers *)malloc((size_t)runs * sizeof *r);
    for (int run = 0; run < runs; run++)
        spread<T>(&r[run], &m[run]);
    Registers *on = on_device(r, runs);
    LAUNCH(mma_kernel<T>, runs, WARP, 0, 0, on);
    back(r, on, runs);
    for (int run = 0; run < runs; run++)
        for (int lane = 0; lane < WARP; lane++)
            for (int i = 0; i < D_SLOTS; i++) {
                double magnitude, want = product_at(&m[run], d_place(lane, i), &magnitude);
                if (!(fabs((double)r[run].d[lane][i] - want) <= ulps * 0x1p-23 * magnitude))
                    fail_msg("%s product %d, lane %d, d[%d]: %.9g, not %.9g",
                             dtype_name(dtype_of<T>()), run, lane, i, (double)r[run].d[lane][i],
                             want);
            }
    free(r);
}

/* One element of A at a time, against B of 128 distinct integers and C of 128 others: the products
 * are linear in A, so these runs name, for every element of A, each partner and each target. */
template <class T> static void check_layout(void)
{
    Matrices *m = (Matrices *)calloc(M * K, sizeof *m);
    for (int run = 0; run < M * K; run++) {
        m[run].a[run / K][run % K] = 1;
        for (int i = 0; i < K * N; i++)
            m[run].b[i / N][i % N] = 1 + i * 37 % (K * N);
        for (int i = 0; i < M * N; i++)
            m[run].c[i / N][i % N] = 1000 * (1 + i * 53 % (M * N));
    }
    check_products<T>(m, M * K, 0);
    free(m);
}

static void test_mma_layout(void **)
{
    need_gpu();
    check_layout<bf16>();
    check_layout<f16>();
}

/* ---- products: arithmetic -------------------------------------------------------------------- */

/* `low` <= values <= `high`, integers where asked for. */
static void draw(Matrices *m, double low, double high, bool integers, uint32_t seed)
{
    double *x = &m->a[0][0], span = high - low;
    for (int i = 0; i < M * K + K * N + M * N; i++) {
        double u = drawn((uint32_t)i * 64 + seed);
        x[i] = integers ? low + floor(u * (span + 1)) : low + u * span;
    }
}

template <class T> static void round_factors(Matrices *m)
{
    double *x = &m->a[0][0];
    for (int i = 0; i < M * K + K * N; i++)
        x[i] = value_of<T>(bits_of<T>(x[i]));
    for (int i = 0; i < M * N; i++)
        m->c[i / N][i % N] = (double)(float)m->c[i / N][i % N];
}

/* Products of factors of at most 11 bits are exact in f32. Their sums are f32's, in any order, and
 * may cut off instead of rounding (the ISA: "at least single precision", order and rounding not
 * said): an addition of 17 terms loses less than one unit of the largest for each, and one more for
 * the result. Handling of subnormal factors is not said either, so none is asked for. */
template <class T> static void check_arithmetic(void)
{
    enum { RUNS = 24, TERMS = K + 1 };
    static Matrices m[RUNS];
    for (int run = 0; run < RUNS; run++)
        draw(&m[run], -15, 15, true, (uint32_t)run);
    check_products<T>(m, RUNS, 0);
    for (int run = 0; run < RUNS; run++) {
        draw(&m[run], -2, 2, false, (uint32_t)run);
        if (run % 2) /* a large sum before: what is added is not lost */
            for (int i = 0; i < M * N; i++)
                m[run].c[i / N][i % N] *= 300;
        round_factors<T>(&m[run]);
    }
    check_products<T>(m, RUNS, TERMS + 1);
    /* Sums that f16 could not hold. */
    draw(&m[0], 500, 2000, true, 7);
    round_factors<T>(&m[0]);
    check_products<T>(m, 1, TERMS + 1);
}

/* What is not finite stays visible, in its row alone: loss scaling rests on it. */
template <class T> static void check_not_finite(double x)
{
    Matrices m;
    Registers r;
    draw(&m, 1, 9, true, 3);
    m.a[5][9] = x;
    spread<T>(&r, &m);
    Registers *on = on_device(&r, 1);
    LAUNCH(mma_kernel<T>, 1, WARP, 0, 0, on);
    back(&r, on, 1);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < D_SLOTS; i++)
            if (isfinite(r.d[lane][i]) == (d_place(lane, i).row == 5))
                fail_msg("%s with %g: lane %d, d[%d] = %g", dtype_name(dtype_of<T>()), x, lane, i,
                         (double)r.d[lane][i]);
}

static void test_mma_arithmetic(void **)
{
    need_gpu();
    check_arithmetic<bf16>();
    check_arithmetic<f16>();
    const double not_finite[] = {INFINITY, -INFINITY, NAN};
    for (double x : not_finite) {
        check_not_finite<bf16>(x);
        check_not_finite<f16>(x);
    }
}

/* ---- two elements in a register -------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(WARP)
    pair_kernel(uint32_t *out, const float *low, const float *high, int n)
{
    for (int i = threadIdx.x; i < n; i += WARP)
        out[i] = pair<T>(low[i], high[i]);
}

template <class T> static bool is_rounded(uint32_t bits, float x)
{
    double got = value_of<T>(bits);
    return isnan(x) ? isnan(got) : bits == bits_of<T>(x);
}

/* Every 16-bit value's neighbourhood: itself, the tie above it, and an f32 to either side. */
template <class T> static void check_pair(void)
{
    enum { COUNT = 4 * 65536 };
    float *x = (float *)malloc(COUNT * sizeof *x), *y = (float *)malloc(COUNT * sizeof *y);
    uint32_t *out = (uint32_t *)malloc(COUNT * sizeof *out);
    for (int i = 0; i < COUNT; i++) {
        float here = (float)value_of<T>((uint32_t)i / 4);
        float tie = (float)((value_of<T>((uint32_t)i / 4) + value_of<T>((uint32_t)i / 4 + 1)) / 2);
        x[i] = i % 4 == 0 ? here : i % 4 == 1 ? tie : nextafterf(tie, i % 4 == 2 ? 1e38f : -1e38f);
        y[COUNT - 1 - i] = x[i];
    }
    float *on_x = on_device(x, COUNT), *on_y = on_device(y, COUNT);
    uint32_t *on_out = on_device<uint32_t>(NULL, COUNT);
    LAUNCH(pair_kernel<T>, 1, WARP, 0, 0, on_out, on_x, on_y, (int)COUNT);
    back(out, on_out, COUNT);
    CUDA_CHECK(cudaFree(on_x));
    CUDA_CHECK(cudaFree(on_y));
    for (int i = 0; i < COUNT; i++)
        if (!is_rounded<T>(out[i] & 0xffff, x[i]) || !is_rounded<T>(out[i] >> 16, y[i]))
            fail_msg("%s pair of %a and %a: %08x", dtype_name(dtype_of<T>()), (double)x[i],
                     (double)y[i], out[i]);
    free(x);
    free(y);
    free(out);
}

static void test_pair(void **)
{
    need_gpu();
    check_pair<bf16>();
    check_pair<f16>();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma_layout),
        cmocka_unit_test(test_mma_arithmetic),
        cmocka_unit_test(test_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
