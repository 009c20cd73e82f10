/* test_run_machines.c -- tests of whole runs whose ranks are told that they are on several
 * machines: what the start prints, and what each machine does by itself. */
#include "tests/parallel/run/slow_rank.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/trainer/run_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void two_and_one(void)
{
    made_up_machines("aab");
}

static void one_and_two(void)
{
    made_up_machines("abb");
}

static void two_and_two(void)
{
    made_up_machines("abab");
}

static void one_machine(void)
{
    made_up_machines("aaa");
}

/* Returns the output of a dry run on `ranks` ranks; `machines` sets the machine of each rank. */
static char *dry(int ranks, void (*machines)(void))
{
    disturbance = (Disturbance){.dry = true, .ranks = ranks, .first = machines};
    const char *batch = ranks == 3 ? "train_batch_size=12" : "train_batch_size=16";
    return run_expecting("dry", (const char *[]){batch, NULL}, 0);
}

static void test_a_starting_run_prints_on_which_machines_its_ranks_are(void **state)
{
    (void)state;
    char *said = dry(3, two_and_one);
    says(said, "\nranks   3 = dp 3 (threads on 2 machines, 1 to 2 each, 1 thread each), ");
    says(said, "\nhosts   host-a, host-b\n");
    free(said);
    said = dry(4, two_and_two);
    says(said, "\nranks   4 = dp 4 (threads on 2 machines, 2 each, 1 thread each), ");
    free(said);
    said = dry(3, one_machine);
    says(said, "\nranks   3 = dp 3 (threads, 1 thread each), ");
    assert_null(strstr(said, "hosts"));
    free(said);
}

/* Returns the output of a dry run on 3 ranks with a plan of hundreds of megabytes a rank. Each
 * machine reads for itself how much memory is free, and other programs change that meanwhile. */
static char *dry_large(void (*machines)(void))
{
    disturbance = (Disturbance){.dry = true, .ranks = 3, .first = machines};
    return run_expecting(
        "dry",
        (const char *[]){"train_batch_size=24000", "train_micro_batch_size_per_gpu=4000", NULL}, 0);
}

/* The memory of a machine is that of its own ranks. The plan that leaves the least is printed. */
static void test_the_printed_plan_is_of_the_machine_with_the_least_free_memory(void **state)
{
    (void)state;
    char *said = dry_large(two_and_one);
    says(said, "\nmemory  plan ");
    says(said, " for the 2 ranks on host-a: weights ");
    free(said);
    said = dry_large(one_and_two);
    says(said, " for the 2 ranks on host-b: weights ");
    free(said);
    disturbance = (Disturbance){.dry = true, .ranks = 3, .first = two_and_one};
    said = run_expecting("dry",
                         (const char *[]){"train_batch_size=24000000",
                                          "train_micro_batch_size_per_gpu=4000000", NULL},
                         EXIT_NO_MEMORY);
    says(said, " for the 2 ranks on host-a and ");
    says(said, ", or fewer ranks a machine\n");
    free(said);
}

/* ---- stops ----------------------------------------------------------------------------------- */

/* Settings of a run without evaluations, samples and saves: after each of these the ranks would
 * decide in any case whether to stop. */
#define PLAIN "eval.interval=0", "eval.sample_interval=0", "checkpoint.save_interval=0"

/* Asks for a stop in the second step of 40, and returns the output. */
static char *stop_in_step_2(const char *run, void (*machines)(void), void (*act)(Run *),
                            const char *set)
{
    disturbance = (Disturbance){.kind = WORK_STEP,
                                .round = 1,
                                .at = 1,
                                .act = act,
                                .ranks = machines == two_and_one ? 3 : 0,
                                .first = machines};
    return run_expecting(run, (const char *[]){"train_steps=40", PLAIN, set, NULL}, EXIT_REQUEUE);
}

static void test_all_ranks_decide_on_a_stop_every_stop_interval_steps(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char run[16];
        void (*machines)(void) = i ? two_and_one : NULL;
        snprintf(run, sizeof run, "three-%d", i);
        char *said = stop_in_step_2(run, machines, ask_by_signal, "parallel.stop_interval=3");
        says(said, "SIGTERM: going on to step 3 at most, then saving; a second signal ends the");
        says(said, "\nstopped after step 3; ");
        free(said);
        snprintf(run, sizeof run, "file-%d", i);
        said = stop_in_step_2(run, machines, ask_by_file, "parallel.stop_interval=7");
        says(said, "\nstopped after step 7; ");
        free(said);
    }
}

/* The steps take much less than a second. So rank 0 lets the ranks decide on a stop after steps 1,
 * 5, 21, ...: each number of steps between two decisions is four times the one before, until they
 * take 5 seconds. */
static void test_ranks_of_a_launcher_decide_on_stops_less_often_if_steps_are_short(void **state)
{
    (void)state;
    char *said = stop_in_step_2("auto", two_and_one, ask_by_signal, "seed=1");
    says(said, "SIGTERM: going on to step 5 at most, then saving; ");
    says(said, "\nstopped after step 5; ");
    free(said);
    said = stop_in_step_2("alone", NULL, ask_by_signal, "seed=1");
    says(said, "SIGTERM: finishing this step, then saving; ");
    says(said, "\nstopped after step 2; ");
    free(said);
}

static void be_slow(Run *run)
{
    if (run->lead) seconds_pass(1.5);
}

static void be_slow_and_stop(Run *run)
{
    be_slow(run);
    if (run->lead && run->trainer.steps == 1) ask_by_file(run);
}

