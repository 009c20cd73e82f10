/* test_run_plan.c -- tests of what a run prints before it allocates: warnings about a text that is
 * read too often, and refusals of a run that does not fit in memory. */
#include "tests/support/device/late_device.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns the output of a dry run with up to three --set options. */
static char *dry(const char *a, const char *b, const char *c, int code)
{
    disturbance = (Disturbance){.dry = true};
    return run_expecting("dry", (const char *[]){a, b, c, NULL}, code);
}

/* If a single step is more than ten passes, fewer steps do not help. */
static void test_a_step_of_over_ten_passes_advises_a_smaller_batch(void **state)
{
    (void)state;
    char *said =
        dry("gradient_accumulation_steps=20000", "train_micro_batch_size_per_gpu=1", NULL, 0);
    says(said,
         "give it more text, or a smaller gradient_accumulation_steps (now 20000: a step is ");
    assert_null(strstr(said, "fewer train_steps"));
    free(said);
    /* A single micro-batch of more than ten passes does not fit in memory, so the run is refused,
     * but the warning is printed first. */
    said = dry("train_micro_batch_size_per_gpu=4000000", NULL, NULL, EXIT_NO_MEMORY);
    says(said, "a smaller train_micro_batch_size_per_gpu (now 4000000: a step is ");
    free(said);
}

/* A refusal names the settings that can help. It does not name a setting that already has its
 * smallest value, nor the batch size if the model alone is too large. */
static void test_a_refused_plan_names_only_settings_that_help(void **state)
{
    (void)state;
    static const char one[] = "train_micro_batch_size_per_gpu=1",
                      rows[] = "data.seq_length=300000000",
                      full[] = "activation_checkpointing.policy=full";
    char *said = dry("train_micro_batch_size_per_gpu=4000000", NULL, NULL, EXIT_NO_MEMORY);
    says(said, "; lower train_micro_batch_size_per_gpu (now 4000000), data.seq_length (now 16), or "
               "the model, or set activation_checkpointing.policy to \"selective\" or \"full\"");
    free(said);
    said = dry(one, rows, "activation_checkpointing.policy=selective", EXIT_NO_MEMORY);
    says(said, "; lower data.seq_length (now 300000000), or the model, or set "
               "activation_checkpointing.policy to \"full\"\n");
    free(said);
    said = dry(one, rows, full, EXIT_NO_MEMORY);
    says(said, "; lower data.seq_length (now 300000000), or the model\n");
    free(said);
    said = dry("model.hidden_size=1000000", one, full, EXIT_NO_MEMORY);
    says(said, ": 12.00 T parameters\n");
    says(said, "; choose a smaller model: its weights, gradients and optimizer alone take ");
    assert_null(strstr(said, "train_micro_batch_size_per_gpu"));
    free(said);
}

/* The parts of a memory plan are printed in the unit of their total, and add up to it except for
 * rounding. */
static void test_the_parts_of_a_memory_plan_add_up_to_its_total(void **state)
{
    (void)state;
    static const char *const part[] = {"weights ",     "gradients ", "optimizer ",
                                       "activations ", "scratch ",   "other "};
    char *text = dry(NULL, NULL, NULL, 0);
    const char *plan = strstr(text, "memory  plan ");
    assert_non_null(plan);
    double whole = strtod(plan + strlen("memory  plan "), NULL), sum = 0;
    assert_true(whole > 0);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const char *at = strstr(plan, part[i]);
        assert_non_null(at);
        sum += strtod(at + strlen(part[i]), NULL);
    }
    if (!(sum > whole - 0.36 && sum < whole + 0.36)) /* seven numbers rounded to one decimal */
        fail_msg("parts of %g in all:\n%s", sum, text);
    free(text);
}

static void all_have_room(void)
{
    late_devices_memory(3, 0);
}

/* The plan reserves 256 MiB for the device itself. */
static void the_second_is_full(void)
{
    late_devices_memory(1, ((size_t)256 << 20) + 1000);
}

static void the_last_is_full(void)
{
    late_devices_memory(2, 0);
}

/* Each rank checks its own device. If one is too small, a single error message is printed,
 * whichever rank has that device. */
static void test_a_run_is_refused_if_any_rank_has_too_little_device_memory(void **state)
{
    (void)state;
    static const struct {
        void (*first)(void);
        int code;
        const char *words;
    } is[] = {
        {all_have_room, 0, "dry run"},
        {the_second_is_full, EXIT_NO_MEMORY, " and 1,000 bytes of GPU 1's memory are available"},
        {the_last_is_full, EXIT_NO_MEMORY, " and 0 bytes of GPU 2's memory are available"}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        disturbance = (Disturbance){.dry = true, .ranks = 3, .first = is[i].first};
        char *said =
            run_expecting("dry", (const char *[]){"train_batch_size=12", NULL}, is[i].code);
        says(said, is[i].words);
        const char *first = strstr(said, "error[");
        if (first && strstr(first + 1, "error[")) fail_msg("two sentences in:\n%s", said);
        free(said);
    }
}

/* The plan prints how much disk a checkpoint takes and how many are kept. With a pipeline it prints
 * how much of a step the stages are idle: 75 % for four stages with a single micro-batch. */
static void test_a_plan_prints_kept_checkpoints_and_the_pipeline_bubble(void **state)
{
    (void)state;
    char *said = dry("checkpoint.keep=0", NULL, NULL, 0);
    says(said, " a checkpoint, all 4 kept"); /* the run saves steps 2, 4, 6 and 7 */
    free(said);
    said = dry("checkpoint.keep=3", NULL, NULL, 0);
    says(said, " a checkpoint, 3 kept");
    free(said);
    said = dry("checkpoint.keep=3", "checkpoint.keep_every=4", NULL, 0);
    says(said, " and one every 4 steps");
    free(said);
    disturbance = (Disturbance){.dry = true, .ranks = 4};
    said = run_expecting("dry",
                         (const char *[]){"parallel.pipeline=4", "model.num_layers=4",
                                          "gradient_accumulation_steps=1", NULL},
                         0);
    says(said, "bubble 75 %");
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_of_over_ten_passes_advises_a_smaller_batch),
        cmocka_unit_test(test_a_refused_plan_names_only_settings_that_help),
        cmocka_unit_test(test_the_parts_of_a_memory_plan_add_up_to_its_total),
        cmocka_unit_test(test_a_run_is_refused_if_any_rank_has_too_little_device_memory),
        cmocka_unit_test(test_a_plan_prints_kept_checkpoints_and_the_pipeline_bubble),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
