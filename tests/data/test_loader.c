/* test_loader.c -- tests the order of samples and the contents of batches: both depend only on
 * (seed, epoch, index). */
#include "tests/support/files/data_support.h"
#include "tests/support/files/loader_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the window of a row: its first token divided by T. */
static int64_t window_of(const Batch *b, int64_t row)
{
    const int32_t *tokens = tensor_row(b->tokens, row);
    return tokens[0] / b->tokens.dim[1];
}

/* In every batch, targets are the inputs' successors and positions count from 0. Windows span the
 * borders of files, and the last token of the last file is used. */
static void test_bug_47_targets_are_the_tokens_shifted_by_one(void **state)
{
    (void)state;
    enum { T = 7, B = 3, TOKENS = 7 * 12 + 1 };
    CountingSet f = counting_open(TOKENS, 50);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        Loader *l = counting_loader(
            &f, (LoaderOptions){.split = SPLIT_TRAIN, .B = B, .T = T, .shuffle = shuffle});
        int32_t largest = 0;
        assert_int_equal(loader_windows(l), 12);
        assert_int_equal(loader_dropped_tokens(l), 0);
        for (int64_t step = 0; step < 8; step++) {
            Batch b = counting_next(l, step * B, 0);
            const int32_t *x = b.tokens.data, *y = b.targets.data, *p = b.positions.data;
            assert_int_equal(b.n_targets, B * T);
            for (int i = 0; i < B * T; i++) {
                if (y[i] != x[i] + 1)
                    fail_msg("step %d, %d: input %d, target %d", (int)step, i, x[i], y[i]);
                if (x[i] != x[i / T * T] + i % T)
                    fail_msg("step %d, %d: input %d", (int)step, i, x[i]);
                assert_int_equal(p[i], i % T);
                largest = y[i] > largest ? y[i] : largest;
            }
        }
        assert_int_equal(largest, TOKENS - 1);
        loader_free(l);
    }
    counting_close(&f);
}

static void test_without_shuffle_windows_are_consecutive(void **state)
{
    (void)state;
    CountingSet f = counting_open(200, 50);
    Loader *l = counting_loader(&f, (LoaderOptions){.B = 2, .T = 9, .micros = 3});
    assert_int_equal(loader_windows(l), 22);
    assert_int_equal(loader_dropped_tokens(l), 1);
    for (int64_t k = 0; k < 30; k++) {
        Batch b = counting_next(l, k / 3 * 6, k % 3);
        for (int64_t row = 0; row < 2; row++)
            assert_int_equal(window_of(&b, row), (2 * k + row) % 22);
    }
    loader_free(l);
    counting_close(&f);
}

/* Collects the windows of `samples` samples from `first` on, ordered by global index, from the
 * batches of all ranks of this grid. */
static void collect(const CountingSet *f, int64_t dp, int64_t micros, int64_t B, int64_t first,
                    int64_t samples, int64_t *out)
{
    for (int64_t rank = 0; rank < dp; rank++) {
        Loader *l = counting_loader(f, (LoaderOptions){.B = B,
                                                       .T = 5,
                                                       .seed = 9,
                                                       .shuffle = true,
                                                       .dp_rank = rank,
                                                       .dp_size = dp,
                                                       .micros = micros});
        for (int64_t at = 0; at < samples; at += dp * micros * B)
            for (int64_t micro = 0; micro < micros; micro++) {
                Batch b = counting_next(l, first + at, micro);
                for (int64_t row = 0; row < B; row++)
                    out[at + (micro * dp + rank) * B + row] = window_of(&b, row);
            }
        loader_free(l);
    }
}