/* With steps of 1.5 seconds the ranks decide on a stop after steps 1 and 4. */
static void test_ranks_of_a_launcher_decide_on_a_stop_about_every_5_seconds(void **state)
{
    (void)state;
    disturbance = (Disturbance){
        .kind = WORK_STEP, .act = be_slow_and_stop, .each = true, .ranks = 3, .first = two_and_one};
    char *said =
        run_expecting("slow", (const char *[]){"train_steps=40", PLAIN, NULL}, EXIT_REQUEUE);
    says(said, "\nstopped after step 4; ");
    free(said);
}

/* The ranks decide on a stop only every few seconds. Rank 0 knows the time limit in advance, so it
 * lets them decide earlier when the limit is near. */
static void test_ranks_that_rarely_decide_on_a_stop_still_stop_at_max_time(void **state)
{
    (void)state;
    disturbance = (Disturbance){
        .kind = WORK_STEP, .act = be_slow, .each = true, .ranks = 3, .first = two_and_one};
    char *said = run_expecting(
        "limit", (const char *[]){"train_steps=40", PLAIN, "max_time=2.9", NULL}, EXIT_REQUEUE);
    says(said, "\nstopped after step 2 (max_time: 2.9 s); ");
    free(said);
}

static int64_t host_calls(const Run *run)
{
    const CommCounts *counts = comm_counts(run->world);
    int64_t calls = 0;
    for (int verb = 0; verb < COMM_VERBS; verb++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            calls += counts->of[verb][dtype].calls;
    return calls;
}

/* Prints how many calls rank 0 has made on the communicator of all ranks between the beginnings of
 * steps 26 and 40. */
static void count_calls(Run *run)
{
    static int64_t before;
    if (run->trainer.steps == 25) before = host_calls(run);
    if (run->trainer.steps == 39) printf("%lld calls\n", (long long)(host_calls(run) - before));
}

/* A row of the table is printed without communication: all ranks wait for the same records. */
static void test_ranks_exchange_nothing_between_two_decisions_on_a_stop(void **state)
{
    (void)state;
    disturbance = (Disturbance){
        .kind = WORK_STEP, .act = count_calls, .each = true, .ranks = 3, .first = two_and_one};
    for (int i = 0; i < 2; i++) {
        const char *print = i ? "steps_per_print=1" : "steps_per_print=0";
        const char *run = i ? "calls-1" : "calls-0";
        char *said = run_expecting(run, (const char *[]){"train_steps=40", PLAIN, print, NULL}, 0);
        says(said, "\n0 calls\n");
        free(said);
    }
}

/* The weights of the third step are not finite, on every rank. */
static void be_sick(Run *run)
{
    if (run->trainer.steps == 21) printf("step 22 begins\n");
    if (run->trainer.steps != 2) return;
    float *weight = run->trainer.weights[0].data.data;
    for (int i = 0; i < 256 * 16; i++)
        weight[i] = NAN;
}

/* Until they decide, the ranks train some more steps, of which no record is written. */
static void test_a_divergence_ends_all_ranks_at_their_next_decision_on_a_stop(void **state)
{
    (void)state;
    disturbance = (Disturbance){
        .kind = WORK_STEP, .act = be_sick, .each = true, .ranks = 3, .first = two_and_one};
    char *said = run_expecting("sick",
                               (const char *[]){"train_steps=40", PLAIN, "steps_per_print=0",
                                                "max_consecutive_skipped_steps=2", NULL},
                               EXIT_DIVERGED);
    says(said, "error[88] step 4: 2 steps in a row had gradients that are not finite; ");
    assert_null(strstr(said, "step 22 begins"));
    free(said);
    assert_int_equal(lines_of("sick", "train"), 4);
}

/* After an evaluation that was cut short nothing may be trained: the next start repeats it. */
static void test_no_step_is_made_after_an_interrupted_evaluation_or_sample(void **state)
{
    static const char *const sets[] = {"eval.steps=15", "parallel.stop_interval=100", NULL};
    (void)state;
    disturbance = (Disturbance){.ranks = 3};
    free(run_expecting("whole", (const char *[]){"eval.steps=15", NULL}, 0));
    for (int kind = WORK_EVALUATION; kind <= WORK_SAMPLE; kind++) {
        char run[16];
        snprintf(run, sizeof run, "cut-%d", kind);
        disturbance = (Disturbance){
            .kind = (WorkKind)kind, .round = 1, .at = 2, .act = ask_by_signal, .ranks = 3};
        char *said = run_expecting(run, sets, EXIT_REQUEUE);
        says(said, "\nstopped after step 4; ");
        free(said);
        disturbance.act = NULL;
        free(run_expecting(run, sets, 0));
        same_runs("whole", run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_starting_run_prints_on_which_machines_its_ranks_are),
        cmocka_unit_test(test_the_printed_plan_is_of_the_machine_with_the_least_free_memory),
        cmocka_unit_test(test_all_ranks_decide_on_a_stop_every_stop_interval_steps),
        cmocka_unit_test(test_ranks_of_a_launcher_decide_on_stops_less_often_if_steps_are_short),
        cmocka_unit_test(test_ranks_of_a_launcher_decide_on_a_stop_about_every_5_seconds),
        cmocka_unit_test(test_ranks_that_rarely_decide_on_a_stop_still_stop_at_max_time),
        cmocka_unit_test(test_ranks_exchange_nothing_between_two_decisions_on_a_stop),
        cmocka_unit_test(test_a_divergence_ends_all_ranks_at_their_next_decision_on_a_stop),
        cmocka_unit_test(test_no_step_is_made_after_an_interrupted_evaluation_or_sample),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
