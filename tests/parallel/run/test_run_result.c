/* test_run_result.c -- tests of writing and parsing result.json. */
#include "parallel/run/result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_only_one_JSON_object_with_integer_counts_is_accepted_as_a_result(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"{\"steps\": 10, \"tokens\": 640}", true},
        {"{\"steps\": 10, \"tokens\": 640, \"loss\": null}\n", true},
        {"{\"steps\": 10, \"tokens\": 640", false}, /* truncated */
        {"{\"steps\": 10, \"tokens\": 640} {}", false},
        {"\"steps\": 10, \"tokens\": 640", false},
        {"[{\"steps\": 10, \"tokens\": 640}]", false},
        {"{\"note\": {\"steps\": 10, \"tokens\": 640}}", false},
        {"{\"steps\": 10}", false},
        {"{\"steps\": 10, \"tokens\": null}", false},
        {"{\"steps\": \"10\", \"tokens\": 640}", false},
        {"{\"steps\": 10.5, \"tokens\": 640}", false},
        {"{\"steps\": 1e300, \"tokens\": 640}", false},
        {"{\"steps\": 10, \"tokens\": -1}", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunResult r;
        bool good = run_result_parse(&r, cases[i].text, strlen(cases[i].text));
        if (good != cases[i].good) fail_msg("%s: %d", cases[i].text, good);
        assert_int_equal(r.steps, good ? 10 : 0);
        run_result_free(&r);
    }
}

/* Figures and texts are read back as they were written, and absent ones stay absent. */
static void test_a_result_is_read_back_as_it_was_written(void **unused)
{
    (void)unused;
    char prompt[] = "\"the\"\n", sample[] = "\\x00 \xe2\x82\xac";
    char code[] = "code", news[] = "news";
    SetResult sets[] = {{code, 0.7, 1.5, 320}, {news, 2.0 / 3, NAN, 64}};
    RunResult full = {7, 1 << 20, 0.1, 1.0 / 3, 2.5, 5, 9, 2, 3, 0.3, prompt, sample, sets, 2}, r;
    char *text = run_result_text(&full);
    assert_true(run_result_parse(&r, text, strlen(text)));
    assert_int_equal(r.steps, full.steps);
    assert_int_equal(r.tokens, full.tokens);
    assert_true(r.loss == full.loss && r.val_loss == full.val_loss);
    assert_true(r.bits_per_byte == full.bits_per_byte);
    assert_int_equal(r.patience, full.patience);
    assert_true(r.batches == full.batches && r.all_batches == full.all_batches);
    assert_true(r.best_step == full.best_step && r.best_val_loss == full.best_val_loss);
    assert_string_equal(r.prompt, prompt);
    assert_string_equal(r.sample, sample);
    assert_int_equal(r.n_sets, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(r.set[i].name, sets[i].name);
        assert_true(r.set[i].loss == sets[i].loss && r.set[i].targets == sets[i].targets);
    }
    assert_true(r.set[0].bits_per_byte == 1.5 && isnan(r.set[1].bits_per_byte));
    run_result_free(&r);
    free(text);
    text = run_result_text(
        &(RunResult){.steps = 7, .loss = NAN, .val_loss = NAN, .bits_per_byte = NAN});
    assert_string_equal(text, "{\n\t\"steps\":\t7,\n\t\"tokens\":\t0,\n\t\"loss\":\tnull\n}");
    assert_true(run_result_parse(&r, text, strlen(text)));
    assert_true(isnan(r.loss) && isnan(r.val_loss) && isnan(r.bits_per_byte));
    assert_true(r.best_step == 0 && isnan(r.best_val_loss));
    assert_null(r.prompt);
    assert_null(r.sample);
    run_result_free(&r);
    free(text);
}

/* Token files without a tokenizer have a validation loss, but no bits per byte. */
static void test_unknown_bits_per_byte_are_left_out(void **unused)
{
    (void)unused;
    RunResult r;
    char *text = run_result_text(&(RunResult){.loss = 2, .val_loss = 3, .bits_per_byte = NAN});
    assert_non_null(strstr(text, "\"val_loss\":\t3\n}"));
    free(text);
    static const char old[] =
        "{\"steps\": 1, \"tokens\": 2, \"val_loss\": 3, \"bits_per_byte\": -1}";
    assert_true(run_result_parse(&r, old, strlen(old)));
    assert_true(r.val_loss == 3 && isnan(r.bits_per_byte));
    run_result_free(&r);
}

static void test_damaged_validation_sets_in_a_result_are_ignored(void **unused)
{
    (void)unused;
    static const char *const sets[] = {"7", "[{\"targets\": 1}]", "{\"a\": 7, \"b\": null}",
                                       "{\"a\": {\"loss\": 1, \"targets\": -1}}"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char text[128];
        RunResult r;
        snprintf(text, sizeof text, "{\"steps\": 1, \"tokens\": 2, \"sets\": %s}", sets[i]);
        assert_true(run_result_parse(&r, text, strlen(text)));
        assert_int_equal(r.n_sets, 0);
        run_result_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_one_JSON_object_with_integer_counts_is_accepted_as_a_result),
        cmocka_unit_test(test_a_result_is_read_back_as_it_was_written),
        cmocka_unit_test(test_unknown_bits_per_byte_are_left_out),
        cmocka_unit_test(test_damaged_validation_sets_in_a_result_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
