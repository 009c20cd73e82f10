/* test_emu_tma.cc -- tests of the emulation of Hopper's barriers in shared memory, tiled copies and
 * warpgroups: correct kernels give the right result in every order of threads, with copies executed
 * early and late, and each planted bug is detected. */
#include "tests/emu/device/tiles.h"

static const char *const ORDERS[] = {"forward", "reverse", "shuffled"};
static const char *const TIMES[] = {"late", "early"};

/* ---- copies ---------------------------------------------------------------------------------- */

/* Returns the number of elements of the tile that are not where the swizzle puts them. */
static int misplaced(const uint16_t *got, int c0, int head, int token, int row)
{
    int wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            int chunk = c / 8 ^ r % 8, at = r * COLUMNS + chunk * 8 + c % 8;
            bool inside = token + r >= 0 && token + r < TOKENS;
            int64_t i = ((int64_t)row * TOKENS + token + r) * LD + head * SIZE + c0 + c;
            wrong += got[at] != (inside ? element(i) : 0);
        }
    return wrong;
}

static void test_tiles_are_swizzled_and_filled_with_zeros_outside_the_tensor(void **)
{
    static const int PLACES[][4] = {{0, 0, 0, 0}, {64, 2, 3, 1}, {0, 1, 16, 0}, {64, 0, -5, 1}};
    uint16_t *x = tensor(), *out = NULL, got[TILE];
    CUDA_CHECK(cudaMalloc(&out, sizeof got));
    for (const char *order : ORDERS)
        for (const char *when : TIMES)
            for (const int(&at)[4] : PLACES) {
                setenv("EMU_ORDER", order, 1);
                setenv("EMU_ASYNC", when, 1);
                LAUNCH(tile_kernel<COPY_RIGHT>, 1, GROUP, SHARED, 0, out, map_of(x), at[0], at[1],
                       at[2], at[3]);
                CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
                assert_int_equal(misplaced(got, at[0], at[1], at[2], at[3]), 0);
            }
    unsetenv("EMU_ORDER");
    unsetenv("EMU_ASYNC");
    CUDA_CHECK(cudaFree(x));
    CUDA_CHECK(cudaFree(out));
}

/* Runs tile_kernel with a map of x, or with the map `given`. */
template <CopyBug BUG>
static void run_tile(uint16_t *out, uint16_t *x, size_t shared = SHARED,
                     const CUtensorMap *given = NULL)
{
    CUtensorMap map = BUG == NO_MAP ? CUtensorMap{} : given ? *given : map_of(x);
    LAUNCH(tile_kernel<BUG>, 1, GROUP, shared, 0, out, map, 0, 1, 2, 1);
}

static void check_tile(const uint16_t *out)
{
    uint16_t got[TILE];
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    if (misplaced(got, 0, 1, 2, 1) == 0) _exit(0);
    fprintf(stderr, "wrong tile\n");
    _exit(1);
}

static void test_tiles_without_a_swizzle_are_plain_rows_aligned_to_128_bytes(void **)
{
    uint16_t *x = tensor(), got[TILE];
    CUtensorMap map = map_of(x, 4, COLUMNS, CU_TENSOR_MAP_SWIZZLE_NONE);
    run_tile<NOT_ALIGNED>(x, x, SHARED, &map);
    CUDA_CHECK(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < TILE; i++)
        assert_int_equal(got[i],
                         element((int64_t)(TOKENS + 2 + i / COLUMNS) * LD + SIZE + i % COLUMNS));
    CUDA_CHECK(cudaFree(x));
}

static void test_misused_tma_copies_are_detected(void **)
{
    for (const char *when : TIMES) {
        setenv("EMU_ASYNC", when, 1);
        DIES(run_tile<NOT_ALIGNED>(out, x), "is not a multiple of 1024", "tma_load_4d",
             "planted_tma.cuh");
        DIES(run_tile<ALIGNED_TO_512>(out, x), "is not a multiple of 1024");
        DIES(run_tile<NOT_EXPECTED>(out, x), "has announced only 1024 more", "2048 bytes");
        DIES(run_tile<EXPECTED_LATER>(out, x), "has announced only 0 more");
        DIES(run_tile<EXPECTED_TOO_MUCH>(out, x), "deadlock", "128 wait for the barrier",
             "lacks 0 of 1 arrivals and 128 bytes", "planted_tma.cuh");
        DIES(run_tile<NEVER_WAITED>(out, x),
             "bytes are expected or under way|nobody has waited for bytes that were copied");
        DIES(run_tile<WRONG_HEAD>(out, x), "coordinate 1 is 101, outside the tensor's 3");
        DIES(run_tile<NO_MAP>(out, x), "a tensor map that cuTensorMapEncodeTiled has not made");
        DIES(CUtensorMap map = map_of(x, 3);
             run_tile<COPY_RIGHT>(out, x, SHARED, &map), "the map has 3 dimensions, not 4");
        DIES(CUtensorMap map = map_of(x, 4, 32);
             run_tile<COPY_RIGHT>(out, x, SHARED, &map), "boxes that are 128 bytes wide");
        DIES(CUtensorMap map = map_of(x, 4, 32, CU_TENSOR_MAP_SWIZZLE_64B);
             run_tile<COPY_RIGHT>(out, x, SHARED, &map), "boxes that are 128 bytes wide");
        DIES(run_tile<PAST_MEMORY>(out, x, TILE_BYTES + 1024),
             "are not all in the block's 3072 bytes of shared memory");
    }
    setenv("EMU_ASYNC", "late", 1);
    DIES(run_tile<NOT_WAITED>(out, x); check_tile(out), "wrong tile");
    DIES(run_tile<TWICE>(out, x), "to the same shared memory is still under way");
    unsetenv("EMU_ASYNC");
}