static void test_bug_44_a_resumed_loader_continues_in_the_same_order(void **state)
{
    (void)state;
    enum { SAMPLES = 96, WINDOWS = 41 };
    CountingSet f = counting_open(5 * WINDOWS + 1, 50);
    int64_t whole[SAMPLES], part[SAMPLES];
    collect(&f, 1, 2, 2, 0, SAMPLES, whole);
    for (int64_t at = 0; at < SAMPLES;
         at += 4) { /* resume after every step, including the border between epochs */
        collect(&f, 1, 2, 2, at, SAMPLES - at, part);
        for (int64_t i = 0; i < SAMPLES - at; i++)
            if (part[i] != whole[at + i])
                fail_msg("resumed at %lld, sample %lld is window %lld, was %lld", (long long)at,
                         (long long)at + i, (long long)part[i], (long long)whole[at + i]);
    }
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        int seen[WINDOWS] = {0};
        for (int i = 0; i < WINDOWS; i++)
            seen[whole[epoch * WINDOWS + i]]++;
        for (int w = 0; w < WINDOWS; w++)
            if (seen[w] != 1)
                fail_msg("epoch %d: window %d comes %d times", (int)epoch, w, seen[w]);
    }
    counting_close(&f);
}

static void test_bug_45_ranks_and_micro_batches_do_not_change_the_order(void **state)
{
    (void)state;
    enum { SAMPLES = 72 };
    static const int64_t grid[][3] = {{1, 1, 12}, {1, 12, 1}, {2, 3, 2}, {3, 2, 2},
                                      {4, 3, 1},  {4, 1, 3},  {3, 4, 1}};
    CountingSet f = counting_open(301, 50);
    int64_t want[SAMPLES], got[SAMPLES];
    collect(&f, 1, 1, 1, 0, SAMPLES, want);
    for (size_t g = 0; g < sizeof grid / sizeof *grid; g++) {
        collect(&f, grid[g][0], grid[g][1], grid[g][2], 0, SAMPLES, got);
        for (int i = 0; i < SAMPLES; i++)
            if (got[i] != want[i])
                fail_msg("dp %d, %d micro-batches of %d: sample %d is window %d, want %d",
                         (int)grid[g][0], (int)grid[g][1], (int)grid[g][2], i, (int)got[i],
                         (int)want[i]);
    }
    counting_close(&f);
}

static void test_bug_46_data_parallel_ranks_read_different_windows(void **state)
{
    (void)state;
    enum { DP = 3, B = 2, WINDOWS = 60 };
    CountingSet f = counting_open(5 * WINDOWS + 1, 50);
    int owner[WINDOWS];
    memset(owner, 0xFF, sizeof owner);
    for (int rank = 0; rank < DP; rank++) {
        Loader *l = counting_loader(
            &f, (LoaderOptions){.B = B, .T = 5, .shuffle = true, .dp_rank = rank, .dp_size = DP});
        Loader *twin = counting_loader(
            &f, (LoaderOptions){.B = B, .T = 5, .shuffle = true, .dp_rank = rank, .dp_size = DP});
        for (int64_t step = 0; step < WINDOWS / (DP * B); step++) {
            Batch b = counting_next(l, step * DP * B, 0),
                  same = counting_next(twin, step * DP * B, 0);
            assert_memory_equal(b.tokens.data, same.tokens.data,
                                tensor_bytes(b.tokens)); /* tensor-parallel ranks of one replica */
            for (int64_t row = 0; row < B; row++) {
                int64_t w = window_of(&b, row);
                if (owner[w] >= 0)
                    fail_msg("window %d is read by ranks %d and %d", (int)w, owner[w], rank);
                owner[w] = rank;
            }
        }
        loader_free(twin);
        loader_free(l);
    }
    counting_close(&f);
}

static void test_bug_49_a_token_id_out_of_range_is_reported_to_the_caller(void **state)
{
    (void)state;
    char err[512];
    Batch b;
    CountingSet f = counting_open(101, 50);
    Loader *l = counting_loader(&f, (LoaderOptions){.B = 1, .T = 10, .vocab_size = 55});
    for (int64_t step = 0; step < 5; step++)
        counting_next(l, step, 0);
    assert_false(
        /* the batch was read ahead; its error is reported when it is requested */
        loader_next(l, 5, 0, &b, err, sizeof err));
    assert_non_null(strstr(err, "train_2.bin: token id 55 at byte 1066"));
    assert_false(loader_next(l, 7, 0, &b, err, sizeof err));
    assert_int_equal(window_of(&(Batch){.tokens = counting_next(l, 2, 0).tokens}, 0),
                     2); /* the loader can still be used */
    loader_free(l);
    counting_close(&f);
}

