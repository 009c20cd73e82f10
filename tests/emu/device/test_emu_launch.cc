/* test_emu_launch.cc -- tests which launches are refused: by LAUNCH, which checks counts of blocks
 * before it narrows them, and by the emulated device, as a GPU would. */
#include "model/kernels/cuda/kernel.cuh"
#include "tests/emu/device/last_words.h"

#include <type_traits>

enum { THREADS = 64, FLOATS = 512 };

static __global__ void __launch_bounds__(THREADS) write_kernel(float *out, int at)
{
    if (threadIdx.x == 5) out[at] = 1;
}

/* The values of ASKED make two different kernels, because LAUNCH raises the limit of shared memory
 * of the kernel that it starts. */
template <bool ASKED> static __global__ void __launch_bounds__(THREADS) shared_kernel(float *out)
{
    DYN_SHARED(float, value);
    if (threadIdx.x == 0) *value = 1;
    __syncthreads();
    out[threadIdx.x] = *value;
}

/* A table of memory as kernels get it: as a struct, whose padding nobody fills. */
struct Rows {
    char kind;
    float *row[3];
};

static __global__ void __launch_bounds__(THREADS) rows_kernel(Rows rows)
{
    for (float *row : rows.row)
        if (row) row[threadIdx.x] = 1;
}

static __global__ void no_bounds_kernel(float *out)
{
    out[threadIdx.x] = 1;
}

static float *device_floats(void)
{
    float *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, FLOATS * sizeof *p));
    return p;
}

/* Runs the statements in a child, which must end with a message that contains all of the words. */
#define DIES(statements, ...)                                                                      \
    dies_saying(                                                                                   \
        #statements,                                                                               \
        [] {                                                                                       \
            float *out = device_floats();                                                          \
            (void)out;                                                                             \
            statements;                                                                            \
            CUDA_CHECK(cudaDeviceSynchronize());                                                   \
        },                                                                                         \
        __VA_ARGS__, NULL)

/* Launches without LAUNCH, which would request more shared memory where needed. */
static void launch_unasked(float *out, size_t shared)
{
    emu_launch(EmuLaunch{"unasked", __FILE__, __LINE__, NULL, 1, THREADS, shared, 0, NULL, NULL},
               shared_kernel<false>, out);
}

static void test_launches_that_no_gpu_could_run_are_refused(void **)
{
    float *p = device_floats();
    LAUNCH(write_kernel, LaunchGrid(2, 3, 4), dim3(4, 4, 4), 0, 0, p, 0);
    LAUNCH(shared_kernel<true>, 1, THREADS, 227 << 10, 0, p);
    assert_int_equal(emu_launch_bounds((const void *)write_kernel), THREADS);
    assert_int_equal(emu_launch_bounds((const void *)no_bounds_kernel), 0);
    CUDA_CHECK(cudaFree(p));
    DIES(KERNEL_START(write_kernel, "write_kernel", dim3(1, 65536), THREADS, 0, 0, out, 0),
         "grid.y and grid.z", "write_kernel", "test_emu_launch.cc");
    DIES(KERNEL_START(write_kernel, "write_kernel", 0x80000000u, THREADS, 0, 0, out, 0), "grid.x");
    DIES(KERNEL_START(write_kernel, "write_kernel", 0, THREADS, 0, 0, out, 0), "an empty grid");
    DIES(KERNEL_START(write_kernel, "write_kernel", 1, 1025, 0, 0, out, 0), "at most 1024 threads");
    DIES(LAUNCH(write_kernel, 1, 96, 0, 0, out, 0), "__launch_bounds__ say 64 threads");
    DIES(LAUNCH(no_bounds_kernel, 1, THREADS, 0, 0, out), "says no __launch_bounds__");
    DIES(LAUNCH(shared_kernel<true>, 1, THREADS, (227 << 10) + 1, 0, out), "cudaFuncSetAttribute");
    DIES(launch_unasked(out, (48 << 10) + 1), "need cudaFuncSetAttribute");
    DIES(setenv("EMU_ORDER", "sideways", 1); launch_unasked(out, 4), "EMU_ORDER");
}