/* ---- barriers -------------------------------------------------------------------------------- */

template <BarrierBug BUG> static void run_barrier(uint16_t *out)
{
    LAUNCH(barrier_kernel<BUG>, 1, 64, 1024, 0, (int *)out);
}

static void test_misused_barriers_in_shared_memory_are_detected(void **)
{
    uint16_t *out = tensor();
    for (const char *order : ORDERS) {
        setenv("EMU_ORDER", order, 1);
        run_barrier<BARRIER_RIGHT>(out);
    }
    unsetenv("EMU_ORDER");
    CUDA_CHECK(cudaFree(out));
    DIES(run_barrier<COUNT_OF_0>(out), "mbarrier_init: a count of 0");
    DIES(run_barrier<MISALIGNED>(out), "is not a multiple of 8");
    DIES(run_barrier<NOT_INITIALISED>(out), "it was not initialised");
    DIES(run_barrier<NOT_FENCED>(out), "no mbarrier_init_fence has followed", "mbarrier_arrive");
    DIES(run_barrier<NO_BLOCK_BARRIER>(out), "no __syncthreads has followed", "thread (1,0,0)");
    DIES(run_barrier<INITIALISED_TWICE>(out), "the barrier is initialised already");
    DIES(run_barrier<STORED_OVER>(out), "something else was stored over it");
    DIES(run_barrier<BARRIERS_65>(out), "more than 64 barriers in a block");
    setenv("EMU_ORDER", "reverse", 1);
    DIES(run_barrier<NOT_GONE_ON>(out), "before all who waited for the one before have gone on",
         "thread (63,0,0)");
    unsetenv("EMU_ORDER");
    DIES(run_barrier<TOO_MANY>(out), "nobody has waited for the one before", "16 arrivals");
    DIES(run_barrier<ARRIVES_EXTRA>(out), "more arrivals than the count of its phase",
         "lacks 0 of 1 arrivals and 16 bytes");
    DIES(run_barrier<ARRIVES_ALONE>(out), "at the block's end: some arrivals of a phase have come",
         "lacks 1 of 2 arrivals");
    DIES(run_barrier<NOBODY_ARRIVES>(out), "deadlock: 64 of 64 threads", "64 wait for the barrier",
         "its phase 0 lacks 1 of 1 arrivals and 0 bytes");
    DIES(run_barrier<PARITY_OF_2>(out), "the parity is 0 or 1, not 2");
    DIES(run_barrier<TOO_MANY_BYTES>(out), "1048576 bytes more");
}

/* ---- a ring of stages ------------------------------------------------------------------------ */

/* Runs the kernel over `tiles` tiles. Returns whether its sums are right. */
template <RingBug BUG> static bool ring_is_right(int tiles)
{
    unsigned got[CONSUMERS * GROUP], *out = NULL;
    uint16_t *x = tensor();
    CUDA_CHECK(cudaMalloc(&out, sizeof got));
    LAUNCH(ring_kernel<BUG>, 3, RING_THREADS, SHARED + 2 * TILE_BYTES, 0, out, map_of(x), tiles);
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(out));
    CUDA_CHECK(cudaFree(x));
    bool right = true;
    for (int t = 0; t < CONSUMERS * GROUP; t++) {
        unsigned sum = 0;
        for (int k = t % GROUP; k < tiles * TILE; k += GROUP) {
            int r = k / COLUMNS % ROWS, token = k / TILE * ROWS + r;
            int column = (k % COLUMNS / 8 ^ r % 8) * 8 + k % 8;
            if (token < TOKENS) sum += element((int64_t)token * LD + SIZE + column);
        }
        right = right && got[t] == sum;
    }
    return right;
}

