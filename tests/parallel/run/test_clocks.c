/* test_clocks.c -- tests of runs whose ranks measure different times: the ranks still make the same
 * steps together, and no time is counted twice. */
#include "model/core/log.h"
#include "tests/parallel/run/slow_rank.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

double __real_seconds_now(void);
double __wrap_seconds_now(void);

int slow_rank = -1;
static _Thread_local double seconds_ahead;

void seconds_pass(double seconds)
{
    seconds_ahead += seconds;
}

double __wrap_seconds_now(void)
{
    if (log_rank() == slow_rank) seconds_ahead += 60;
    return __real_seconds_now() + seconds_ahead;
}

int __real_trainer_read(Trainer *trainer, StepRecord *out);
int __wrap_trainer_read(Trainer *trainer, StepRecord *out);

/* The rank that gets a record only if it waits for it; negative: none. */
static int late_rank = -1;

int __wrap_trainer_read(Trainer *trainer, StepRecord *out)
{
    return log_rank() == late_rank ? 0 : __real_trainer_read(trainer, out);
}

bool __real_loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);
bool __wrap_loader_next(Loader *l, int64_t samples, int64_t micro, Batch *out, char *err, size_t n);

/* Seconds by which each call of loader_next advances the clock, as if it had waited for data. */
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

/* On rank 1 the first step seems long enough to estimate the speed. The others need a second step,
 * so rank 1 must make it, too. */
static void test_a_dry_run_finishes_if_the_ranks_measure_different_times(void **state)
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

/* Only rank 1 runs out of room for unread records and waits for them. The run has the same losses
 * as an undisturbed one, and all ranks finish. */
static void test_a_run_is_unchanged_if_records_arrive_late_on_one_rank(void **state)
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

/* The wait for two micro-batches is reported as data and in no other phase, so the remaining time
 * ("other") is not negative. */
static void test_the_time_breakdown_counts_the_wait_for_data_only_once(void **state)
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
        cmocka_unit_test(test_a_dry_run_finishes_if_the_ranks_measure_different_times),
        cmocka_unit_test(test_a_run_is_unchanged_if_records_arrive_late_on_one_rank),
        cmocka_unit_test(test_the_time_breakdown_counts_the_wait_for_data_only_once),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
