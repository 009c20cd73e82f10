/* test_report_rows.c -- the rows that the console prints, and their figures: remaining time, step
 * time, speed per rank, phases, and a width of at most 80 columns. */
#include "parallel/report/metrics.h"
#include "parallel/trainer/phases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The remaining time counts the steps, what is due before the last step, and each kind of work once
 * at the end. */
static void the_remaining_time_includes_due_evaluations_samples_and_saves(void **unused)
{
    (void)unused;
    Pace p = {.train_steps = 100,
              .eval_interval = 10,
              .sample_interval = 25,
              .save_interval = 40,
              .eval_seconds = -1,
              .sample_seconds = -1,
              .save_seconds = -1,
              .eval_steps = 3};
    /* Evaluations at 10, 20, ... 90 and 100, which take 3 steps of 2 seconds each. */
    assert_true(pace_seconds_left(&p, 0, 2) == 200 + 10 * 6);
    p.eval_seconds = 5;
    p.sample_seconds = 7;
    p.save_seconds = 11;
    assert_true(pace_seconds_left(&p, 0, 2) == 200 + 10 * 5 + 4 * 7 + 3 * 11);
    /* What is due at step 50 is still to come, because the step has just been made. */
    assert_true(pace_seconds_left(&p, 50, 2) == 100 + 6 * 5 + 3 * 7 + 2 * 11);
    assert_true(pace_seconds_left(&p, 51, 2) == 98 + 5 * 5 + 2 * 7 + 2 * 11);
    assert_true(pace_seconds_left(&p, 100, 2) == 5 + 7 + 11);
    p.eval_interval = p.sample_interval = p.save_interval = 0;
    assert_true(pace_seconds_left(&p, 50, 2) == 100 + 5 + 7 + 11);
}

/* With four micro-batches, the update occurs once, and communication occurs once up to ZeRO stage
 * 1. */
static void test_the_step_time_counts_each_micro_batch_but_only_one_update(void **state)
{
    (void)state;
    const StepTimes one = {.micro_batch = 8, .update = 1, .communication = 3};
    for (int64_t stage = 0; stage <= 3; stage++)
        assert_true(pace_step_seconds(&one, 4, stage) == 32 + 1 + (stage < 2 ? 3 : 12));
    assert_true(pace_step_seconds(&one, 1, 3) == 12);
    const StepTimes filled = {.micro_batch = 8, .update = 1, .communication = 3, .fill = 1.5};
    assert_true(pace_step_seconds(&filled, 4, 0) == 44 + 1 + 3);
}

/* Communication of tensor-parallel ranks in the layers belongs to the micro-batch, other
 * communication does not. */
static void test_layer_communication_counts_as_part_of_the_micro_batch(void **state)
{
    (void)state;
    const PhaseSeconds s = {.forward = 1,
                            .backward = 2,
                            .optimizer = 4,
                            .layers = 8,
                            .communication = 16,
                            .exchange = 32,
                            .bubble = 64};
    const StepTimes times = phases_times(&s, 128);
    assert_true(times.micro_batch == 1 + 2 + 8 + 32 + 128);
    assert_true(times.update == 4 && times.communication == 16 && times.fill == 0);
}

/* The remaining time is shown after five steps, after five seconds of steps, or when no step is
 * left. */