template <RingBug BUG> static void run_ring(int tiles)
{
    if (ring_is_right<BUG>(tiles)) return;
    fprintf(stderr, "wrong sums\n");
    _exit(1);
}

static void test_a_ring_of_stages_is_right_in_every_order_of_threads(void **)
{
    for (const char *order : ORDERS)
        for (const char *when : TIMES)
            for (int tiles = 1; tiles < 8; tiles += 2) {
                setenv("EMU_ORDER", order, 1);
                setenv("EMU_ASYNC", when, 1);
                assert_true(ring_is_right<RING_RIGHT>(tiles));
            }
    unsetenv("EMU_ORDER");
    unsetenv("EMU_ASYNC");
}

static void test_faults_in_a_ring_of_stages_are_detected(void **)
{
    static const char *const stages[] = {"more arrivals than the count", "a phase completes"};
    for (int early = 0; early < 2; early++) {
        setenv("EMU_ASYNC", TIMES[early], 1);
        DIES(run_ring<EMPTY_NOT_WAITED>(6), stages[early], "the barrier at shared address");
        DIES(run_ring<EMPTY_NOT_ARRIVED>(6), "deadlock", "1 wait for the barrier",
             "lacks 1 of 2 arrivals and 0 bytes", "256 wait for the barrier");
        DIES(run_ring<STALE_PARITY>(6), "more arrivals than the count|deadlock");
    }
    setenv("EMU_ASYNC", "late", 1);
    DIES(run_ring<FULL_NOT_WAITED>(1), "wrong sums|bytes are expected");
    DIES(run_ring<GROUP_NOT_SYNCED>(6), "wrong sums");
    setenv("EMU_ORDER", "shuffled", 1);
    DIES(run_ring<GROUP_NOT_SYNCED>(6), "wrong sums");
    DIES(run_ring<ARRIVED_BY_TWO>(6), "a phase completes|wrong sums");
    unsetenv("EMU_ORDER");
    unsetenv("EMU_ASYNC");
}

/* Runs the kernel in which stores and copies fill the stages. Returns whether its sums are right.
 */
template <bool COUNTED> static bool mixed_ring_is_right(int tiles)
{
    unsigned got[GROUP], *out = NULL;
    uint16_t *x = tensor();
    bool right = true;
    CUDA_CHECK(cudaMalloc(&out, sizeof got));
    LAUNCH(mixed_ring_kernel<COUNTED>, 1, 2 * GROUP, SHARED + 2 * TILE_BYTES, 0, out, map_of(x),
           tiles);
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(out));
    CUDA_CHECK(cudaFree(x));
    for (int t = 0; t < GROUP; t++) {
        unsigned sum = 0;
        for (int i = 0; i < tiles; i++) {
            int row = t / COLUMNS, token = i * ROWS + row;
            int column = (t % COLUMNS / 8 ^ row % 8) * 8 + t % 8;
            sum += 1000 * (unsigned)i + (unsigned)((t + WARP) % GROUP);
            if (token < TOKENS) sum += element((int64_t)token * LD + SIZE + column);
        }
        right = right && got[t] == sum;
    }
    return right;
}

/* Without COUNTED, a stage counts as full although stores by the producer's threads may still be
 * missing. In forward order the producer's warps have stored before a consumer can read; in
 * shuffled order some have not. */
static void test_stores_missing_from_the_count_of_a_stage_are_detected(void **)
{
    for (const char *order : ORDERS)
        for (const char *when : TIMES) {
            setenv("EMU_ORDER", order, 1);
            setenv("EMU_ASYNC", when, 1);
            assert_true(mixed_ring_is_right<true>(6));
        }
    setenv("EMU_ORDER", "shuffled", 1);
    setenv("EMU_ASYNC", "early", 1);
    assert_false(mixed_ring_is_right<false>(6));
    unsetenv("EMU_ORDER");
    unsetenv("EMU_ASYNC");
}

/* ---- the proxies ----------------------------------------------------------------------------- */

template <ProxyBug BUG> static void run_proxy(uint16_t *x)
{
    LAUNCH(proxy_kernel<BUG>, 1, GROUP, SHARED, 0, map_of(x));
}

static void test_stores_that_the_async_proxy_does_not_see_are_detected(void **)
{
    uint16_t *x = tensor();
    run_proxy<PROXY_RIGHT>(x);
    CUDA_CHECK(cudaFree(x));
    DIES(run_proxy<PROXY_NOT_FENCED>(x), "which was stored without a proxy_fence");
    DIES(run_proxy<FENCED_BEFORE>(x), "which was stored without a proxy_fence");
    DIES(run_proxy<UNDER_WAY>(x), "is still under way", "reads 2048 bytes");
}

