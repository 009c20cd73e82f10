/* test_config_length.c -- tests the keys that set the length of a run: train_tokens, how
 * train_steps follows from it, and eval.patience. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A step of these configs has 2 x 3 x 8 = 48 tokens on one rank. */
#define BATCH_OF_48                                                                                \
    "\"data\": {\"text\": \"t\", \"seq_length\": 8}, \"train_micro_batch_size_per_gpu\": 2, "      \
    "\"gradient_accumulation_steps\": 3"

static void train_tokens_are_rounded_up_to_whole_steps(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        int64_t world, steps, warmup;
        const char *origin;
    } cases[] = {
        {"\"train_tokens\": 480", NULL, 1, 10, 5, "derived from train_tokens"},
        {"\"train_tokens\": 481", NULL, 1, 11, 6, "derived from train_tokens"},
        {"\"train_tokens\": 1", NULL, 1, 1, 1, "derived from train_tokens"},
        {"\"train_tokens\": 48000000000", NULL, 1, 1000000000, 500000000,
         "derived from train_tokens"},
        {"\"train_tokens\": 480", NULL, 2, 5, 3, "derived from train_tokens"},
        {"\"train_tokens\": null, \"train_steps\": 7", NULL, 1, 7, 4, "config:1"},
        {"\"train_tokens\": 480", "train_steps=20", 1, 20, 10, "--set"},
        {"\"train_steps\": 20", "train_tokens=480", 1, 10, 5, "derived from train_tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text =
            text_format("{" BATCH_OF_48 ", %s, \"scheduler\": {\"type\": \"WarmupCosineLR\", "
                        "\"params\": {\"warmup_ratio\": 0.5}}}",
                        cases[i].keys);
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = cases[i].world}, NULL, text,
                                       strlen(text), cases[i].set != NULL, &cases[i].set, &report);
        if (c == NULL) fail_msg("%s: %s", cases[i].keys, report.error[0]);
        assert_int_equal(c->train_steps, cases[i].steps);
        assert_int_equal(c->scheduler.params.total_num_steps, cases[i].steps);
        assert_int_equal(c->scheduler.params.warmup_num_steps, cases[i].warmup);
        assert_string_equal(config_origin(c, "train_steps"), cases[i].origin);
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

static void train_tokens_and_train_steps_of_the_same_length_do_not_differ(void **state)
{
    (void)state;
    static const char *const keys[] = {"train_tokens\": 470", "train_steps\": 10",
                                       "train_tokens\": 481"};
    const Config *c[3];
    ConfigDifference *d;
    ConfigReport report;
    for (int i = 0; i < 3; i++) {
        char *text = text_format("{" BATCH_OF_48 ", \"%s}", keys[i]);
        c[i] = config_parse(NULL, NULL, text, strlen(text), 0, NULL, &report);
        assert_non_null(c[i]);
        config_report_free(&report);
        free(text);
    }
    int n = config_diff(c[0], c[1], &d);
    assert_int_equal(n, 0);
    config_diff_free(d, n);
    n = config_diff(c[0], c[2], &d);
    assert_true(n > 0);
    config_diff_free(d, n);
    for (int i = 0; i < 3; i++)
        config_free(c[i]);
}

static void train_tokens_are_refused_if_too_many_or_given_with_train_steps(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *error;
    } cases[] = {
        {"\"train_tokens\": 480, \"train_steps\": 10",
         "config:1:113: train_tokens: train_steps is given too; keep one of the two"},
        {"\"train_tokens\": 48000000001",
         "config:1:113: train_tokens: 1000000001 steps of 48 tokens are more than 1000000000; "
         "write at most 48000000000"},
        {"\"train_tokens\": 48000000001, \"scheduler\": {\"type\": \"WarmupCosineLR\", "
         "\"params\": {\"warmup_num_steps\": 2000}}",
         "config:1:113: train_tokens: 1000000001 steps of 48 tokens are more than 1000000000; "
         "write at most 48000000000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{" BATCH_OF_48 ", %s}", cases[i].keys);
        ConfigReport report;
        assert_null(config_parse(NULL, NULL, text, strlen(text), 0, NULL, &report));
        assert_string_equal(report.error[0], cases[i].error);
        assert_int_equal(report.n_errors, 1);
        config_report_free(&report);
        free(text);
    }
}

/* On more ranks, the same train_tokens are fewer steps, here fewer than the warmup has. That is no
 * error for a run that is only opened. */
static void a_stored_run_with_train_tokens_can_be_opened_on_more_ranks(void **state)
{
    (void)state;
    static const char text[] =
        "{\"_world\": 1, " BATCH_OF_48 ", \"train_tokens\": 480, \"scheduler\": {\"type\": "
        "\"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": 9}}}";
    const ConfigContext context = {.stored = true, .opened = 4};
    ConfigReport report;
    const Config *c = config_parse(&context, NULL, text, strlen(text), 0, NULL, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    config_free(c);
}

/* Patience is useless without evaluations before the end, or without validation data. */
static void a_patience_that_can_never_end_the_run_gives_a_notice(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *notice; /* NULL: none */
    } cases[] = {
        {"\"data\": {\"text\": \"t\"}", NULL},
        {"\"data\": {\"text\": \"t\", \"val_text\": \"v\", \"val_fraction\": 0}", NULL},
        {"\"data\": {\"text\": \"t\", \"val_fraction\": 0}",
         "config:1:3: notice: eval.patience: 3, without effect: there is no validation data"},
        {"\"data\": {\"train\": \"t\"}",
         "config:1:3: notice: eval.patience: 3, without effect: there is no validation data"},
        {"\"data\": {\"train\": \"t\", \"val\": \"v\"}", NULL},
        {"\"data\": {\"text\": \"t\"}, \"eval.interval\": 0",
         "config:1:3: notice: eval.patience: 3, without effect: eval.interval is 0, so only the "
         "end is "
         "evaluated"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text =
            text_format("{ \"eval.patience\": 3, %s, \"train_batch_size\": 1}", cases[i].keys);
        ConfigReport report;
        const char *found = NULL;
        const Config *c = config_parse(NULL, NULL, text, strlen(text), 0, NULL, &report);
        if (c == NULL) fail_msg("%s: %s", text, report.error[0]);
        for (int k = 0; k < report.n_notices; k++)
            if (strstr(report.notice[k], "patience") != NULL) found = report.notice[k];
        if ((found != NULL) != (cases[i].notice != NULL)) fail_msg("%s", text);
        if (found != NULL) assert_string_equal(found, cases[i].notice);
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_tokens_are_rounded_up_to_whole_steps),
        cmocka_unit_test(train_tokens_and_train_steps_of_the_same_length_do_not_differ),
        cmocka_unit_test(train_tokens_are_refused_if_too_many_or_given_with_train_steps),
        cmocka_unit_test(a_stored_run_with_train_tokens_can_be_opened_on_more_ranks),
        cmocka_unit_test(a_patience_that_can_never_end_the_run_gives_a_notice),
    };
    return cmocka_run_group_tests_name("config length", tests, NULL, NULL);
}
