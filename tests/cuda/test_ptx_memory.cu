/* test_ptx_memory.cu -- tests the rest of model/kernels/cuda/ptx.cuh: ldmatrix against the index
 * formulas of the PTX ISA, asynchronous copies, stores of words, and approximate functions. See
 * test_ptx.cu. */
#include "model/kernels/cuda/ptx.cuh"
#include "tests/support/device/kernel_test.cuh"

#include <string.h>

/* ---- loading fragments from shared memory ---------------------------------------------------- */

/* Shared memory holds ROWS rows of 8 elements, all with different values. The rows of the lanes are
 * in a scrambled order, so using another lane's address is detected. */
enum { ROWS = 128, SIDE = 8 };

static __host__ __device__ int row_of_lane(int lane)
{
    return (lane * 37 + 11) % ROWS;
}

static __host__ __device__ uint32_t element(int row, int column)
{
    return (uint32_t)(0x8000 + row * SIDE + column);
}

template <int COUNT, bool TRANS>
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[COUNT], const uint16_t *row)
{
    if constexpr (COUNT == 4 && TRANS) ldmatrix_4_trans(r, row);
    if constexpr (COUNT == 4 && !TRANS) ldmatrix_4(r, row);
    if constexpr (COUNT == 2 && TRANS) ldmatrix_2_trans(r, row);
    if constexpr (COUNT == 2 && !TRANS) ldmatrix_2(r, row);
}

template <int COUNT, bool TRANS>
__global__ void __launch_bounds__(WARP) ldmatrix_kernel(uint32_t *out)
{
    DYN_SHARED(uint16_t, rows);
    int lane = threadIdx.x;
    uint32_t r[COUNT];
    for (int i = lane; i < ROWS * SIDE; i += WARP)
        rows[i] = (uint16_t)element(i / SIDE, i % SIDE);
    __syncwarp();
    load_matrices<COUNT, TRANS>(r, rows + row_of_lane(lane) * SIDE);
    for (int i = 0; i < COUNT; i++)
        out[lane * COUNT + i] = r[i];
}

/* Checks ldmatrix against the ISA: of matrix i, thread l holds elements 2 (l % 4) and 2 (l % 4) + 1
 * of row l / 4 (with .trans: of column l / 4). Threads 8 i to 8 i + 7 pass the addresses of its
 * rows. */
template <int COUNT, bool TRANS> static void check_ldmatrix(void)
{
    uint32_t got[WARP * COUNT], *on = on_device<uint32_t>(NULL, WARP * COUNT);
    LAUNCH((ldmatrix_kernel<COUNT, TRANS>), 1, WARP, ROWS * SIDE * sizeof(uint16_t), 0, on);
    back(got, on, WARP * COUNT);
    for (int slot = 0; slot < WARP * COUNT * 2; slot++) {
        int lane = slot / 2 / COUNT, i = slot / 2 % COUNT, half = slot % 2;
        int line = lane / 4, along = 2 * (lane % 4) + half;
        int row = TRANS ? along : line, column = TRANS ? line : along;
        uint32_t want = element(row_of_lane(8 * i + row), column);
        if ((got[lane * COUNT + i] >> (16 * half) & 0xffff) != want)
            fail_msg("ldmatrix_%d%s, lane %d, r[%d] = %08x: half %d is not %04x", COUNT,
                     TRANS ? "_trans" : "", lane, i, got[lane * COUNT + i], half, want);
    }
}

static void test_ldmatrix_loads_the_elements_that_the_isa_specifies(void **)
{
    need_gpu();
    check_ldmatrix<4, false>();
    check_ldmatrix<4, true>();
    check_ldmatrix<2, false>();
    check_ldmatrix<2, true>();
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

enum { COPIERS = 64, STAGES = 4, CELL = 16 };

/* Shared memory has two cells of 16 bytes for each thread. Thread i copies the first i % 17 of its
 * 16 bytes into cell 2 i; no thread copies into the odd cells. out receives all cells. */
static __global__ void __launch_bounds__(COPIERS) copy_part_kernel(uint8_t *out, const uint8_t *x)
{
    DYN_SHARED(uint8_t, cells);
    int i = threadIdx.x;
    for (int at = i; at < 2 * COPIERS * CELL; at += COPIERS)
        cells[at] = 0xa5;
    __syncthreads();
    cp_async_16(cells + 2 * i * CELL, x + i * CELL, i % (CELL + 1));
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int at = i; at < 2 * COPIERS * CELL; at += COPIERS)
        out[at] = cells[at];
}

