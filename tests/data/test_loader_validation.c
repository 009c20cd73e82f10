/* test_loader_validation.c -- tests validation batches: every window is read exactly once, and
 * validation ends where it should. */
#include "tests/support/files/loader_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_bug_2_the_last_validation_batch_is_padded_with_masked_rows(void **state)
{
    (void)state;
    enum { T = 4, B = 2, DP = 2, WINDOWS = 5 };
    CountingSet f = counting_open(100, T * WINDOWS + 3);
    int seen[DP * B * 2] = {0};
    int64_t targets = 0;
    for (int rank = 0; rank < DP; rank++) {
        Loader *l = counting_loader(&f, (LoaderOptions){.split = SPLIT_VAL,
                                                        .B = B,
                                                        .T = T,
                                                        .shuffle = true,
                                                        .dp_rank = rank,
                                                        .dp_size = DP,
                                                        .micros = 2});
        assert_int_equal(loader_windows(l), WINDOWS);
        assert_int_equal(loader_dropped_tokens(l), 2);
        assert_int_equal(loader_batches(l), 2);
        for (int64_t micro = 0; micro < loader_batches(l); micro++) {
            Batch b = counting_next(l, 0, micro);
            targets += b.n_targets;
            for (int64_t row = 0; row < B; row++) {
                int64_t index = (micro * DP + rank) * B + row;
                const int32_t *y = tensor_row(b.targets, row), *x = tensor_row(b.tokens, row);
                for (int t = 0; t < T; t++) {
                    assert_int_equal(y[t], index < WINDOWS ? index * T + t + 1 : -1);
                    assert_int_equal(x[t], index < WINDOWS ? index * T + t : 0);
                }
                seen[index]++;
            }
        }
        loader_free(l);
    }
    assert_int_equal(targets, WINDOWS * T);
    for (int i = 0; i < DP * B * 2; i++)
        assert_int_equal(seen[i], 1);
    counting_close(&f);
}

/* Validation ends before the end of its data, in the middle of a micro-batch. Two ranks together
 * must read each of these windows once and no other window. */
static void test_validation_reads_exactly_max_windows(void **state)
{
    (void)state;
    enum { T = 4, B = 2, DP = 2, WINDOWS = 9, MOST = 5 };
    CountingSet f = counting_open(100, T * WINDOWS + 3);
    int seen[WINDOWS] = {0};
    for (int rank = 0; rank < DP; rank++) {
        Loader *l = counting_loader(&f, (LoaderOptions){.split = SPLIT_VAL,
                                                        .B = B,
                                                        .T = T,
                                                        .dp_rank = rank,
                                                        .dp_size = DP,
                                                        .max_windows = MOST,
                                                        .micros = 2});
        assert_int_equal(loader_windows(l), WINDOWS);
        assert_int_equal(loader_batches(l), 2);
        for (int64_t micro = 0; micro < loader_batches(l); micro++) {
            Batch b = counting_next(l, 0, micro);
            for (int64_t row = 0; row < B; row++) {
                int32_t first = *(const int32_t *)tensor_row(b.targets, row);
                if (first >= 0) seen[(first - 1) / T]++;
            }
        }
        loader_free(l);
    }
    for (int i = 0; i < WINDOWS; i++)
        assert_int_equal(seen[i], i < MOST);
    counting_close(&f);
}

static void test_validation_data_shorter_than_a_window_are_refused(void **state)
{
    (void)state;
    char err[512];
    Loader *l;
    CountingSet f = counting_open(40, 10);
    LoaderOptions o = {
        .split = SPLIT_VAL, .B = 1, .T = 10, .vocab_size = 9, .dp_size = 1, .micros = 1};
    assert_false(loader_create(&l, &f.data, &o, err, sizeof err));
    assert_string_equal(
        err,
        "the validation data has 10 tokens, fewer than the 11 of one window (data.seq_length + 1)");
    counting_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bug_2_the_last_validation_batch_is_padded_with_masked_rows),
    cmocka_unit_test(test_validation_reads_exactly_max_windows),
    cmocka_unit_test(test_validation_data_shorter_than_a_window_are_refused),
};

int main(void)
{
    return cmocka_run_group_tests_name("loader validation", tests, NULL, NULL);
}
