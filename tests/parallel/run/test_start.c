/* test_start.c -- tests that a start opens each device only once and builds the parameter table
 * only once, because the memory plan uses the same objects as the training. Also tests that a start
 * checks the schedules of a pipeline. */
#include "tests/support/device/late_device.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- counted calls: the linker redirects them to these functions (--wrap) -------------------- */

static _Atomic int n_devices, n_tables, n_checks; /* ranks are threads */

void __real_gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                             const LayersPart *part);
void __wrap_gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                             const LayersPart *part);
void __wrap_gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                             const LayersPart *part)
{
    n_tables++;
    __real_gpt_layers_build(layers, table, whole, part);
}

bool __real_schedule_check(const ScheduleSpec *spec, char *err, size_t n);
bool __wrap_schedule_check(const ScheduleSpec *spec, char *err, size_t n);
bool __wrap_schedule_check(const ScheduleSpec *spec, char *err, size_t n)
{
    n_checks++;
    return __real_schedule_check(spec, err, n);
}

static void print_checks(void)
{
    printf("checked: %d schedules\n", n_checks);
}

static void count_checks_until_exit(void)
{
    n_checks = 0;
    atexit(print_checks);
}

static void print_counts(void)
{
    printf("counted: %d devices, %d tables\n", late_devices_opened() - n_devices, n_tables);
}

static void count_until_exit(void)
{
    n_devices = late_devices_opened();
    n_tables = 0;
    atexit(print_counts);
}

/* ---- starts ---------------------------------------------------------------------------------- */

static void counts(char *said, const char *expected)
{
    if (strstr(said, expected) == NULL) fail_msg("not \"%s\" in:\n%s", expected, said);
    free(said);
}

static void test_a_starting_run_opens_one_device_and_builds_one_parameter_table(void **state)
{
    (void)state;
    disturbance = (Disturbance){.first = count_until_exit};
    counts(run_expecting("run", NULL, 0), "counted: 1 devices, 1 tables\n");
    /* The second start finds the run finished. */
    counts(run_expecting("run", NULL, 0), "counted: 1 devices, 1 tables\n");
    disturbance.dry = true;
    counts(run_expecting("dry", NULL, 0), "counted: 1 devices, 1 tables\n");
}

static void test_a_resume_opens_one_device_and_builds_one_parameter_table(void **state)
{
    (void)state;
    disturbance = (Disturbance){
        .kind = WORK_STEP, .round = 3, .act = ask_by_signal, .first = count_until_exit};
    counts(run_expecting("stopped", NULL, EXIT_REQUEUE), "counted: 1 devices, 1 tables\n");
    disturbance = (Disturbance){.first = count_until_exit};
    counts(run_expecting("stopped", NULL, 0), "counted: 1 devices, 1 tables\n");
}

/* A run that does not fit in memory is refused before its weights are allocated. */
static void test_a_refused_run_opens_one_device_and_builds_one_parameter_table(void **state)
{
    (void)state;
    disturbance = (Disturbance){.first = count_until_exit};
    const char *sets[] = {"model.hidden_size=1000000", NULL};
    counts(run_expecting("large", sets, EXIT_NO_MEMORY), "counted: 1 devices, 1 tables\n");
}

static void refuse_one(void)
{
    count_until_exit();
    late_devices_refuse(1);
}

/* Each rank opens its own device. If one rank gets none, the run ends with that rank's error, and
 * the other ranks do not hang in a collective call. */
static void test_a_run_on_three_ranks_opens_one_device_per_rank_or_fails(void **state)
{
    (void)state;
    disturbance = (Disturbance){.first = count_until_exit, .ranks = 3};
    counts(run_expecting("three", NULL, 0), "counted: 3 devices, 3 tables\n");
    disturbance.first = refuse_one;
    char *said = run_expecting("two", NULL, EXIT_UNAVAILABLE);
    assert_false(is_there("two"));
    assert_non_null(strstr(said, "error[69] no device is left for rank 1\n"));
    assert_ptr_equal(strstr(said, "error["), strstr(said, "error[69]"));
    assert_null(strstr(strstr(said, "error[69]") + 1, "error["));
    free(said);
}

/* One rank checks the schedule of a step, and those of evaluations with 1 to 8 micro-batches (four
 * per stage). With a single stage there is nothing to check. */
static void test_a_starting_run_checks_schedules_only_if_it_has_several_stages(void **state)
{
    (void)state;
    const char *sets[] = {"parallel.pipeline=2", "model.num_layers=2", NULL};
    disturbance = (Disturbance){.first = count_checks_until_exit, .ranks = 2};
    counts(run_expecting("stages", sets, 0), "checked: 9 schedules\n");
    counts(run_expecting("no-stages", NULL, 0), "checked: 0 schedules\n");
}

static void test_generate_and_eval_open_one_device_and_build_one_table(void **state)
{
    (void)state;
    disturbance = (Disturbance){0};
    free(run_expecting("written", NULL, 0));
    disturbance.first = count_until_exit;
    counts(command_expecting((const char *[]){"generate", "written", "--tokens", "2", NULL}, 0),
           "counted: 1 devices, 1 tables\n");
    counts(command_expecting((const char *[]){"eval", "written", NULL}, 0),
           "counted: 1 devices, 1 tables\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_starting_run_opens_one_device_and_builds_one_parameter_table),
        cmocka_unit_test(test_a_resume_opens_one_device_and_builds_one_parameter_table),
        cmocka_unit_test(test_a_refused_run_opens_one_device_and_builds_one_parameter_table),
        cmocka_unit_test(test_a_run_on_three_ranks_opens_one_device_per_rank_or_fails),
        cmocka_unit_test(test_a_starting_run_checks_schedules_only_if_it_has_several_stages),
        cmocka_unit_test(test_generate_and_eval_open_one_device_and_build_one_table),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