/* LAUNCH itself refuses what exceeds CUDA's limits, also counts whose lower 32 bits would fit. */
static void test_a_launch_beyond_the_limits_is_refused_before_its_count_is_narrowed(void **)
{
    static_assert(!std::is_constructible<LaunchGrid, unsigned>::value, "may be narrowed");
    static_assert(!std::is_constructible<LaunchGrid, size_t>::value, "may be narrowed");
    static_assert(!std::is_constructible<LaunchGrid, dim3>::value, "may be narrowed");
    const int64_t wide = ((int64_t)1 << 32) + 1;
    dim3 most = launch_grid(LaunchGrid(INT32_MAX, 65535, 65535), "most");
    assert_true(most.x == INT32_MAX && most.y == 65535 && most.z == 65535);
    DIES(LAUNCH(write_kernel, wide, THREADS, 0, 0, out, 0),
         "write_kernel] with 4294967297 x 1 x 1 blocks");
    DIES(LAUNCH(write_kernel, (int64_t)INT32_MAX + 1, THREADS, 0, 0, out, 0), "2147483648 x 1 x 1");
    DIES(LAUNCH(write_kernel, LaunchGrid(1, 65536), THREADS, 0, 0, out, 0), "1 x 65536 x 1");
    DIES(LAUNCH(write_kernel, LaunchGrid(1, 1, 65536), THREADS, 0, 0, out, 0), "1 x 1 x 65536");
    DIES(LAUNCH(write_kernel, 0, THREADS, 0, 0, out, 0), "0 x 1 x 1 blocks");
    DIES(LAUNCH(write_kernel, 1, 1025, 0, 0, out, 0), "blocks of 1025 x 1 x 1 threads");
    DIES(LAUNCH(write_kernel, 1, dim3(1, 1, 65), 0, 0, out, 0), "blocks of 1 x 1 x 65 threads");
    DIES(LAUNCH(write_kernel, 1, dim3(32, 33), 0, 0, out, 0), "blocks of 32 x 33 x 1 threads");
}

/* Kernels reach page-locked memory of the host, and no other memory of it, as an argument and
 * through the pointers in a struct. */
static void test_kernels_may_use_page_locked_but_no_other_host_memory(void **)
{
    float *device = device_floats(), *host;
    CUDA_CHECK(cudaMallocHost((void **)&host, FLOATS * sizeof *host));
    host[FLOATS - 1] = host[FLOATS - 2] = host[0] = 0;
    LAUNCH(write_kernel, 1, THREADS, 0, 0, host, FLOATS - 1);
    LAUNCH(rows_kernel, 1, THREADS, 0, 0, Rows{'x', {device, host, NULL}});
    CUDA_CHECK(cudaDeviceSynchronize());
    assert_true(host[FLOATS - 1] == 1 && host[FLOATS - 2] == 0 && host[0] == 1);
    CUDA_CHECK(cudaFreeHost(host));
    CUDA_CHECK(cudaFree(device));
    DIES(float x[FLOATS]; LAUNCH(write_kernel, 1, THREADS, 0, 0, &x[0], 0),
                          "no pointer into device memory or page-locked memory", "write_kernel");
    DIES(float x[FLOATS]; LAUNCH(rows_kernel, 1, THREADS, 0, 0, Rows{'x', {out, NULL, x}}),
                          "byte 24 of an argument of 32 bytes", "not page-locked", "rows_kernel");
    DIES(static float x[FLOATS];
         LAUNCH(rows_kernel, 1, THREADS, 0, 0, Rows{'x', {x, out, NULL}}), "byte 8 of an argument");
    DIES(float *x = (float *)malloc(FLOATS * sizeof *x);
         LAUNCH(rows_kernel, 1, THREADS, 0, 0, Rows{'x', {out, x, NULL}}),
         "byte 16 of an argument");
    DIES(float *x; CUDA_CHECK(cudaMallocHost((void **)&x, FLOATS * sizeof *x));
         CUDA_CHECK(cudaFreeHost(x));
         LAUNCH(write_kernel, 1, THREADS, 0, 0, x, 0), "page-locked memory", "write_kernel");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_that_no_gpu_could_run_are_refused),
        cmocka_unit_test(test_kernels_may_use_page_locked_but_no_other_host_memory),
        cmocka_unit_test(test_a_launch_beyond_the_limits_is_refused_before_its_count_is_narrowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
