/* test_ptx.cu -- tests the matrix products (mma) of model/kernels/cuda/ptx.cuh: which lane and
 * register holds which element, and the accuracy of the arithmetic. The layouts are written down
 * here again, from the index formulas of the PTX ISA for mma.m16n8k16. On a GPU this tests the
 * instructions, on emulated devices the file of the same name in tests/emu. All elements have
 * different values, so swapped elements are detected. Skipped if there is no CUDA device. */
#include "model/kernels/cuda/ptx.cuh"
#include "tests/support/device/kernel_test.cuh"

#include <stdlib.h>
#include <string.h>

enum { M = 16, N = 8, K = 16, A_SLOTS = 8, B_SLOTS = 4, D_SLOTS = 4 };

/* Returns the DType that corresponds to a 16-bit type of CUDA, for the conversions in
 * model/core/dtype.h. */
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

/* The operands of one product; Registers, below, has the registers of the 32 lanes that hold
 * them. */
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

/* Return which element of A, B or D a lane holds at position i, by the ISA's formulas for .f16 and
 * .bf16, with groupID = laneid >> 2 and threadID_in_group = laneid % 4. */
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

/* Returns c + a b, and sets *magnitude to the sum of the absolute values of the terms. */
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

/* Block i computes the product whose registers are r[i]. */
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

/* Checks that every element of D in `runs` products is exact to `ulps` units of 2^-23 times the sum
 * of its terms' magnitudes. */
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

/* Sets one element of A at a time to 1, with 128 distinct integers in B and 128 others in C.
 * Products are linear in A, so these runs show, for every element of A, which elements of B it is
 * multiplied by and which elements of D it is added to. */
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

static void test_mma_lanes_hold_the_elements_that_the_isa_specifies(void **)
{
    need_gpu();
    check_layout<bf16>();
    check_layout<f16>();
}

/* ---- products: arithmetic -------------------------------------------------------------------- */

/* Draws all elements uniformly from the range low to high, as integers if `integers`. */
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

/* Tests the accuracy. Products of factors of at most 11 bits are exact in f32. They may be added in
 * any order and truncated instead of rounded: the ISA promises "at least single precision" and
 * specifies neither order nor rounding. Each of the 17 additions therefore loses less than one unit
 * of the largest term, and the result one more. The ISA does not specify subnormal factors either,
 * so they are not tested. */
template <class T> static void check_arithmetic(void)
{
    enum { RUNS = 24, TERMS = K + 1 };
    static Matrices m[RUNS];
    for (int run = 0; run < RUNS; run++)
        draw(&m[run], -15, 15, true, (uint32_t)run);
    check_products<T>(m, RUNS, 0);
    for (int run = 0; run < RUNS; run++) {
        draw(&m[run], -2, 2, false, (uint32_t)run);
        if (run % 2) /* the products added to a large sum must not be lost */
            for (int i = 0; i < M * N; i++)
                m[run].c[i / N][i % N] *= 300;
        round_factors<T>(&m[run]);
    }
    check_products<T>(m, RUNS, TERMS + 1);
    /* sums that f16 could not hold */
    draw(&m[0], 500, 2000, true, 7);
    round_factors<T>(&m[0]);
    check_products<T>(m, 1, TERMS + 1);
}

/* Checks that a non-finite element of A makes exactly its own row of D non-finite. Loss scaling
 * relies on this to detect overflows. */
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

static void test_mma_sums_in_f32_and_keeps_non_finite_values(void **)
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

/* ---- pairs of elements in a register --------------------------------------------------------- */

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

/* Tests pair() around every 16-bit value: the value itself, the tie above it, and the f32 numbers
 * on both sides of the tie. */
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

static void test_pair_rounds_both_elements_to_nearest_even(void **)
{
    need_gpu();
    check_pair<bf16>();
    check_pair<f16>();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma_lanes_hold_the_elements_that_the_isa_specifies),
        cmocka_unit_test(test_mma_sums_in_f32_and_keeps_non_finite_values),
        cmocka_unit_test(test_pair_rounds_both_elements_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
