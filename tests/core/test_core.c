/* test_core.c -- tests the basics: element types, tensors, arenas, thread pools, random numbers,
 * number formats. */
#include "model/core/arena.h"
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/hash.h"
#include "model/core/pool.h"
#include "model/core/rng.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- dtype ----------------------------------------------------------------------------------- */

/* Every bf16 pattern survives conversion to f32 and back; ties are rounded to even. */
static void test_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = bf16_to_f32((uint16_t)b);
        if (isnan(x))
            assert_true(isnan(bf16_to_f32(bf16_from_f32(x))));
        else
            assert_int_equal(bf16_from_f32(x), b);
    }
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808000)), 0x3f80); /* tie: down to even */
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f818000)), 0x3f82); /* tie: up to even */
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808001)), 0x3f81);
    assert_int_equal(bf16_from_f32(3.4e38f), 0x7f80); /* above the largest bf16: infinity */
}

static void test_every_f16_value_survives_conversion_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = f16_to_f32((uint16_t)b);
        if (isnan(x))
            assert_true(isnan(f16_to_f32(f16_from_f32(x))));
        else
            assert_int_equal(f16_from_f32(x), b);
    }
    assert_true(isinf(f16_to_f32(f16_from_f32(65520.0f))));
    assert_true(f16_to_f32(f16_from_f32(65519.0f)) == 65504.0f);
}

static void test_every_dtype_is_found_by_its_name(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        DType back;
        assert_true(dtype_from_name(dtype_name((DType)t), &back));
        assert_int_equal(back, t);
    }
    DType none;
    assert_false(dtype_from_name("f8", &none));
}

/* ---- tensor, arena --------------------------------------------------------------------------- */

static void test_slices_of_a_tensor_keep_its_row_stride(void **state)
{
    (void)state;
    float x[12];
    char text[64];
    Tensor t = tensor_2d(x, F32, 3, 4);
    Tensor c = tensor_slice_cols(t, 1, 2), r = tensor_slice_rows(c, 1, 2);
    assert_ptr_equal(r.data, &x[5]);
    assert_int_equal(r.ld, 4);
    assert_false(tensor_is_dense(r));
    assert_true(tensor_is_dense(t));
    assert_string_equal(tensor_describe(r, text, sizeof text), "(2, 2) f32");
    Tensor b = tensor_as_3d(c, 3, 1);
    assert_int_equal(b.ndim, 3);
    assert_int_equal(tensor_rows(b), 3);
    assert_int_equal(b.ld, 4);
}

static void test_a_measuring_arena_counts_what_a_real_one_uses(void **state)
{
    (void)state;
    Arena measure = arena_measuring();
    Tensor a, b;
    arena_tensor(&measure, F64, 2, 3, 5, 0);
    arena_tensor(&measure, U8, 1, 1, 0, 0);
    void *memory = aligned_alloc(ARENA_ALIGNMENT, measure.peak);
    Arena arena = arena_over(memory, measure.peak);
    a = arena_tensor(&arena, F64, 2, 3, 5, 0);
    b = arena_tensor(&arena, U8, 1, 1, 0, 0);
    assert_int_equal(arena.peak, measure.peak);
    assert_int_equal((uintptr_t)b.data % ARENA_ALIGNMENT, 0);
    assert_true((char *)b.data >= (char *)a.data + 15 * 8);
    free(memory);
}

/* ---- pool ------------------------------------------------------------------------------------ */

typedef struct {
    atomic_int *count;
    atomic_int workers;
} Counting;

static void count_task(void *context, int64_t task, int worker)
{
    Counting *c = context;
    atomic_fetch_add(&c->count[task], 1);
    atomic_fetch_or(&c->workers, 1 << worker);
}

/* Runs many regions of different sizes one after the other; every task must run exactly once. */
static void test_a_pool_runs_every_task_exactly_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        Pool *pool = pool_create(threads);
        atomic_int count[64];
        for (int region = 0; region < 2000; region++) {
            Counting c = {.count = count};
            int64_t n = region % 64;
            memset(count, 0, sizeof count);
            pool_run(pool, n, count_task, &c);
            for (int64_t i = 0; i < 64; i++)
                assert_int_equal(atomic_load(&count[i]), i < n);
            assert_true(atomic_load(&c.workers) < 1 << threads);
        }
        pool_destroy(pool);
    }
}