/* Large batches are requested after pauses of different lengths, so some requests arrive while the
 * thread is filling another batch. */
static void test_requests_in_any_order_return_the_right_batch(void **state)
{
    (void)state;
    enum { B = 200, T = 100, WINDOWS = 500 };
    CountingSet f = counting_open(T * WINDOWS + 1, 50);
    Loader *l = counting_loader(&f, (LoaderOptions){.B = B, .T = T, .micros = 2});
    uint64_t work = 0;
    for (uint64_t k = 0; k < 300; k++) {
        int64_t sample = (int64_t)(drawn(51, k) % 700), micro = (int64_t)(drawn(52, k) % 2);
        for (uint64_t pause = k * 37 % 6000; pause > 0; pause--)
            work += drawn(53, pause);
        Batch b = counting_next(l, sample, micro);
        for (int64_t row = 0; row < B; row++)
            assert_int_equal(window_of(&b, row), (sample + micro * B + row) % WINDOWS);
    }
    assert_true(work != 0);
    loader_free(l);
    counting_close(&f);
}

static void test_bug_31_held_batches_are_not_overwritten(void **state)
{
    (void)state;
    enum { HOLD = 3 };
    CountingSet f = counting_open(501, 50);
    Loader *l = counting_loader(&f, (LoaderOptions){.B = 2, .T = 5, .hold = HOLD});
    Batch held[40];
    for (int64_t step = 0; step < 40; step++) {
        held[step] = counting_next(l, 2 * step, 0);
        for (int64_t k = step; k >= 0 && k > step - HOLD; k--)
            assert_int_equal(window_of(&held[k], 1), 2 * k + 1);
    }
    loader_free(l);
    counting_close(&f);
}

static void test_random_tokens_are_in_range_and_depend_only_on_the_sample(void **state)
{
    (void)state;
    CountingSet f = {0};
    data_open_random(&f.data, 97);
    Loader *l = counting_loader(&f, (LoaderOptions){.B = 2, .T = 50, .seed = 3, .vocab_size = 97});
    Batch a = counting_next(l, 1000, 0);
    int32_t copy[100];
    memcpy(copy, a.tokens.data, sizeof copy);
    for (int i = 0; i < 100; i++)
        assert_in_range(copy[i], 0, 96);
    assert_memory_equal((int32_t *)a.targets.data, copy + 1, 49 * sizeof *copy);
    counting_next(l, 0, 0);
    assert_memory_equal(counting_next(l, 1000, 0).tokens.data, copy, sizeof copy);
    loader_free(l);
    data_close(&f.data);
}

static void test_a_loader_can_be_freed_at_any_time(void **state)
{
    (void)state;
    CountingSet f = counting_open(50001, 50);
    for (int k = 0; k < 100; k++) {
        Loader *l = counting_loader(&f, (LoaderOptions){.B = 64, .T = 100, .shuffle = true});
        if (k % 3) counting_next(l, k, 0);
        loader_free(l);
    }
    loader_free(NULL);
    counting_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bug_47_targets_are_the_tokens_shifted_by_one),
    cmocka_unit_test(test_without_shuffle_windows_are_consecutive),
    cmocka_unit_test(test_bug_44_a_resumed_loader_continues_in_the_same_order),
    cmocka_unit_test(test_bug_45_ranks_and_micro_batches_do_not_change_the_order),
    cmocka_unit_test(test_bug_46_data_parallel_ranks_read_different_windows),
    cmocka_unit_test(test_bug_49_a_token_id_out_of_range_is_reported_to_the_caller),
    cmocka_unit_test(test_requests_in_any_order_return_the_right_batch),
    cmocka_unit_test(test_bug_31_held_batches_are_not_overwritten),
    cmocka_unit_test(test_random_tokens_are_in_range_and_depend_only_on_the_sample),
    cmocka_unit_test(test_a_loader_can_be_freed_at_any_time),
};

int main(void)
{
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
