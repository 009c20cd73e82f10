/* test_emu_wgmma.cc -- tests of the emulated products of warpgroups: correct kernels give the
 * product in every order of threads, executed late and early, and each planted bug is detected. */
#include "tests/emu/device/planted_wgmma.cuh"

#include "tests/emu/device/last_words.h"

static const char *const ORDERS[] = {"forward", "reverse", "shuffled"};
static const char *const TIMES[] = {"late", "early"};

enum {
    MOST_N = 128,
    SHARED = WG_ATOM + (WG_M + MOST_N) * WG_K * 2,
    DESCRIBED = WG_ATOM + MOST_N * WG_LINE
};

/* ---- helpers --------------------------------------------------------------------------------- */

template <class T> static T *device_copy_of(const T *x, int n)
{
    T *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, (size_t)n * sizeof(T)));
    if (x) CUDA_CHECK(cudaMemcpy(p, x, (size_t)n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* Returns a small integer without a pattern. */
static float number(int i)
{
    return floorf((float)((uint32_t)i * 2654435761u >> 8) / 0x1p24f * 13) - 6;
}

/* The operands of a product, on the host and on the device, and the result. */
template <class T> struct Case {
    float a[WG_M * WG_K], b[WG_K * MOST_N], want[WG_M * MOST_N], got[WG_M * MOST_N];
    T *on_a, *on_b;
    float *out;
    Case(int n, bool b_mn, float start);
    bool right(int n);
    ~Case();
};

/* b is (WG_K, n) on the host; on the device it is transposed unless b_mn. */
template <class T> Case<T>::Case(int n, bool b_mn, float start)
{
    T x[WG_M * WG_K], y[WG_K * MOST_N];
    for (int i = 0; i < WG_M * WG_K; i++)
        x[i] = from_float<T>(a[i] = number(i));
    for (int i = 0; i < WG_K * n; i++) {
        b[i] = number(i + 12345);
        y[b_mn ? i : i % n * WG_K + i / n] = from_float<T>(b[i]);
    }
    for (int i = 0; i < WG_M * n; i++) {
        want[i] = start;
        for (int k = 0; k < WG_K; k++)
            want[i] += a[i / n * WG_K + k] * b[k * n + i % n];
    }
    on_a = device_copy_of(x, WG_M * WG_K);
    on_b = device_copy_of(y, WG_K * n);
    out = device_copy_of<float>(NULL, WG_M * n);
}

template <class T> bool Case<T>::right(int n)
{
    CUDA_CHECK(cudaMemcpy(got, out, (size_t)(WG_M * n) * sizeof *got, cudaMemcpyDeviceToHost));
    return memcmp(got, want, (size_t)(WG_M * n) * sizeof *got) == 0;
}

template <class T> Case<T>::~Case()
{
    CUDA_CHECK(cudaFree(on_a));
    CUDA_CHECK(cudaFree(on_b));
    CUDA_CHECK(cudaFree(out));
}

#define DIES(statements, ...)                                                                      \
    dies_saying(                                                                                   \
        #statements,                                                                               \
        [] {                                                                                       \
            float *out = device_copy_of<float>(NULL, WG_M * MOST_N);                               \
            (void)out;                                                                             \
            statements;                                                                            \
            CUDA_CHECK(cudaDeviceSynchronize());                                                   \
        },                                                                                         \
        __VA_ARGS__, NULL)

/* ---- products -------------------------------------------------------------------------------- */

template <class T, int N, bool REGISTERS, bool B_MN> static void check_product(void)
{
    for (int start = 0; start < 2; start++) {
        Case<T> c(N, B_MN, (float)start * 3);
        LAUNCH((wg_product_kernel<T, N, REGISTERS, B_MN>), 2, WG_THREADS, SHARED, 0, c.out, c.on_a,
               c.on_b, (float)start * 3);
        if (!c.right(N))
            fail_msg("wrong product: %s, n = %d, A in %s, B %s-major, start %d",
                     sizeof(T) == 2 && from_float<T>(1).bits == 0x3f80 ? "bf16" : "f16", N,
                     REGISTERS ? "registers" : "shared memory", B_MN ? "MN" : "K", start);
    }
}

template <class T, int N> static void check_products(void)
{
    check_product<T, N, false, false>();
    check_product<T, N, false, true>();
    check_product<T, N, true, false>();
    check_product<T, N, true, true>();
}

static void test_products_are_right_in_every_order_of_threads(void **)
{
    for (const char *time : TIMES)
        for (const char *order : ORDERS) {
            setenv("EMU_ASYNC", time, 1);
            setenv("EMU_ORDER", order, 1);
            check_products<bf16, 64>();
            check_products<bf16, 128>();
            check_products<f16, 64>();
            check_products<f16, 128>();
        }
    unsetenv("EMU_ASYNC");
    unsetenv("EMU_ORDER");
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static const uint64_t ONE = 1;

template <int N, bool B_MN> static void run_descriptor(uint64_t invert_a, uint64_t invert_b)
{
    float *out = device_copy_of<float>(NULL, 2 * WG_THREADS);
    LAUNCH((wg_descriptor_kernel<N, B_MN>), 1, WG_THREADS, DESCRIBED, 0, out, invert_a, invert_b);
}

static void test_invalid_descriptors_are_detected(void **)
{
    run_descriptor<64, false>(0, 0);
    run_descriptor<128, false>(0, 0);
    run_descriptor<128, true>(0, 0);
    run_descriptor<64, false>(6, 4); /* steps of 96 and 64 bytes */
    DIES((run_descriptor<64, false>(ONE << 62, 0)), "the descriptor of A", "has the swizzle mode 0",
         "wg_descriptor_kernel");
    DIES((run_descriptor<64, false>(0, ONE << 63)), "the descriptor of B",
         "has the swizzle mode 3");
    DIES((run_descriptor<64, false>(0, ONE << 14)), "the descriptor of B", "bits that must be 0");
    DIES((run_descriptor<64, false>(0, ONE << 46)), "the descriptor of B", "bits that must be 0");
    DIES((run_descriptor<64, false>(ONE << 50, 0)), "the descriptor of A has a base offset of 2");
    DIES((run_descriptor<64, false>(8, 0)), "wgmma_shared: A starts at address",
         "128 bytes after a multiple of 1024");
    DIES((run_descriptor<64, false>(7, 0)), "112 bytes after a multiple of 1024",
         "at most 96 are possible");
    DIES((run_descriptor<64, true>(0, 2)), "B starts at address", "32 bytes after a multiple",
         "0 is the only one possible");
    DIES((run_descriptor<64, false>(ONE << 37, 0)), "the stride of A is 1536 bytes",
         "multiple of 1024");
    DIES((run_descriptor<64, false>(0, ONE << 38)), "the stride of B is 0 bytes");
    DIES((run_descriptor<128, true>(0, ONE << 25)), "the leading offset of B", "is 0 bytes");
    DIES((run_descriptor<128, true>(0, ONE << 16)), "the leading offset of B", "is 8208 bytes");
    DIES((run_descriptor<64, false>(0, ONE << 13)), "reads B at addresses",
         "the block's shared memory is at");
    DIES((run_descriptor<64, true>(0, ONE << 42)), "reads B at addresses");
    DIES((run_descriptor<128, true>(0, ONE << 26)), "reads B at addresses");
    DIES(LAUNCH(wg_address_kernel, 1, WG_THREADS, 64, 0, out), "an address of shared memory",
         "are not all in the block's 64 bytes of shared memory");
}

static uint64_t run_described(uint32_t address, uint32_t leading, uint32_t stride, uint32_t step)
{
    uint64_t *out = device_copy_of<uint64_t>(NULL, WG_THREADS), got;
    LAUNCH(wg_described_kernel, 1, WG_THREADS, 0, 0, out, address, leading, stride, step);
    CUDA_CHECK(cudaMemcpy(&got, out + 77, sizeof got, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(out));
    return got;
}

static void test_descriptor_fields_that_are_not_multiples_of_16_are_detected(void **)
{
    assert_true(run_described(1040, 16, 1024, 32) ==
                (ONE << 62) + (ONE * 64 << 32) + (1 << 16) + 1072 / 16);
    DIES(run_described(1032, 16, 1024, 32), "wgmma_descriptor: the address is 1032; it must be a",
         "wg_described_kernel");
    DIES(run_described(1040, 17, 1024, 32), "wgmma_descriptor: the leading offset is 17; it must");
    DIES(run_described(1040, 16, 1039, 32), "wgmma_descriptor: the stride is 1039; it must be a");
    DIES(run_described(1040, 16, 1024, 34), "wgmma_step: the number of bytes is 34; it must be a");
}

/* ---- the warpgroup --------------------------------------------------------------------------- */

template <Divergence D> static void run_diverging(void)
{
    float *out = device_copy_of<float>(NULL, WG_THREADS);
    LAUNCH(wg_diverging_kernel<D>, 1, WG_THREADS, DESCRIBED, 0, out);
}

static void test_incomplete_or_diverging_warpgroups_are_detected(void **)
{
    const char *whole = "the warpgroup diverges: ";
    for (int i = 0; i < 6; i++) {
        setenv("EMU_ORDER", ORDERS[i % 3], 1);
        setenv("EMU_ASYNC", TIMES[i / 3], 1);
        run_diverging<GROUP_RIGHT>();
        DIES(LAUNCH((wg_descriptor_kernel<64, false>), 1, 64, DESCRIBED, 0, out, 0, 0),
             "wgmma_shared by a warpgroup of 64 threads");
        DIES(LAUNCH((wg_descriptor_kernel<64, false>), 1, 192, DESCRIBED, 0, out, 0, 0),
             "wgmma_shared by a warpgroup of 64 threads");
        DIES(run_diverging<WARP_LEAVES_OUT>(),
             "the thread exits without taking part in wgmma_shared at |after threads of the "
             "warpgroup have left the kernel");
        DIES(run_diverging<WARP_IS_GONE>(),
             "the thread exits without taking part in wgmma_shared at |after threads of the "
             "warpgroup have left the kernel");
        DIES(run_diverging<OTHER_DESCRIPTOR>(), whole, "(a descriptor differs)");
        DIES(run_diverging<OTHER_SHAPE>(), whole, "n = 128", "n = 64");
        DIES(run_diverging<OTHER_PLACE>(), whole, "(the place differs)");
        DIES(run_diverging<OTHER_SUM>(), whole, "(whether D is added differs)");
        DIES(run_diverging<OTHER_GROUP>(), whole, "in group 1", "(the group differs)");
        DIES(run_diverging<OTHER_D>(), whole, "has another D than thread");
        DIES(run_diverging<EARLIER_D>(), whole, "is that of an earlier product, but not in thread");
        DIES(run_diverging<OTHER_WAIT>(), whole, "wgmma_wait for 1 groups while others wait");
        if (strcmp(TIMES[i / 3], "late") == 0)
            DIES(run_diverging<ONE_MORE>(), whole, "products and another one ");
        else
            DIES(run_diverging<ONE_MORE>(),
                 "has requested |after threads of the warpgroup have left");
    }
    unsetenv("EMU_ORDER");
    unsetenv("EMU_ASYNC");
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Returns whether the kernel's two products are right. */
template <Order FAULT> static bool order_right(const char *time, const char *order)
{
    setenv("EMU_ASYNC", time, 1);
    setenv("EMU_ORDER", order, 1);
    float want[2][WG_M * 64], got[2][WG_M * 64];
    Case<bf16> c(64, false, 0);
    for (int i = 0; i < WG_M * 64; i++) {
        want[0][i] = want[1][i] = 0;
        for (int k = 0; k < 32; k++) {
            float term = c.a[i / 64 * WG_K + k] * c.b[k * 64 + i % 64];
            want[0][i] += k < 16 ? term : 0;
            want[1][i] += term;
        }
    }
    float *out = device_copy_of<float>(NULL, 2 * WG_M * 64);
    LAUNCH(wg_order_kernel<FAULT>, 1, WG_THREADS, SHARED, 0, out, c.on_a, c.on_b);
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(out));
    unsetenv("EMU_ASYNC");
    unsetenv("EMU_ORDER");
    return memcmp(got, want, sizeof got) == 0;
}

static void test_wrong_order_of_products_and_accesses_is_detected(void **)
{
    for (const char *order : ORDERS) {
        for (const char *time : TIMES) {
            assert_true(order_right<ORDER_RIGHT>(time, order));
            assert_false(order_right<D_READ>(time, order));
            assert_false(order_right<D_READ_IN_NEXT_GROUP>(time, order));
        }
        assert_true(order_right<OPERAND_LATE>("late", order));
        assert_false(order_right<OPERAND_LATE>("early", order));
        assert_false(order_right<OPERAND_OVERWRITTEN>("late", order));
        assert_true(order_right<OPERAND_OVERWRITTEN>("early", order));
    }
    for (const char *time : TIMES) {
        setenv("EMU_ASYNC", time, 1);
        DIES(order_right<NO_FENCE>(getenv("EMU_ASYNC"), "forward"),
             "wgmma_registers without a wgmma_fence since the kernel's start");
        DIES(order_right<NO_FENCE_AFTER_WAIT>(getenv("EMU_ASYNC"), "forward"),
             "wgmma_registers without a wgmma_fence since the kernel's start");
        DIES(order_right<NO_PROXY_FENCE>(getenv("EMU_ASYNC"), "forward"),
             "wgmma_registers reads shared address", "stored without a proxy_fence");
        DIES(order_right<D_WRITTEN>(getenv("EMU_ASYNC"), "forward"), "D of wgmma_registers at ",
             "planted_wgmma.cuh:", "was written before a wait");
        DIES(order_right<D_OTHER_SHAPE>(getenv("EMU_ASYNC"), "forward"),
             "wgmma_registers with n = 128: D overlaps with D of wgmma_registers with n = 64");
        DIES(order_right<A_WRITTEN>(getenv("EMU_ASYNC"), "forward"), "the registers of A of wgmma",
             "changed, or their scope ended");
        DIES(order_right<NO_COMMIT>(getenv("EMU_ASYNC"), "forward"),
             "the thread exits with 2 products that no wgmma_commit has put in a group");
        DIES(order_right<NO_WAIT>(getenv("EMU_ASYNC"), "forward"),
             "the thread exits with 3 products under way for which no wgmma_wait has waited");
        DIES(order_right<TOO_MANY>(getenv("EMU_ASYNC"), "forward"), "more than 128 products");
        DIES(order_right<TOO_MANY_CHAINS>(getenv("EMU_ASYNC"), "forward"),
             "more than 16 incomplete chains");
    }
    DIES(order_right<ORDER_RIGHT>("soon", "forward"), "EMU_ASYNC is late or early, not \"soon\"");
}

static void test_warpgroups_of_a_block_compute_independently(void **)
{
    static float want[2][WG_M * 64], got[2][WG_M * 64];
    for (const char *time : TIMES)
        for (const char *order : ORDERS) {
            setenv("EMU_ASYNC", time, 1);
            setenv("EMU_ORDER", order, 1);
            Case<bf16> c(64, false, 0);
            for (int i = 0; i < WG_M * 64; i++) {
                want[0][i] = 0;
                for (int k = 0; k < WG_K; k++)
                    want[0][i] += c.a[i / 64 * WG_K + k] * c.a[i % 64 * WG_K + k];
                want[1][i] = want[0][i];
            }
            float *out = device_copy_of<float>(NULL, 2 * WG_M * 64);
            LAUNCH(wg_several_kernel, 3, 3 * WG_THREADS, SHARED, 0, out, c.on_a);
            CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
            CUDA_CHECK(cudaFree(out));
            assert_memory_equal(got, want, sizeof got);
        }
    unsetenv("EMU_ASYNC");
    unsetenv("EMU_ORDER");
}

/* Returns whether the product is right. */
template <class Launch>
static bool first_product_right(const char *time, const char *order, bool itself, Launch launch)
{
    setenv("EMU_ASYNC", time, 1);
    setenv("EMU_ORDER", order, 1);
    float want[WG_M * 64], got[WG_M * 64];
    Case<bf16> c(64, false, 0);
    for (int i = 0; i < WG_M * 64; i++) {
        want[i] = 0;
        for (int k = 0; k < 16; k++)
            want[i] +=
                c.a[i / 64 * WG_K + k] * (itself ? c.a[i % 64 * WG_K + k] : c.b[k * 64 + i % 64]);
    }
    launch(c);
    CUDA_CHECK(cudaMemcpy(got, c.out, sizeof got, cudaMemcpyDeviceToHost));
    unsetenv("EMU_ASYNC");
    unsetenv("EMU_ORDER");
    return memcmp(got, want, sizeof got) == 0;
}

/* `one`: with RELEASE_FOR_ALL, the warp that says that all four warps have read b. */
template <Release FAULT> static bool release_right(const char *time, const char *order, int one = 0)
{
    return first_product_right(time, order, false, [one](const Case<bf16> &c) {
        LAUNCH(wg_release_kernel<FAULT>, 1, 2 * WG_THREADS, SHARED, 0, c.out, c.on_a, c.on_b, one);
    });
}

template <bool BARRIER> static bool own_rows_right(const char *time, const char *order)
{
    return first_product_right(time, order, true, [](const Case<bf16> &c) {
        LAUNCH(wg_own_rows_kernel<BARRIER>, 1, WG_THREADS, SHARED, 0, c.out, c.on_a);
    });
}

static void test_operands_released_before_all_warps_have_waited_are_detected(void **)
{
    for (const char *order : ORDERS) {
        for (const char *time : TIMES) {
            assert_true(release_right<RELEASE_RIGHT>(time, order));
            assert_true(own_rows_right<true>(time, order));
        }
        assert_false(release_right<RELEASE_BEFORE_WAIT>("late", order));
        /* With EMU_ASYNC=late, and in reverse order, all warps leave a wait together, so these two
         * bugs have no effect. */
        assert_true(release_right<RELEASE_FOR_ALL>("late", order));
        assert_true(own_rows_right<false>("late", order));
        if (strcmp(order, "reverse") == 0) continue;
        /* RELEASE_FOR_ALL gives a wrong result if warp `one` is the first to leave the wait. */
        int wrong = 0;
        for (int one = 0; one < WG_THREADS / WARP; one++)
            wrong += !release_right<RELEASE_FOR_ALL>("early", order, one);
        assert_true(wrong > 0);
        setenv("EMU_ORDER", order, 1);
        DIES(own_rows_right<false>("early", getenv("EMU_ORDER")),
             "A of wgmma_shared at |was overwritten before all warps of the warpgroup had "
             "requested");
    }
    unsetenv("EMU_ORDER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_right_in_every_order_of_threads),
        cmocka_unit_test(test_invalid_descriptors_are_detected),
        cmocka_unit_test(test_descriptor_fields_that_are_not_multiples_of_16_are_detected),
        cmocka_unit_test(test_incomplete_or_diverging_warpgroups_are_detected),
        cmocka_unit_test(test_warpgroups_of_a_block_compute_independently),
        cmocka_unit_test(test_operands_released_before_all_warps_have_waited_are_detected),
        cmocka_unit_test(test_wrong_order_of_products_and_accesses_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