static void test_partial_async_copies_fill_the_rest_with_zeros(void **)
{
    need_gpu();
    uint8_t x[COPIERS * CELL], out[2 * COPIERS * CELL];
    for (int i = 0; i < COPIERS * CELL; i++)
        x[i] = (uint8_t)(1 + i % 251);
    uint8_t *on_x = on_device(x, sizeof x), *on_out = on_device<uint8_t>(NULL, sizeof out);
    LAUNCH(copy_part_kernel, 1, COPIERS, sizeof out, 0, on_out, on_x);
    back(out, on_out, sizeof out);
    CUDA_CHECK(cudaFree(on_x));
    for (int at = 0; at < (int)sizeof out; at++) {
        int cell = at / CELL, i = cell / 2, byte = at % CELL;
        int want = cell % 2 ? 0xa5 : byte < i % (CELL + 1) ? x[i * CELL + byte] : 0;
        if (out[at] != want)
            fail_msg("a copy of %d bytes: byte %d is %d, not %d", i % (CELL + 1), byte, out[at],
                     want);
    }
}

/* After the wait that covers stage s, a thread must see its own copy (stored in out[s][0]), and
 * after a barrier also those of other threads (the opposite thread's is stored in out[s][1]). One
 * group is empty. */
template <int S>
static __device__ __forceinline__ void look_at_stage(uint4 *out, const uint4 *stages)
{
    int i = threadIdx.x;
    cp_async_wait<STAGES - S>(); /* leaves the groups of the later stages and the empty one */
    out[2 * S * COPIERS + i] = stages[S * COPIERS + i];
    __syncthreads();
    out[(2 * S + 1) * COPIERS + i] = stages[S * COPIERS + COPIERS - 1 - i];
}

static __global__ void __launch_bounds__(COPIERS) copy_stages_kernel(uint4 *out, const uint4 *x)
{
    DYN_SHARED(uint4, stages);
    int i = threadIdx.x;
    for (int s = 0; s < STAGES; s++) {
        cp_async_16(stages + s * COPIERS + i, x + s * COPIERS + i);
        cp_async_commit();
    }
    cp_async_commit();
    look_at_stage<0>(out, stages);
    look_at_stage<1>(out, stages);
    look_at_stage<2>(out, stages);
    look_at_stage<3>(out, stages);
}

