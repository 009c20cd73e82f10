/* test_hanging_ranks.c -- a rank that hangs in any command that starts ranks: the others end the
 * program at parallel.timeout, and say for whom they have waited. What training itself does then is
 * in tests/parallel/trainer/test_faulty_grid.c. */
#include "model/core/clock.h"
#include "parallel/verify/capture.h"
#include "tests/support/device/late_device.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds: the deadline of the commands below, how much later they may end, and after which a
 * command without a deadline is ended. */
enum { TIMEOUT = 1, MARGIN = 10, NO_DEADLINE = 20 };

static void rank_1_hangs(void)
{
    alarm(NO_DEADLINE);
    late_devices_hang(1);
}

static void a_run_of_one_rank(void)
{
    disturbance = (Disturbance){0};
    free(run_expecting("run", NULL, 0));
}

/* The command ends at its deadline, with an error message about rank 1. */
static void expect_deadline_of(void (*hang)(void), const char *const *arguments)
{
    double start = seconds_now();
    disturbance = (Disturbance){.first = hang};
    char *said = command_expecting(arguments, EXIT_HANG);
    says(said, "rank 0 has waited 1 s (parallel.timeout) for rank 1, which has not arrived");
    assert_true(seconds_now() - start >= TIMEOUT && seconds_now() - start < TIMEOUT + MARGIN);
    free(said);
}

static void expect_deadline(const char *const *arguments)
{
    expect_deadline_of(rank_1_hangs, arguments);
}

#define TWO_RANKS "--ranks", "2", "--set", "parallel.timeout=1"

static void test_train(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"tiny.json", "--out", "hung", TWO_RANKS, NULL});
}

static void test_eval(void **state)
{
    (void)state;
    a_run_of_one_rank();
    expect_deadline((const char *[]){"eval", "run", TWO_RANKS, NULL});
}

static void test_generate(void **state)
{
    (void)state;
    a_run_of_one_rank();
    expect_deadline((const char *[]){"generate", "run", TWO_RANKS, NULL});
}

static void test_verify(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"verify", "tiny.json", TWO_RANKS, NULL});
}

/* A deadline that the grid's own ranks meet on a busy machine, too; and how long the single rank
 * takes at least, in seconds. */
#define PATIENT_RANKS "--ranks", "2", "--set", "parallel.timeout=5"
enum { SLOW = 6 };

static void the_single_rank_is_slow(void)
{
    late_devices_delay(3, SLOW);
}

/* The ranks of verify's grid open two devices; then rank 0 opens one for the steps of the single
 * rank, for which the others wait as long as it takes. */
static void test_verify_waits_for_the_single_rank(void **state)
{
    (void)state;
    double start = seconds_now();
    disturbance = (Disturbance){.first = the_single_rank_is_slow};
    char *said = command_expecting((const char *[]){"verify", "tiny.json", PATIENT_RANKS, NULL}, 0);
    says(said, "equal      to a single rank");
    assert_true(seconds_now() - start > SLOW);
    free(said);
}

/* ---- capture_step: the linker sends its calls here (--wrap) ---------------------------------- */

void __real_capture_step(Capture *out, Trainer *trainer);
void __wrap_capture_step(Capture *out, Trainer *trainer);

/* Rank 1 hangs once a step is captured. */
static bool hangs_after_a_step;

void __wrap_capture_step(Capture *out, Trainer *trainer)
{
    __real_capture_step(out, trainer);
    Comm *world = trainer->session.world;
    while (hangs_after_a_step && world && world->rank == 1)
        pause();
}

static void rank_1_hangs_after_a_step(void)
{
    alarm(NO_DEADLINE);
    hangs_after_a_step = true;
}

/* The wait for the single rank has no deadline, but a rank that hangs after the last collective
 * call of a step must not get the others to that wait. */
static void test_verify_misses_a_rank_that_hangs_after_a_step(void **state)
{
    (void)state;
    expect_deadline_of(rank_1_hangs_after_a_step,
                       (const char *[]){"verify", "tiny.json", TWO_RANKS, NULL});
}

static void test_bench_parallel(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"bench", "parallel", "tiny.json", TWO_RANKS, NULL});
}

static void test_bench_comm(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"bench", "comm", "--ranks", "2", "--device", "cpu",
                                     "--timeout", "1", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_verify_waits_for_the_single_rank),
        cmocka_unit_test(test_verify_misses_a_rank_that_hangs_after_a_step),
        cmocka_unit_test(test_bench_parallel),
        cmocka_unit_test(test_bench_comm),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
