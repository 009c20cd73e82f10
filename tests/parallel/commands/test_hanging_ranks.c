/* test_hanging_ranks.c -- tests every command that starts ranks with a rank that hangs: the others
 * end the program after parallel.timeout, with an error message that names the hanging rank.
 * tests/parallel/trainer/test_faulty_grid.c tests ranks that hang during training. */
#include "model/core/clock.h"
#include "parallel/verify/capture.h"
#include "tests/support/device/late_device.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* In seconds: the deadline of the commands below, how much later they may end, and the time after
 * which an alarm ends a command that ignores its deadline. */
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

/* Fails unless the command ends at its deadline with an error message about rank 1. */
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

static void test_train_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"tiny.json", "--out", "hung", TWO_RANKS, NULL});
}

static void test_eval_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    a_run_of_one_rank();
    expect_deadline((const char *[]){"eval", "run", TWO_RANKS, NULL});
}

static void test_generate_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    a_run_of_one_rank();
    expect_deadline((const char *[]){"generate", "run", TWO_RANKS, NULL});
}

static void test_verify_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"verify", "tiny.json", TWO_RANKS, NULL});
}

/* A deadline that the grid's own ranks meet even on a busy machine. SLOW: the single rank takes at
 * least this many seconds. */
#define PATIENT_RANKS "--ranks", "2", "--set", "parallel.timeout=5"
enum { SLOW = 6 };

static void the_single_rank_is_slow(void)
{
    late_devices_delay(3, SLOW);
}

/* The ranks of verify's grid open two devices. Then rank 0 opens a third one for the steps of the
 * single rank. The other ranks wait for it however long it takes. */
static void test_verify_waits_without_deadline_for_the_single_rank(void **state)
{
    (void)state;
    double start = seconds_now();
    disturbance = (Disturbance){.first = the_single_rank_is_slow};
    char *said = command_expecting((const char *[]){"verify", "tiny.json", PATIENT_RANKS, NULL}, 0);
    says(said, "equal      to a single rank");
    assert_true(seconds_now() - start > SLOW);
    free(said);
}

/* ---- capture_step: the linker redirects its calls to this function (--wrap) ------------------ */

void __real_capture_step(Capture *out, Trainer *trainer);
void __wrap_capture_step(Capture *out, Trainer *trainer);

/* Makes rank 1 hang after it has captured a step. */
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

/* The wait for the single rank has no deadline. If a rank hangs after the last collective call of a
 * step, the others must notice it before they begin that wait. */
static void test_verify_ends_at_its_deadline_if_a_rank_hangs_after_a_step(void **state)
{
    (void)state;
    expect_deadline_of(rank_1_hangs_after_a_step,
                       (const char *[]){"verify", "tiny.json", TWO_RANKS, NULL});
}

static void test_bench_parallel_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"bench", "parallel", "tiny.json", TWO_RANKS, NULL});
}

static void test_bench_comm_ends_at_its_deadline_if_a_rank_hangs(void **state)
{
    (void)state;
    expect_deadline((const char *[]){"bench", "comm", "--ranks", "2", "--device", "cpu",
                                     "--timeout", "1", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_ends_at_its_deadline_if_a_rank_hangs),
        cmocka_unit_test(test_eval_ends_at_its_deadline_if_a_rank_hangs),
        cmocka_unit_test(test_generate_ends_at_its_deadline_if_a_rank_hangs),
        cmocka_unit_test(test_verify_ends_at_its_deadline_if_a_rank_hangs),
        cmocka_unit_test(test_verify_waits_without_deadline_for_the_single_rank),
        cmocka_unit_test(test_verify_ends_at_its_deadline_if_a_rank_hangs_after_a_step),
        cmocka_unit_test(test_bench_parallel_ends_at_its_deadline_if_a_rank_hangs),
        cmocka_unit_test(test_bench_comm_ends_at_its_deadline_if_a_rank_hangs),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