/* ---- warpgroups ------------------------------------------------------------------------------ */

template <NamedBug BUG> static void run_named(uint16_t *out)
{
    LAUNCH(named_kernel<BUG>, 1, 2 * GROUP, GROUP * sizeof(int), 0, (int *)out);
}

static void test_misused_named_barriers_are_detected(void **)
{
    int got[GROUP];
    uint16_t *out = tensor();
    for (const char *order : ORDERS) {
        setenv("EMU_ORDER", order, 1);
        run_named<NAMED_RIGHT>(out);
        CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
        for (int i = 0; i < GROUP; i++)
            assert_int_equal(got[i], i);
    }
    unsetenv("EMU_ORDER");
    CUDA_CHECK(cudaFree(out));
    DIES(run_named<BARRIER_0>(out), "barrier 0; 1 to 15 are possible");
    DIES(run_named<BARRIER_16>(out), "barrier 16; 1 to 15 are possible");
    DIES(run_named<NO_WHOLE_WARPS>(out), "200 threads are no number of whole warps");
    DIES(run_named<MORE_THAN_THE_BLOCK>(out), "of a block of 256 threads");
    DIES(run_named<OTHER_COUNT>(out), "barrier 3 for 128 threads, but others",
         "for 256 threads, at ");
    DIES(run_named<PART_OF_WARPS>(out), "only lanes 0000ffff of warp 0 take part");
    DIES(run_named<NAMED_TWICE>(out), "a second time before it completes");
    DIES(run_named<NOBODY_SYNCS>(out), "128 of 256 threads have arrived at barrier 3");
    DIES(run_named<NAMED_TOO_FEW>(out), "deadlock: 128 of 256", "barrier 3 at ", "planted_tma.cuh",
         "has 128 of 256 arrivals");
}

template <RegistersBug BUG> static void run_registers(uint16_t *out)
{
    LAUNCH(registers_kernel<BUG>, 1, RING_THREADS, 0, 0, (int *)out);
}

static __global__ void __launch_bounds__(96) no_warpgroup_kernel(int *)
{
    registers_take<256>();
}

static void test_misused_registers_of_warpgroups_are_detected(void **)
{
    uint16_t *out = tensor();
    for (const char *order : ORDERS) {
        setenv("EMU_ORDER", order, 1);
        run_registers<REGISTERS_RIGHT>(out);
        LAUNCH(registers_of_four_kernel<160>, 1, 4 * GROUP, 0, 0, (int *)out);
    }
    unsetenv("EMU_ORDER");
    CUDA_CHECK(cudaFree(out));
    DIES(run_registers<TAKEN_TOO_MANY>(out), "deadlock",
         "waits for 248 registers and has 168; 16 are free|waits for 248 registers and has 168; 0");
    DIES(LAUNCH(registers_of_four_kernel<168>, 1, 4 * GROUP, 0, 0, (int *)out), "deadlock",
         "waits for 168 registers and has 128");
    DIES(run_registers<TAKEN_TWICE>(out), "the warp has changed its registers before");
    DIES(run_registers<TAKEN_UNEQUAL>(out), "of the same warpgroup asked for 240");
    DIES(run_registers<TAKEN_BY_SOME>(out), "warp 2, of the same warpgroup, 0 times");
    DIES(run_registers<TAKEN_BY_LANES>(out), "registers_take by a part of a warp");
    DIES(LAUNCH(no_warpgroup_kernel, 1, 96, 0, 0, (int *)out), "warp 0 is in no whole warpgroup");
    DIES(run_registers<TAKEN_FEWER>(out), "registers_take<160>: the warp has 168");
    DIES(run_registers<GIVEN_MORE>(out), "registers_give<176>: the warp has 168");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_are_swizzled_and_filled_with_zeros_outside_the_tensor),
        cmocka_unit_test(test_tiles_without_a_swizzle_are_plain_rows_aligned_to_128_bytes),
        cmocka_unit_test(test_misused_tma_copies_are_detected),
        cmocka_unit_test(test_misused_barriers_in_shared_memory_are_detected),
        cmocka_unit_test(test_a_ring_of_stages_is_right_in_every_order_of_threads),
        cmocka_unit_test(test_faults_in_a_ring_of_stages_are_detected),
        cmocka_unit_test(test_stores_missing_from_the_count_of_a_stage_are_detected),
        cmocka_unit_test(test_stores_that_the_async_proxy_does_not_see_are_detected),
        cmocka_unit_test(test_misused_named_barriers_are_detected),
        cmocka_unit_test(test_misused_registers_of_warpgroups_are_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