/* Idle threads of a pool must use no processor time. */
static void test_idle_pool_threads_use_no_processor_time(void **state)
{
    (void)state;
    Pool *pool = pool_create(4);
    Counting c = {.count = must_calloc(8, sizeof(atomic_int))};
    struct timespec idle = {.tv_nsec = 200000000}, a, b;
    pool_run(pool, 8, count_task, &c);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    nanosleep(&idle, NULL); /* processor time is measured over this interval */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    if (used > 0.05) fail_msg("three idle threads used %.3f s of processor time in 0.2 s", used);
    pool_destroy(pool);
    free(c.count);
}

static void test_pool_cut_splits_a_range_without_gaps_or_overlaps(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 300; n += 7) {
        for (int64_t parts = 1; parts < 9; parts++) {
            assert_int_equal(pool_cut(n, parts, 16, 0), 0);
            assert_int_equal(pool_cut(n, parts, 16, parts), n);
            for (int64_t i = 0; i < parts; i++) {
                int64_t from = pool_cut(n, parts, 16, i);
                assert_true(from <= pool_cut(n, parts, 16, i + 1));
                assert_true(from == n || from % 16 == 0);
            }
        }
    }
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* wall_seconds_now counts from 1970. seconds_now starts anywhere, but must advance by the time
 * slept. */
