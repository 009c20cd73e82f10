/* test_run_replicas.c -- runs on three ranks, of which one gets a wrong bit: the next comparison of
 * replicas ends the run on all ranks, before anything is saved or removed, and the same command
 * resumes it from the last good checkpoint. */
#include "tests/support/trainer/flipped_bit.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, ODD = 1 };
#define KEEP1 "checkpoint.keep=1"

static const char *const sets[] = {KEEP1, NULL};

/* Flips a high bit of the fraction of a weight. The updates that follow do not flip it back. */
static void flip_weight(Run *run)
{
    flip_held_bit(&run->trainer, "token.weight", -1, 5, 20);
}

static void test_replicas_are_compared_before_every_save(void **state)
{
    (void)state;
    disturbance = (Disturbance){.ranks = RANKS};
    char *said = run_expecting("whole", sets, 0);
    says(said, "replicas compared in 0.0");
    assert_int_equal(lines_of("whole", "replicas"), 4);
    assert_int_equal(lines_of("whole", "ckpt"), 4);
    only_checkpoint("whole", 7);
    free(said);
    /* A single rank has no replicas. */
    disturbance.ranks = 0;
    free(run_expecting("alone", sets, 0));
    assert_int_equal(lines_of("alone", "replicas"), 0);
}

/* The bit is flipped before step 5, and the run saves after steps 4 and 6. */
static void flip_in_step_5(void)
{
    disturbance = (Disturbance){
        .kind = WORK_STEP, .round = 4, .at = 0, .act = flip_weight, .ranks = RANKS, .rank = ODD};
}

static void test_a_wrong_bit_ends_the_run_before_the_next_save(void **state)
{
    (void)state;
    flip_in_step_5();
    char *said = run_expecting("torn", sets, EXIT_REPLICAS);
    says(said, "error[89] step 6: data-parallel ranks differ in the weights of token.weight: rank "
               "1, from the others (ranks 0, 2); ");
    says(said, "This step is not saved");
    if (strstr(strstr(said, "error[") + 1, "error[")) fail_msg("two errors in:\n%s", said);
    free(said);
    only_checkpoint("torn", 4);
    char *end = events("torn", "end");
    says(end, "data-parallel ranks differ");
    free(end);
    disturbance.act = NULL;
    free(run_expecting("torn", sets, 0));
    same_runs("whole", "torn");
    only_checkpoint("torn", 7);
}

static void test_with_compare_interval_1_a_wrong_bit_is_found_after_its_step(void **state)
{
    static const char *const often[] = {KEEP1, "checkpoint.compare_interval=1", NULL};
    (void)state;
    flip_in_step_5();
    char *said = run_expecting("often", often, EXIT_REPLICAS);
    says(said, "error[89] step 5: ");
    free(said);
    only_checkpoint("often", 4);
    disturbance.act = NULL;
    free(run_expecting("often", often, 0));
    same_runs("whole", "often");
    assert_int_equal(lines_of("often", "replicas"), 7);
}

static void test_without_comparison_a_wrong_bit_is_not_noticed(void **state)
{
    static const char *const off[] = {KEEP1, "checkpoint.compare_replicas=false",
                                      "checkpoint.compare_interval=1", NULL};
    (void)state;
    flip_in_step_5();
    free(run_expecting("off", off, 0));
    assert_int_equal(lines_of("off", "replicas"), 0);
}

static void flip_on_one_rank(Run *run)
{
    if (run->world->rank == ODD) flip_weight(run);
}

/* Each rank is a process, and all of them end. */
static void test_a_wrong_bit_also_ends_ranks_that_are_processes(void **state)
{
    (void)state;
    ChildPlace place = {.opened = flip_on_one_rank};
    const char *const arguments[] = {"tiny.json", "--out",       "apart", "--ranks",
                                     "3",         "--processes", NULL};
    ChildResult r = train_in_child(&place, arguments);
    if (r.code != EXIT_REPLICAS) fail_msg("exit code %d:\n%s", r.code, r.text);
    says(r.text, "error[89] step 2: data-parallel ranks differ in the weights of token.weight: "
                 "rank 1, from the others (ranks 0, 2)");
    if (strstr(strstr(r.text, "error[") + 1, "error[")) fail_msg("two errors in:\n%s", r.text);
    assert_true(!is_there("apart/checkpoints/step_00000002"));
    free(r.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicas_are_compared_before_every_save),
        cmocka_unit_test(test_a_wrong_bit_ends_the_run_before_the_next_save),
        cmocka_unit_test(test_with_compare_interval_1_a_wrong_bit_is_found_after_its_step),
        cmocka_unit_test(test_without_comparison_a_wrong_bit_is_not_noticed),
        cmocka_unit_test(test_a_wrong_bit_also_ends_ranks_that_are_processes),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
