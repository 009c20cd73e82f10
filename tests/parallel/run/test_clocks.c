/* test_clocks.c -- runs whose ranks have unlike clocks: what a rank measures for itself decides
 * nothing that all must do together, and no second is counted twice. */
#include "model/core/log.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

double __real_seconds_now(void);
double __wrap_seconds_now(void);

/* The rank on which every look at the clock takes a minute; negative: none. */
static int slow_rank = -1;
static _Thread_local double seconds_ahead;

double __wrap_seconds_now(void)
{
    if (log_rank() == slow_rank) seconds_ahead += 60;
    return __real_seconds_now() + seconds_ahead;
}

int __real_trainer_read(Trainer *trainer, StepRecord *out);
int __wrap_trainer_read(Trainer *trainer, StepRecord *out);

/* The rank to which no record comes before it waits for it; negative: none. */
static int late_rank = -1;

int __wrap_trainer_read(Trainer *trainer, StepRecord *out)
{
    return log_rank() == late_rank ? 0 : __real_trainer_read(trainer, out);
}

bool __real_loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);
bool __wrap_loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);

/* Seconds that every micro-batch is waited for. */
static double loader_seconds;

bool __wrap_loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n)
{
    seconds_ahead += loader_seconds;
    return __real_loader_next(l, samples, micro, out, err, n);
}

static void slow_down_rank_1(void)
{
    slow_rank = 1;
}

/* To this rank alone the first step has been long enough to tell the speed: the others make a
 * second one, and cannot without it. */
static void test_a_dry_run_of_unlike_ranks(void **state)
{
    (void)state;
    disturbance = (Disturbance){.ranks = 3, .dry = true, .first = slow_down_rank_1};
    char *said = run_expecting("dry", (const char *[]){"parallel.timeout=1e8", NULL}, 0);
    says(said, "speed   about ");
    free(said);
}

static void make_rank_1_late(void)
{
    late_rank = 1;
}

/* Only this rank runs out of room for records, and waits for them; the run has the same losses as
 * ever, and all ranks come to its end. */
static void test_records_that_come_late_on_one_rank(void **state)
{
    (void)state;
    char steps[32];
    snprintf(steps, sizeof steps, "train_steps=%d", 2 * TRAINER_HISTORY + 9);
    const char *sets[] = {steps,
                          "steps_per_print=0",
                          "eval.interval=0",
                          "eval.sample_interval=0",
                          "eval.steps=3",
                          "checkpoint.save_interval=0",
                          "data.seq_length=4",
                          "parallel.timeout=30",
                          NULL};
    disturbance = (Disturbance){.ranks = 3};
    free(run_expecting("in-time", sets, 0));
    disturbance.first = make_rank_1_late;
    free(run_expecting("late", sets, 0));
    assert_int_equal(lines_of("late", "train"), 2 * TRAINER_HISTORY + 9);
    same_runs("in-time", "late");
}

static void slow_down_loaders(void)
{
    loader_seconds = 100;
}

/* The wait for two micro-batches is data's, and no phase's: what is left of the step is not less
 * than nothing. */
static void test_the_wait_for_data_counts_once(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        disturbance = (Disturbance){.ranks = ranks, .first = slow_down_loaders};
        char *said = run_expecting(ranks == 1 ? "alone" : "both",
                                   (const char *[]){"wall_clock_breakdown=true",
                                                    "parallel.timeout=1e8", "train_steps=2", NULL},
                                   0);
        says(said, "  data 200");
        says(said, "  other ");
        if (strstr(said, "other -")) fail_msg("%d ranks:\n%s", ranks, said);
        free(said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_dry_run_of_unlike_ranks),
        cmocka_unit_test(test_records_that_come_late_on_one_rank),
        cmocka_unit_test(test_the_wait_for_data_counts_once),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