static void test_async_copies_are_visible_after_the_wait_for_their_group(void **)
{
    need_gpu();
    static uint4 x[STAGES * COPIERS], out[2 * STAGES * COPIERS];
    for (unsigned i = 0; i < STAGES * COPIERS; i++)
        x[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
    uint4 *on_x = on_device(x, STAGES * COPIERS);
    uint4 *on_out = on_device<uint4>(NULL, 2 * STAGES * COPIERS);
    LAUNCH(copy_stages_kernel, 1, COPIERS, sizeof x, 0, on_out, on_x);
    back(out, on_out, 2 * STAGES * COPIERS);
    CUDA_CHECK(cudaFree(on_x));
    for (int at = 0; at < 2 * STAGES * COPIERS; at++) {
        int s = at / COPIERS / 2, i = at % COPIERS;
        int from = at / COPIERS % 2 ? COPIERS - 1 - i : i;
        if (memcmp(&out[at], &x[s * COPIERS + from], sizeof *x) != 0)
            fail_msg("stage %d, thread %d, the copy of %d", s, i, from);
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* Thread i stores four words in out[3 i], and two words in the second half of out[3 i + 1]. */
static __global__ void __launch_bounds__(COPIERS) store_kernel(uint4 *out)
{
    uint32_t i = threadIdx.x, four[4] = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}, two[2] = {i, ~i};
    store_words(out + 3 * i, four);
    store_words((uint2 *)(out + 3 * i + 1) + 1, two);
}

static void test_stores_of_words_write_their_bytes_and_no_others(void **)
{
    need_gpu();
    enum { CELLS = 3 * COPIERS };
    static uint4 out[CELLS];
    memset(out, 0xa5, sizeof out);
    uint4 *on = on_device(out, CELLS);
    LAUNCH(store_kernel, 1, COPIERS, 0, 0, on);
    back(out, on, CELLS);
    const uint32_t none = 0xa5a5a5a5;
    for (uint32_t at = 0; at < CELLS; at++) {
        uint32_t i = at / 3;
        uint4 want = at % 3 == 0   ? make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3)
                     : at % 3 == 1 ? make_uint4(none, none, i, ~i)
                                   : make_uint4(none, none, none, none);
        if (memcmp(&out[at], &want, sizeof want) != 0)
            fail_msg("place %d is %08x %08x %08x %08x", (int)at, out[at].x, out[at].y, out[at].z,
                     out[at].w);
    }
}

/* ---- functions ------------------------------------------------------------------------------- */

enum { ARGUMENTS = 1 << 16, SPECIAL = 8 };

static __global__ void __launch_bounds__(WARP) functions_kernel(float *y, const float *x, bool exp2)
{
    for (int i = threadIdx.x; i < ARGUMENTS; i += WARP)
        y[i] = exp2 ? exp2_approx(x[i]) : reciprocal_approx(x[i]);
}

static int32_t order_of(float y)
{
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return bits < 0 ? INT32_MIN - bits : bits;
}

/* Checks that y is at most `most` representable numbers from `want`, the correctly rounded result.
 */
static void check_near(const char *name, float x, float y, float want, int most)
{
    if (isnan(want) ? isnan(y) : abs(order_of(y) - order_of(want)) <= most) return;
    fail_msg("%s of %a is %a, not %a", name, (double)x, (double)y, (double)want);
}

/* Computes the function of `special` and other arguments, which are 2^e with e between low and
 * high, or e itself, and compares the results with the bounds of the PTX ISA. */
static void check_function(bool exp2, const float *special, const float *want, double low,
                           double high)
{
    static float x[ARGUMENTS], y[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) {
        double e = low + (high - low) * drawn((uint32_t)i);
        x[i] = i < SPECIAL ? special[i] : (float)(exp2 ? e : (i % 2 ? 1 : -1) * ::exp2(e));
    }
    float *on_x = on_device(x, ARGUMENTS), *on_y = on_device<float>(NULL, ARGUMENTS);
    LAUNCH(functions_kernel, 1, WARP, 0, 0, on_y, on_x, exp2);
    back(y, on_y, ARGUMENTS);
    CUDA_CHECK(cudaFree(on_x));
    for (int i = 0; i < ARGUMENTS; i++)
        if (i < SPECIAL)
            check_near(exp2 ? "2^x" : "1/x", x[i], y[i], want[i], 0);
        else
            check_near(exp2 ? "2^x" : "1/x", x[i], y[i],
                       (float)(exp2 ? ::exp2((double)x[i]) : 1 / (double)x[i]), exp2 ? 2 : 1);
}

static void test_approximate_functions_err_no_more_than_the_isa_allows(void **)
{
    need_gpu();
    const float infinite = INFINITY, nan = NAN;
    const float exponent[SPECIAL] = {-infinite, 0, -0.0f, -127, -1000, infinite, 0x1p-130f, nan};
    const float power[SPECIAL] = {0, 1, 1, 0, 0, infinite, 1, nan};
    check_function(true, exponent, power, -125.9, 127.9);
    const float divisor[SPECIAL] = {0,         -0.0f,     infinite, -infinite,
                                    0x1p-130f, -0x1p127f, 0x1p127f, nan};
    const float quotient[SPECIAL] = {infinite, -infinite, 0, -0.0f, infinite, -0.0f, 0, nan};
    check_function(false, divisor, quotient, -125.9, 125.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ldmatrix_loads_the_elements_that_the_isa_specifies),
        cmocka_unit_test(test_partial_async_copies_fill_the_rest_with_zeros),
        cmocka_unit_test(test_async_copies_are_visible_after_the_wait_for_their_group),
        cmocka_unit_test(test_stores_of_words_write_their_bytes_and_no_others),
        cmocka_unit_test(test_approximate_functions_err_no_more_than_the_isa_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