static void test_both_clocks_count_seconds(void **state)
{
    (void)state;
    const struct timespec nap = {.tv_nsec = 20000000};
    double today = wall_seconds_now(), begin = seconds_now();
    assert_true(fabs(today - (double)time(NULL)) < 100);
    assert_true(begin < 1e9); /* no machine has been up for thirty years */
    nanosleep(&nap, NULL);
    double slept = seconds_now() - begin;
    assert_true(slept >= 0.02 && slept < 10);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* Compares with the published test vectors of Philox4x32-10 (Random123). */
static void test_philox_gives_the_published_test_vectors(void **state)
{
    (void)state;
    static const uint32_t ctr[3][4] = {
        {0, 0, 0, 0}, {~0u, ~0u, ~0u, ~0u}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const uint32_t key[3][2] = {{0, 0}, {~0u, ~0u}, {0xa4093822, 0x299f31d0}};
    static const uint32_t want[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(ctr[i], key[i], out);
        for (int w = 0; w < 4; w++)
            assert_int_equal(out[w], want[i][w]);
    }
}

/* ---- levels of CPU kernels ------------------------------------------------------------------- */

/* A program built with a sanitizer has only the baseline kernels, and a CPU may lack higher levels;
 * the error message must suggest "auto". */
static void test_a_missing_cpu_level_is_refused_and_auto_suggested(void **state)
{
    (void)state;
    for (CpuLevel level = CPU_LEVEL_BASELINE; level < CPU_LEVEL_COUNT; level++) {
        Device dev;
        DeviceOptions options = {
            .threads = 1, .local_ranks = 1, .level = level, .blas = BLAS_BUILTIN};
        char err[256] = "";
        if (device_open(&dev, "cpu", &options, err, sizeof err))
            device_close(&dev);
        else
            assert_non_null(strstr(err, "; write cpu.level \"auto\""));
    }
}

/* ---- formatted numbers and wrapped lines ----------------------------------------------------- */

static void test_figures_are_printed_short_with_a_fitting_unit(void **state)
{
    (void)state;
    const struct {
        Figure got;
        const char *want;
    } cases[] = {{figure_count(0), "0"},
                 {figure_count(2.07), "2.1"},
                 {figure_count(999.4), "999"},
                 {figure_count(1285831), "1,285,831"},
                 {figure_count(NAN), "0"},
                 {figure_short(999999), "999,999"},
                 {figure_short(999999.5), "1.00 M"},
                 {figure_short(12345678), "12.35 M"},
                 {figure_short(999.9e6), "999.9 M"},
                 {figure_short(999.96e6), "1.00 B"},
                 {figure_short(15e12), "15.00 T"},
                 {figure_short(1.5e12), "1.50 T"},
                 {figure_flops(3e8), "0.3 G"},
                 {figure_flops(999.94e9), "999.9 G"},
                 {figure_flops(999.96e9), "1.0 T"},
                 {figure_flops(1234e9), "1.2 T"},
                 {figure_flops(3e21), "3000.0 E"},
                 {figure_of(0, "layer"), "0 layers"},
                 {figure_of(1, "layer"), "1 layer"},
                 {figure_of(12100, "token"), "12,100 tokens"},
                 {figure_ending(3 << 8), "ended with exit code 3"},
                 {figure_ending(9), "was ended by signal 9"},
                 {figure_bytes(NAN), "0 bytes"},
                 {figure_bytes(1), "1 byte"},
                 {figure_bytes(1023), "1,023 bytes"},
                 {figure_bytes(1024), "1.0 KiB"},
                 {figure_bytes(65641062.4), "62.6 MiB"},
                 {figure_bytes(135292.2 * 1048576), "132.1 GiB"},
                 {figure_bytes(1023.96 * 1048576), "1.0 GiB"},
                 {figure_bytes(3.5e15), "3.1 PiB"},
                 {figure_duration(0.4), "0:00"},
                 {figure_duration(59.6), "1:00"},
                 {figure_duration(3599.6), "1:00:00"},
                 {figure_duration(3723), "1:02:03"},
                 {figure_duration(86399), "23:59:59"},
                 {figure_duration(86400 + 7200), "1d 2h"},
                 {figure_duration(99.99 * 86400), "99d 23h"},
                 {figure_duration(412.4 * 86400), "412 d"},
                 {figure_duration(-1), "-"},
                 {figure_duration(NAN), "-"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cases[i].got.text, cases[i].want);
    assert_true(figure_bytes_unit(1000) == 1);
    assert_true(figure_bytes_unit(1023.9 * 1048576) == 1048576);
    assert_true(figure_bytes_unit(1023.96 * 1048576) == 1073741824);
    assert_true(figure_bytes_unit(3.5e15) == 1125899906842624);
}

static void test_seconds_are_printed_with_units(void **state)
{
    (void)state;
    const struct {
        Figure got;
        const char *want;
    } cases[] = {{figure_seconds(0), "0 us"},
                 {figure_seconds(999.4e-6), "999 us"},
                 {figure_seconds(999.6e-6), "1 ms"},
                 {figure_seconds(0.9994), "999 ms"},
                 {figure_seconds(0.9996), "1 s"},
                 {figure_seconds(59.94), "59.9 s"},
                 {figure_seconds(59.96), "1 min 0 s"},
                 {figure_seconds(134), "2 min 14 s"},
                 {figure_seconds(3599.6), "1 h 0 min"},
                 {figure_seconds(42 * 60 + 13), "42 min 13 s"},
                 {figure_seconds(3 * 3600 + 301), "3 h 5 min"},
                 {figure_seconds(86399), "1 day"},
                 {figure_seconds(1.01 * 86400), "1.01 days"},
                 {figure_seconds(99.94 * 86400), "99.9 days"},
                 {figure_seconds(1200.4 * 86400), "1,200 days"},
                 {figure_seconds(-1), "-"},
                 {figure_seconds(NAN), "-"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cases[i].got.text, cases[i].want);
}

/* A hash must have exactly the requested number of digits, and nothing may follow them. */
static void test_a_hash_with_missing_or_extra_characters_is_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {"",          "0012abf",  "0012abfff", "0012abf ",
                                          "0012abffX", "0012abFf", "0x12abff",  "-012abff"};
    uint64_t hash = 0;
    assert_true(hash_parse("0012abff", 8, &hash));
    assert_true(hash == 0x12abff);
    assert_true(hash_parse("fedcba9876543210", 16, &hash));
    assert_true(hash == 0xfedcba9876543210);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (hash_parse(refused[i], 8, &hash)) fail_msg("\"%s\" is taken", refused[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_every_f16_value_survives_conversion_to_f32_and_back),
        cmocka_unit_test(test_every_dtype_is_found_by_its_name),
        cmocka_unit_test(test_slices_of_a_tensor_keep_its_row_stride),
        cmocka_unit_test(test_a_measuring_arena_counts_what_a_real_one_uses),
        cmocka_unit_test(test_a_pool_runs_every_task_exactly_once),
        cmocka_unit_test(test_idle_pool_threads_use_no_processor_time),
        cmocka_unit_test(test_pool_cut_splits_a_range_without_gaps_or_overlaps),
        cmocka_unit_test(test_both_clocks_count_seconds),
        cmocka_unit_test(test_philox_gives_the_published_test_vectors),
        cmocka_unit_test(test_a_hash_with_missing_or_extra_characters_is_refused),
        cmocka_unit_test(test_a_missing_cpu_level_is_refused_and_auto_suggested),
        cmocka_unit_test(test_figures_are_printed_short_with_a_fitting_unit),
        cmocka_unit_test(test_seconds_are_printed_with_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