static void the_remaining_time_is_shown_after_five_steps_or_five_seconds(void **unused)
{
    (void)unused;
    static const struct {
        int64_t made, all;
        double seconds; /* per step */
        const char *eta;
    } cases[] = {{4, 5, 0.4, "-"},    {4, 104, 1.2, "-"}, {5, 15, 0.4, "0:04"},
                 {1, 101, 4.9, "-"},  {1, 11, 5, "0:50"}, {2, 12, 2.5, "0:25"},
                 {1, 1, 0.1, "0:00"}, {5, 5, 0.1, "0:00"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *shown = NULL, err[256];
        size_t n = 0;
        Metrics *m = NULL;
        MetricsOptions options = {.pace = {.train_steps = 100 + cases[i].all,
                                           .eval_seconds = -1,
                                           .sample_seconds = -1,
                                           .save_seconds = -1},
                                  .resumed_step = 100,
                                  .to = open_memstream(&shown, &n)};
        assert_true(metrics_open(&m, &options, err, sizeof err));
        StepRecord r = {.step = 100 + cases[i].made};
        SpeedRecord s = {.seconds = cases[i].seconds, .steps = 1, .forward = -1};
        metrics_step(m, &r);
        metrics_report(m, &s);
        fflush(options.to);
        char *eta = strrchr(shown, ' ') + 1;
        eta[strcspn(eta, "\n")] = '\0';
        if (strcmp(eta, cases[i].eta) != 0)
            fail_msg("case %zu: \"%s\", not \"%s\"", i, eta, cases[i].eta);
        metrics_close(m);
        fclose(options.to);
        free(shown);
    }
}

/* Prints header and rows with small and with absurd numbers, with and without a column for the loss
 * scale. */
static void console_rows_fit_80_columns_even_with_absurd_numbers(void **unused)
{
    (void)unused;
    StepRecord rows[] = {{.step = 1, .loss = 5.5, .lr = 4e-3, .loss_scale = 65536},
                         {.step = 99999999, .loss = 2e13},
                         {.step = 7, .loss = -NAN, .grad_norm = -NAN}};
    rows[1].tokens = 999999999999999;
    rows[1].lr = 1.234e-30;
    rows[1].grad_norm = 1.234e+30;
    rows[1].loss_scale = 0x1p120;
    rows[2].loss_scale = 65537.5;
    for (int scale = 0; scale < 2; scale++) {
        char *shown = NULL, err[256];
        size_t n = 0;
        Metrics *m = NULL;
        MetricsOptions options = {.pace = {.train_steps = 100000000},
                                  .resumed_step = -1,
                                  .loss_scale_shown = scale,
                                  .to = open_memstream(&shown, &n)};
        assert_true(metrics_open(&m, &options, err, sizeof err));
        SpeedRecord speed = {.seconds = 1e-5,
                             .steps = 1,
                             .tokens = 123456789,
                             .flops_per_token = 6e6,
                             .forward = 1234.5,
                             .backward = 2345.6,
                             .optimizer = 345.6,
                             .data = 45.6};
        for (int i = 0; i < 3; i++) {
            metrics_step(m, &rows[i]);
            metrics_report(m, &speed);
            EvalRecord eval = {
                .step = rows[i].step, .loss = rows[i].loss, .bits_per_byte = 1.5, .seconds = 12345};
            metrics_eval(m, &eval, NULL, 0);
        }
        metrics_sample(m, 7, 0, "In the beginning",
                       " was the word and the word was with "
                       "the other words of the same line");
        char unbroken[401] = "";
        memset(unbroken, 'x', sizeof unbroken - 1);
        metrics_sample(m, 7, 0, "", unbroken);
        metrics_sample(m, 7, 0, "word ", unbroken);
        metrics_saved(
            m, &(SaveRecord){.at = {.step = 7},
                             .seconds = 0.01,
                             .stall = 0.01,
                             .path = "out/a-name-that-is-long/checkpoints/step_00000007-more"});
        fflush(options.to);
        assert_non_null(strstr(shown, "2.00e+13"));
        assert_int_equal(scale, strstr(shown, "2^120") != NULL);
        assert_non_null(strstr(shown, "     nan "));
        assert_null(strstr(shown, "-nan"));
        for (char *line = strtok(shown, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) >= 80) fail_msg("%zu columns: %s", strlen(line), line);
        metrics_close(m);
        fclose(options.to);
        free(shown);
    }
}

/* Fails unless `shown` contains `what`; blanks and line breaks are ignored. */
static void says(const char *shown, const char *what)
{
    char line[4096];
    size_t n = 0;
    for (; *shown && n < sizeof line - 1; shown++)
        if (*shown != ' ' && *shown != '\n') line[n++] = *shown;
    line[n] = '\0';
    if (strstr(line, what) == NULL) fail_msg("not \"%s\" in:\n%s", what, line);
}

/* Returns what is printed for steps with these times, and then for the same steps without the
 * breakdown, on the console or as lines of metrics.jsonl. The caller frees it. */
static char *report_of(SpeedRecord speed, bool json)
{
    char *shown = NULL, err[256];
    size_t n = 0;
    Metrics *m = NULL;
    MetricsOptions options = {
        .pace = {.train_steps = 100}, .json = json, .to = open_memstream(&shown, &n)};
    assert_true(metrics_open(&m, &options, err, sizeof err));
    metrics_step(m, &(StepRecord){.step = 10, .loss = 1, .applied = true});
    metrics_report(m, &speed);
    speed.forward = -1;
    metrics_report(m, &speed);
    metrics_close(m);
    fclose(options.to);
    return shown;
}

/* Each of four ranks has a quarter of the tokens and operations per second; its work is printed per
 * step. */
static void the_report_prints_the_speed_and_work_per_rank(void **unused)
{
    (void)unused;
    char *shown = report_of((SpeedRecord){.seconds = 2,
                                          .steps = 2,
                                          .tokens = 4000,
                                          .flops_per_token = 6e6,
                                          .forward = 1,
                                          .ranks = 4,
                                          .slowest = 3,
                                          .mean_work = 0.5,
                                          .most_work = 0.75},
                            false);
    says(shown, "arank:500tok/s3.0GFLOP/swork250.00msastep,");
    says(shown, "mostonrank3:375.00");
    says(shown, "rank0,msastep:forward500.00"); /* the phases printed above are rank 0's */
    free(shown);
}

/* Phases are measured by the device's clock and the step by the host's, so the phases together may
 * take longer than the step. */
static void other_time_is_never_printed_as_negative(void **unused)
{
    (void)unused;
    char *shown = report_of(
        (SpeedRecord){.seconds = 2, .steps = 2, .tokens = 4000, .forward = 1, .backward = 1.25},
        false);
    says(shown, "backward625.00");
    says(shown, "other0.00");
    assert_null(strstr(shown, "rank"));
    free(shown);
}

/* Ten steps take ten seconds: exchange and bubble between stages are printed next to the phases and
 * not counted again as other time. */
static void the_breakdown_lists_exchange_and_bubble_only_with_several_stages(void **unused)
{
    (void)unused;
    for (int stages = 0; stages < 2; stages++) {
        char *shown = report_of((SpeedRecord){.seconds = 10,
                                              .steps = 10,
                                              .forward = 1,
                                              .backward = 2,
                                              .optimizer = 0.5,
                                              .data = 0.25,
                                              .communication = 1.25,
                                              .exchange = stages ? 0.75 : 0,
                                              .bubble = stages ? 3 : 0},
                                false);
        says(shown, "forward100.00backward200.00optimizer50.00");
        says(shown, "communication125.00");
        if (stages) says(shown, "exchange75.00bubble300.00");
        if (!stages) assert_null(strstr(shown, "exchange"));
        says(shown, stages ? "other125.00" : "other500.00");
        free(shown);
    }
}

/* Exposed communication is printed below the phases, for each axis that has any, and in seconds in
 * metrics.jsonl. Without the breakdown it is not printed. */
static void exposed_communication_is_reported_by_axis_only_with_the_breakdown(void **unused)
{
    (void)unused;
    for (int json = 0; json < 2; json++) {
        char *shown =
            report_of((SpeedRecord){.seconds = 10,
                                    .steps = 10,
                                    .forward = 1,
                                    .backward = 2,
                                    .optimizer = 0.5,
                                    .data = 0.25,
                                    .exposed = {[EXPOSED_DP] = 0.125, [EXPOSED_PP] = 1.5}},
                      json == 1);
        says(shown, json
                        ? "\"exposed_dp\":0.125,\"exposed_pp\":1.5"
                        : "other625.00exposedcommunication,msastep,themostofarank:dp12.50pp150.00");
        assert_null(strstr(shown, json ? "exposed_tp" : "tp "));
        const char *first = strstr(shown, "exposed");
        assert_null(strstr(first + strlen("exposed_dp"), json ? "exposed_dp" : "exposed"));
        free(shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_step_time_counts_each_micro_batch_but_only_one_update),
        cmocka_unit_test(test_layer_communication_counts_as_part_of_the_micro_batch),
        cmocka_unit_test(the_remaining_time_includes_due_evaluations_samples_and_saves),
        cmocka_unit_test(the_remaining_time_is_shown_after_five_steps_or_five_seconds),
        cmocka_unit_test(the_breakdown_lists_exchange_and_bubble_only_with_several_stages),
        cmocka_unit_test(exposed_communication_is_reported_by_axis_only_with_the_breakdown),
        cmocka_unit_test(console_rows_fit_80_columns_even_with_absurd_numbers),
        cmocka_unit_test(the_report_prints_the_speed_and_work_per_rank),
        cmocka_unit_test(other_time_is_never_printed_as_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
