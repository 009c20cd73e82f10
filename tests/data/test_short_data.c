/* test_short_data.c -- tests that data too short for one window are refused, and that following the
 * advice of the error message is enough. */
#include "data/dataset.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/prepare_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Checks that opening the fixture's data fails with EXIT_CONFIG: they are undamaged, but too
 * short. */
static void refused(const PrepareFixture *f, char *err, size_t n)
{
    DataSet d;
    ExitCode code;
    assert_false(data_open(&f->config, &d, err, n, &code));
    assert_int_equal(code, EXIT_CONFIG);
}

/* The texts have few lines, so rounding to line ends may take up to one line from a split. */
static void test_the_advised_val_fraction_is_large_enough(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    f.config.data.tokenizer_vocab_size = 258;
    for (int i = 0; i < 24; i++) {
        char *text = drawn_text(100 + (uint64_t)i, 300), err[512];
        char *path = f.items[0] = text_file_new(f.folder, "few lines.txt", text);
        f.config.data.seq_length = 8 + 8 * (i % 6);
        f.config.data.val_fraction = 1e-9;
        refused(&f, err, sizeof err);
        const char *advised = strstr(err, "data.val_fraction=");
        if (advised == NULL) fail_msg("no share in: %s", err);
        f.config.data.val_fraction = strtod(strchr(advised, '=') + 1, NULL);
        DataSet d = prepare_fixture_data(&f);
        assert_true(d.val.n_tokens < d.train.n_tokens);
        data_close(&d);
        f.items[0] = f.text_path;
        free(path);
        free(text);
    }
    prepare_fixture_close(&f);
}

/* Tests token shards, as opposed to text. */
static void test_shards_shorter_than_a_window_are_refused_with_advice(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    char *train = text_format("%s/train_*.bin", d.preparation.folder),
         *val = text_format("%s/val_*.bin", d.preparation.folder), err[512], why[256];
    long long tokens = d.val.n_tokens;
    data_close(&d);
    f.config.data.train = (StringList){1, &train};
    f.config.data.val = (StringList){1, &val};
    f.config.data.seq_length = tokens - 1;
    d = prepare_fixture_data(&f);
    data_close(&d);
    f.config.data.seq_length = tokens;
    refused(&f, err, sizeof err);
    snprintf(why, sizeof why,
             "data.val has %lld tokens, fewer than the %lld of one window (data.seq_length + 1); "
             "give more tokens, write data.seq_length %lld or less, or leave data.val out",
             tokens, tokens + 1, tokens - 1);
    assert_string_equal(err, why);
    f.config.data.train = f.config.data.val;
    f.config.data.val.count = 0;
    refused(&f, err, sizeof err);
    snprintf(why, sizeof why,
             "data.train has %lld tokens, fewer than the %lld of one window (data.seq_length + 1); "
             "give more tokens, or write data.seq_length %lld or less",
             tokens, tokens + 1, tokens - 1);
    assert_string_equal(err, why);
    free(train);
    free(val);
    prepare_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_advised_val_fraction_is_large_enough),
        cmocka_unit_test(test_shards_shorter_than_a_window_are_refused_with_advice),
    };
    return cmocka_run_group_tests_name("short data", tests, NULL, NULL);
}
