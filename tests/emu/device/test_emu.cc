/* test_emu.cc -- tests of the emulated device itself: correct kernels give the right result in
 * every order of threads, and each planted bug is detected, by a wrong result or by an error
 * message that says what is wrong and where. */
#include "tests/emu/device/planted.cuh"

#include "tests/emu/device/last_words.h"

static const char *const ORDERS[] = {"forward", "reverse", "shuffled"};
enum { ORDER_COUNT = 3, FLOATS = 2 * THREADS * 4 };

/* ---- helpers --------------------------------------------------------------------------------- */

template <class T> static T *device_copy_of(const T *x, int n)
{
    T *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, (size_t)n * sizeof(T)));
    if (x) CUDA_CHECK(cudaMemcpy(p, x, (size_t)n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <class T> static void host_copy_of(T *x, const T *p, int n)
{
    CUDA_CHECK(cudaMemcpy(x, p, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
}

static float number(int i)
{
    return (float)((i * 37 + 11) % 23 - 9);
}

/* Returns the number of thread orders in which the n elements of `out`, after run(out, x), differ
 * from want(i). */
static int wrong_orders(int n, void (*run)(float *out, const float *x), float (*want)(int i))
{
    float x[FLOATS], got[FLOATS];
    int wrong = 0;
    for (int i = 0; i < FLOATS; i++)
        x[i] = number(i);
    for (const char *order : ORDERS) {
        setenv("EMU_ORDER", order, 1);
        float *d_x = device_copy_of(x, FLOATS), *d_out = device_copy_of<float>(NULL, n);
        run(d_out, d_x);
        host_copy_of(got, d_out, n);
        bool same = true;
        for (int i = 0; i < n; i++)
            same = same && got[i] == want(i);
        wrong += !same;
        CUDA_CHECK(cudaFree(d_x));
        CUDA_CHECK(cudaFree(d_out));
    }
    unsetenv("EMU_ORDER");
    return wrong;
}

#define DIES(statements, ...)                                                                      \
    dies_saying(                                                                                   \
        #statements,                                                                               \
        [] {                                                                                       \
            float *out = device_copy_of<float>(NULL, FLOATS);                                      \
            (void)out;                                                                             \
            statements;                                                                            \
            CUDA_CHECK(cudaDeviceSynchronize());                                                   \
        },                                                                                         \
        __VA_ARGS__, NULL)

/* ---- barriers -------------------------------------------------------------------------------- */

template <bool RIGHT> static void run_reverse(float *out, const float *x)
{
    LAUNCH(reverse_kernel<RIGHT>, 1, THREADS, THREADS * sizeof(float), 0, out, x);
}

template <bool RIGHT> static void run_reuse(float *out, const float *x)
{
    LAUNCH(reuse_kernel<RIGHT>, 1, THREADS, THREADS * sizeof(float), 0, out, x);
}

template <bool RIGHT> static void run_run_ahead(float *out, const float *x)
{
    LAUNCH(run_ahead_kernel<RIGHT>, 1, THREADS, THREADS / WARP * sizeof(float), 0, out, x);
}

static void test_missing_divergent_or_unreachable_barriers_are_detected(void **)
{
    auto reversed = [](int i) { return number(THREADS - 1 - i); };
    auto sum = [](int) {
        float s = THREADS;
        for (int i = 0; i < THREADS; i++)
            s += 2 * number(i);
        return s;
    };
    assert_int_equal(wrong_orders(THREADS, run_reverse<true>, reversed), 0);
    assert_int_equal(wrong_orders(THREADS, run_reverse<false>, reversed), ORDER_COUNT);
    assert_int_equal(wrong_orders(THREADS, run_reuse<true>, sum), 0);
    assert_true(wrong_orders(THREADS, run_reuse<false>, sum) > 0);
    assert_int_equal(wrong_orders(THREADS, run_run_ahead<true>, sum), 0);
    /* not with EMU_ORDER=shuffled, where the warps keep step */
    assert_int_equal(wrong_orders(THREADS, run_run_ahead<false>, sum), 2);
    DIES(LAUNCH(divergent_barrier_kernel, 1, THREADS, 0, 0, out), "a barrier in divergent code",
         "divergent_barrier_kernel", "planted.cuh");
    DIES(LAUNCH(early_exit_kernel, 1, THREADS, 0, 0, out, 60), "__syncthreads", "early_exit_kernel",
         "exit|has left the kernel");
    DIES(LAUNCH(deadlock_kernel, 1, THREADS, 0, 0, out), "deadlock", "__syncwarp",
         "deadlock_kernel");
}

/* ---- warps ----------------------------------------------------------------------------------- */

static void test_wrong_masks_and_lanes_of_warp_collectives_are_detected(void **)
{
    for (const char *order : ORDERS) {
        int wrong = 0;
        setenv("EMU_ORDER", order, 1);
        int *d_wrong = device_copy_of(&wrong, 1);
        LAUNCH(collectives_kernel, 3, THREADS, 0, 0, d_wrong);
        host_copy_of(&wrong, d_wrong, 1);
        assert_int_equal(wrong, 0);
        CUDA_CHECK(cudaFree(d_wrong));
    }
    unsetenv("EMU_ORDER");
    DIES(LAUNCH(mask_without_caller_kernel, 1, THREADS, 0, 0, out),
         "leaves out the calling lane 16", "thread (16,0,0)");
    DIES(LAUNCH(different_masks_kernel, 1, THREADS, 0, 0, out), "with mask ffffffff",
         "with mask 0000ffff");
    DIES(LAUNCH(source_outside_kernel, 1, THREADS, 0, 0, out), "takes no part", "__shfl_xor_sync");
    DIES(LAUNCH(source_gone_kernel, 1, THREADS, 0, 0, out), "reads lane 24, which takes no part");
    DIES(LAUNCH(different_calls_kernel, 1, THREADS, 0, 0, out), "the warp diverges",
         "__ballot_sync|__shfl_xor_sync");
}

/* ---- memory ---------------------------------------------------------------------------------- */

template <bool RIGHT> static void run_fresh_sum(float *out, const float *)
{
    LAUNCH(fresh_sum_kernel<RIGHT>, 3, THREADS, sizeof(float), 0, out);
}

static void test_shared_memory_used_uninitialized_or_past_its_end_is_detected(void **)
{
    auto one = [](int) { return 1.0f; };
    assert_int_equal(wrong_orders(THREADS, run_fresh_sum<true>, one), 0);
    assert_int_equal(wrong_orders(THREADS, run_fresh_sum<false>, one), ORDER_COUNT);
    DIES(LAUNCH(shared_write_kernel, 1, THREADS, 100, 0, out, 25),
         "wrote 0 bytes past its 100 bytes of shared memory|use-after-poison",
         "shared_write_kernel");
    DIES(LAUNCH(shared_write_kernel, 1, THREADS, 100, 0, out, 4096),
         "from the start of its 100 bytes of shared memory|use-after-poison",
         "shared_write_kernel");
    DIES(LAUNCH(shared_write_kernel, 1, THREADS, 0, 0, out, 64), "its 0 bytes of shared memory",
         "shared_write_kernel");
}

static void test_accesses_outside_device_memory_are_detected(void **)
{
    DIES(LAUNCH(write_kernel, 1, THREADS, 0, 0, out, FLOATS),
         "0 bytes past device memory of 2048 bytes", "write_kernel", "thread (5,0,0)");
    DIES(LAUNCH(write_kernel, 1, THREADS, 0, 0, out, -1), "wrote 4 bytes before an allocation");
    DIES(LAUNCH(write_kernel, 1, THREADS, 0, 0, out, -4096), "before device memory");
    DIES(LAUNCH(write_kernel, 1, THREADS, 0, 0, device_copy_of<float>(NULL, 10), 11),
         "wrote 4 bytes past an allocation of 40 bytes");
    DIES(LAUNCH(read_kernel, 1, THREADS, 0, 0, out, out, FLOATS + 8), "32 bytes past");
    DIES(LAUNCH(vector_kernel, 1, THREADS, 0, 0, out, out, 1), "not aligned|misaligned address");
    DIES(LAUNCH(pack_store_kernel, 1, THREADS, 0, 0, out, 2), "is not a multiple of 16");
    DIES(LAUNCH(pack_store_kernel, 1, THREADS, 64, 0, out, -1), "is in shared memory");
    DIES(float x = 1; LAUNCH(read_kernel, 1, THREADS, 0, 0, out, &x, 0),
                      "is no pointer into device memory", "read_kernel");
    DIES(CUDA_CHECK(cudaFree(out));
         LAUNCH(write_kernel, 1, THREADS, 0, 0, out, 0), "is no pointer into device memory");
    DIES(*(volatile float *)out = 1, "host code touches device memory (byte 0 of 2048)");
    DIES(LAUNCH(write_kernel, 1, THREADS, 0, 0, out, 0);
         printf("%g", *(volatile float *)(out + 3)),
         "host code touches device memory (byte 12 of 2048)");
    DIES(CUDA_CHECK(cudaFree(out)); *(volatile float *)out = 1, "that was freed");
    float *p = device_copy_of<float>(NULL, FLOATS);
    LAUNCH(vector_kernel, 1, THREADS, 0, 0, p, p, 4);
    CUDA_CHECK(cudaFree(p));
}

/* Fresh memory must be NaN. A copy must match its kind and stay inside its allocations. */
static void test_copies_in_the_wrong_direction_or_past_the_end_are_refused(void **)
{
    float x[4] = {1, 2, 3, 4}, y[4] = {0, 0, 0, 0};
    float *p = device_copy_of<float>(NULL, 4);
    CUDA_CHECK(cudaMemcpy(y, p, sizeof y, cudaMemcpyDefault));
    assert_true(isnan(y[0]) && isnan(y[3]));
    CUDA_CHECK(cudaMemcpy2DAsync(p, 8, x, 4, 4, 2, cudaMemcpyHostToDevice, 0));
    host_copy_of(y, p, 4);
    assert_true(y[0] == 1 && isnan(y[1]) && y[2] == 2 && isnan(y[3]));
    assert_int_equal(cudaMemcpy(p, x, 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(p, x, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x, y, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(y, p + 4, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(p - 1, x, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy2DAsync(p, (size_t)1 << 31, x, 4, 4, 1, cudaMemcpyDefault, 0),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(x, 0, 4, 0), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(p + 2, 0, 12, 0), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaFree(p + 1), cudaErrorInvalidValue);
    CUDA_CHECK(cudaFree(p));
    assert_int_equal(cudaFree(p), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(p, 0, 4), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(p, x, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(y, p, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
    cudaGetLastError();
}

static void test_an_allocation_larger_than_the_device_is_refused(void **)
{
    void *p;
    setenv("EMU_MEMORY", "1", 1);
    assert_int_equal(cudaMalloc(&p, 2 << 20), cudaErrorMemoryAllocation);
    assert_null(p);
    DIES(void *q; CUDA_CHECK(cudaMalloc(&q, 2 << 20)), "cudaErrorMemoryAllocation",
                  "lower train_micro_batch_size_per_gpu");
    unsetenv("EMU_MEMORY");
    cudaGetLastError();
}

static void test_more_page_locked_memory_than_the_driver_gives_is_refused(void **)
{
    void *p, *q, *none;
    setenv("EMU_LOCKED", "2", 1);
    CUDA_CHECK(cudaMallocHost(&p, 1 << 20));
    assert_int_equal(cudaMallocHost(&none, (1 << 20) + 1), cudaErrorMemoryAllocation);
    assert_null(none);
    CUDA_CHECK(cudaMallocHost(&q, 1 << 20));
    CUDA_CHECK(cudaFreeHost(p));
    CUDA_CHECK(cudaFreeHost(q));
    setenv("EMU_LOCKED", "much", 1);
    DIES(void *r; CUDA_CHECK(cudaMallocHost(&r, 1)), "EMU_LOCKED is a number of MiB", "much");
    unsetenv("EMU_LOCKED");
    cudaGetLastError();
}

/* A large model keeps its optimizer states in thousands of page-locked blocks. */
static void test_thousands_of_page_locked_blocks_can_be_allocated(void **)
{
    enum { BLOCKS = 3000 };
    static void *p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        CUDA_CHECK(cudaMallocHost(&p[i], 1));
    for (int i = 0; i < BLOCKS; i++)
        CUDA_CHECK(cudaFreeHost(p[i]));
    assert_int_equal(cudaFreeHost(p[0]), cudaErrorInvalidValue);
    cudaGetLastError();
}

/* Calls that a training step must not make are counted. */
static void test_allocations_and_host_waits_are_counted(void **)
{
    float x = 1, *pinned = NULL, *p = device_copy_of<float>(NULL, 1);
    CUDA_CHECK(cudaMallocHost(&pinned, sizeof x));
    int64_t allocations = emu_count_allocations(), waits = emu_count_waits();
    LAUNCH(write_kernel, 1, THREADS, 0, 0, p, 0);
    CUDA_CHECK(cudaMemcpyAsync(pinned, p, sizeof x, cudaMemcpyDeviceToHost, 0));
    CUDA_CHECK(cudaMemsetAsync(p, 0, sizeof x, 0));
    assert_int_equal(emu_count_waits() - waits, 0);
    assert_int_equal(emu_count_allocations() - allocations, 0);
    /* a copy to pageable memory, which waits */
    CUDA_CHECK(cudaMemcpyAsync(&x, p, sizeof x, cudaMemcpyDeviceToHost, 0));
    CUDA_CHECK(cudaStreamSynchronize(0));
    CUDA_CHECK(cudaFree(p));
    assert_int_equal(emu_count_waits() - waits, 2);
    assert_int_equal(emu_count_allocations() - allocations, 1);
    CUDA_CHECK(cudaFreeHost(pinned));
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

template <int LEFT> static void run_copy(float *out, const float *x)
{
    LAUNCH(copy_kernel<LEFT>, 1, THREADS, FLOATS * sizeof(float), 0, out, x);
}

static void run_copy_part(float *out, const float *x)
{
    LAUNCH(copy_part_kernel, 1, THREADS, THREADS * 16, 0, out, x);
}

static void test_misused_asynchronous_copies_are_detected(void **)
{
    auto same = [](int i) { return number(i); };
    auto part = [](int i) { return i % 4 < i / 4 % 5 ? number(i) : 0.0f; };
    assert_int_equal(wrong_orders(FLOATS, run_copy<0>, same), 0);
    assert_int_equal(wrong_orders(FLOATS, run_copy<1>, same), ORDER_COUNT);
    assert_int_equal(wrong_orders(THREADS * 4, run_copy_part, part), 0);
    DIES(LAUNCH(copy_forgotten_kernel, 1, THREADS, THREADS * 16, 0, out),
         "exits with 1 copies under way that nothing waited for");
    DIES(LAUNCH(copy_misaligned_kernel, 1, THREADS, THREADS * 16, 0, out), "cp_async_16",
         "must be multiples of 16");
    DIES(LAUNCH(copy_kernel<0>, 1, THREADS, FLOATS * sizeof(float) - 16, 0, out, out),
         "cp_async_16", "not all in the block's 2032 bytes of shared memory");
    DIES(LAUNCH(copy_kernel<0>, 1, THREADS, FLOATS * sizeof(float), 0, out, out + 8), "cp_async_16",
         "not all in device memory");
}

/* ---- fragments ------------------------------------------------------------------------------- */

template <class T> static void numbers_fill(T *x, float *exact, int n, int seed)
{
    for (int i = 0; i < n; i++) {
        exact[i] = (float)((uint32_t)(i * 16 + seed) * 2654435761u >> 8) / 0x1p24f;
        exact[i] = floorf(exact[i] * 13) - 6; /* small integers without a pattern */
        x[i] = from_float<T>(exact[i]);
    }
}

/* Computes c (16, n) = a (16, 16) b (16, n). */
static void multiply(float *c, const float *a, const float *b, int n)
{
    for (int i = 0; i < 16 * n; i++) {
        c[i] = 0;
        for (int k = 0; k < 16; k++)
            c[i] += a[i / n * 16 + k] * b[k * n + i % n];
    }
}

template <class T, Layout LAYOUT> static bool fragment_right(void)
{
    T a[256], b[128];
    float xa[256], xb[128], want[128], got[128];
    numbers_fill(a, xa, 256, 5);
    numbers_fill(b, xb, 128, 11);
    multiply(want, xa, xb, 8);
    T *d_a = device_copy_of(a, 256), *d_b = device_copy_of(b, 128);
    float *d = device_copy_of<float>(NULL, 128);
    LAUNCH((fragment_kernel<T, LAYOUT>), 1, WARP, 16 * 24 * sizeof(T), 0, d, d_a, d_b);
    host_copy_of(got, d, 128);
    CUDA_CHECK(cudaFree(d_a));
    CUDA_CHECK(cudaFree(d_b));
    CUDA_CHECK(cudaFree(d));
    return memcmp(got, want, sizeof got) == 0;
}

template <class T> static bool chain_right(void)
{
    T a[256], b[256], c[128];
    float xa[256], xb[256], xc[128], ab[256], want[128], got[128];
    numbers_fill(a, xa, 256, 5);
    numbers_fill(b, xb, 256, 3);
    numbers_fill(c, xc, 128, 11);
    for (int i = 0; i < 256; i++)
        /* few nonzero terms, so that sums are exact in 8 bits */
        b[i] = from_float<T>(xb[i] = i % 17 == 0 ? xb[i] : 0);
    multiply(ab, xa, xb, 16);
    multiply(want, ab, xc, 8);
    T *d_a = device_copy_of(a, 256), *d_b = device_copy_of(b, 256), *d_c = device_copy_of(c, 128);
    float *d = device_copy_of<float>(NULL, 128);
    LAUNCH(chain_kernel<T>, 1, WARP, 16 * 40 * sizeof(T), 0, d, d_a, d_b, d_c);
    host_copy_of(got, d, 128);
    return memcmp(got, want, sizeof got) == 0;
}

static void test_wrong_fragment_layouts_of_matrix_products_are_detected(void **)
{
    for (const char *order : ORDERS) {
        setenv("EMU_ORDER", order, 1);
        assert_true((fragment_right<bf16, FRAGMENT_RIGHT>()));
        assert_true((fragment_right<f16, FRAGMENT_RIGHT>()));
        assert_false((fragment_right<bf16, FRAGMENT_SWAPPED>()));
        assert_false((fragment_right<bf16, FRAGMENT_NOT_TRANSPOSED>()));
        assert_true(chain_right<bf16>());
        assert_true(chain_right<f16>());
    }
    unsetenv("EMU_ORDER");
    DIES((fragment_right<bf16, ROW_MISALIGNED>()), "ldmatrix_4", "is not a multiple of 16",
         "fragment_kernel");
    DIES(LAUNCH(half_product_kernel, 1, WARP, 0, 0, out), "mma");
}

static void test_approximate_functions_have_the_largest_allowed_error(void **)
{
    int32_t most[2] = {0, 0}; /* otherwise tests of bounds would be easier to pass than on a GPU */
    for (float x = 1; x < 2; x += 0x1p-8f) {
        most[0] = max(most[0], abs(__float_as_int(exp2_approx(x)) - __float_as_int(exp2f(x))));
        most[1] = max(most[1], abs(__float_as_int(reciprocal_approx(x)) - __float_as_int(1 / x)));
    }
    assert_true(most[0] == 2 && most[1] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_divergent_or_unreachable_barriers_are_detected),
        cmocka_unit_test(test_wrong_masks_and_lanes_of_warp_collectives_are_detected),
        cmocka_unit_test(test_shared_memory_used_uninitialized_or_past_its_end_is_detected),
        cmocka_unit_test(test_accesses_outside_device_memory_are_detected),
        cmocka_unit_test(test_copies_in_the_wrong_direction_or_past_the_end_are_refused),
        cmocka_unit_test(test_an_allocation_larger_than_the_device_is_refused),
        cmocka_unit_test(test_more_page_locked_memory_than_the_driver_gives_is_refused),
        cmocka_unit_test(test_thousands_of_page_locked_blocks_can_be_allocated),
        cmocka_unit_test(test_allocations_and_host_waits_are_counted),
        cmocka_unit_test(test_misused_asynchronous_copies_are_detected),
        cmocka_unit_test(test_wrong_fragment_layouts_of_matrix_products_are_detected),
        cmocka_unit_test(test_approximate_functions_have_the_largest_allowed_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
