/* test_job.c -- what a run reads about its batch job, and when it stops before the job's end. */
#include "model/core/clock.h"
#include "parallel/run/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

/* The tests take less time than this, in seconds. */
static const double SOON = 60;

typedef struct {
    const char *id, *restart, *nodes, *end;
} Variables;

static const char *look_up(const void *context, const char *name)
{
    const Variables *v = context;
    return strcmp(name, "SLURM_JOB_ID") == 0          ? v->id
           : strcmp(name, "SLURM_RESTART_COUNT") == 0 ? v->restart
           : strcmp(name, "SLURM_JOB_NODELIST") == 0  ? v->nodes
           : strcmp(name, "SLURM_JOB_END_TIME") == 0  ? v->end
                                                      : NULL;
}

static bool read(BatchJob *job, Variables v, bool *over, char *err, size_t n)
{
    return job_read(job, &(Environment){.get = look_up, .context = &v}, over, err, n);
}

static void test_the_job_text_has_only_values_that_SLURM_can_have_set(void **state)
{
    static const struct {
        Variables variables;
        const char *text;
    } rows[] = {
        {{0}, ""},
        {{.id = "17"}, "SLURM job 17, restart 0"},
        {{.id = "17", .restart = "2"}, "SLURM job 17, restart 2"},
        {{.id = "17", .nodes = "n[1-2],gpu-07"}, "SLURM job 17, restart 0, on n[1-2],gpu-07"},
        {{.id = "17", .nodes = "n1,n2;reboot"}, "SLURM job 17, restart 0"},
        {{.id = "17", .restart = "\n"}, "SLURM job 17, restart 0"},
        {{.id = "seventeen", .nodes = "n1"}, ""},
        {{.id = "", .nodes = "n1"}, ""},
        {{.id = "99999999999"}, ""},
        {{.id = "17",
          .nodes =
              "n[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55]"},
         "SLURM job 17, restart 0, on 28 machines"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        BatchJob job;
        bool over;
        char err[256];
        assert_true(read(&job, rows[i].variables, &over, err, sizeof err));
        assert_string_equal(job.text, rows[i].text);
        assert_true(job.end == 0 && !over);
    }
}

static void test_an_end_of_the_job_in_the_past_counts_as_unknown(void **state)
{
    static const struct {
        double left; /* seconds from now to the end that the variable states */
        bool known, over;
    } rows[] = {{1e4, true, false}, {1e8, true, false}, {-1, false, true}, {-1e8, false, true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        BatchJob job;
        bool over;
        char err[256], value[32];
        snprintf(value, sizeof value, "%.0f", wall_seconds_now() + rows[i].left);
        assert_true(read(&job, (Variables){.end = value}, &over, err, sizeof err));
        double left = job.end - seconds_now();
        assert_int_equal(over, rows[i].over);
        if (!rows[i].known) assert_true(job.end == 0);
        if (rows[i].known) assert_true(left > rows[i].left - SOON && left < rows[i].left + SOON);
    }
}

static void test_a_job_with_an_unknown_end_sets_no_time_limit(void **state)
{
    static const char *const values[] = {NULL,         "",           "0",
                                         "4294967294", "4294967295", "18446744073709551"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        BatchJob job;
        bool over;
        char err[256];
        assert_true(read(&job, (Variables){.end = values[i]}, &over, err, sizeof err));
        assert_true(job.end == 0 && !over);
        assert_true(isinf(job_seconds(&job, 1e9, 1e9)));
    }
}

static void test_a_job_end_that_is_not_a_time_is_refused(void **state)
{
    static const char *const values[] = {"tomorrow", "1800000600.5", "-1",
                                         "1e9",      " 5",           "9999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        BatchJob job;
        bool over;
        char err[256] = "", says[128];
        if (read(&job, (Variables){.end = values[i]}, &over, err, sizeof err))
            fail_msg("%s is accepted", values[i]);
        snprintf(says, sizeof says, "SLURM_JOB_END_TIME=%s is not the time", values[i]);
        assert_true(strncmp(err, says, strlen(says)) == 0);
    }
}

/* A run leaves a minute of a long job unused, and a tenth of a short one. */
static void test_the_slack_is_a_tenth_of_the_job_but_at_most_a_minute(void **state)
{
    static const double left[] = {1e6, 3600, 600, 300, 100}, slack[] = {60, 60, 60, 30, 10};
    (void)state;
    for (int i = 0; i < 5; i++) {
        BatchJob job;
        bool over;
        char err[256], value[32];
        snprintf(value, sizeof value, "%.0f", wall_seconds_now() + left[i]);
        assert_true(read(&job, (Variables){.end = value}, &over, err, sizeof err));
        assert_true(job.slack <= slack[i] + 0.1 && job.slack > 0.9 * slack[i] - 0.1 * SOON);
    }
}

/* With a slack of 1000 s, a save of 10,000 s and a step of 100 s must begin 11,100 s before the
 * end. */
static void test_a_run_leaves_time_for_a_step_and_a_save_before_its_job_ends(void **state)
{
    (void)state;
    BatchJob job = {.end = seconds_now() + 11100 + 5000, .slack = 1000};
    double left = job_seconds(&job, 10000, 100);
    assert_true(left <= 5000 && left > 5000 - SOON);
    job.end = seconds_now() + 11100;
    assert_true(job_seconds(&job, 10000, 100) <= 0);
}

static void test_the_remaining_time_of_a_job_is_in_seconds_or_minutes(void **state)
{
    static const struct {
        double left;
        const char *text;
    } rows[] = {{0, "0 seconds"},        {1, "1 second"},    {90, "90 seconds"},
                {119.4, "119 seconds"},  {120, "2 minutes"}, {250, "4 minutes"},
                {86399, "1,439 minutes"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        BatchJob job = {.end = seconds_now() + rows[i].left + 0.5};
        assert_string_equal(job_left(&job).text, rows[i].text);
    }
    assert_string_equal(job_left(&(BatchJob){.end = seconds_now() - 5}).text, "0 seconds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_job_text_has_only_values_that_SLURM_can_have_set),
        cmocka_unit_test(test_an_end_of_the_job_in_the_past_counts_as_unknown),
        cmocka_unit_test(test_a_job_with_an_unknown_end_sets_no_time_limit),
        cmocka_unit_test(test_a_job_end_that_is_not_a_time_is_refused),
        cmocka_unit_test(test_the_slack_is_a_tenth_of_the_job_but_at_most_a_minute),
        cmocka_unit_test(test_a_run_leaves_time_for_a_step_and_a_save_before_its_job_ends),
        cmocka_unit_test(test_the_remaining_time_of_a_job_is_in_seconds_or_minutes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
