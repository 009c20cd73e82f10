/* test_run_machines.c -- tests of whole runs whose ranks believe to be on several machines: what
 * the start prints, and what each machine does by itself. */
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
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

/* Returns the output of a dry run on so many ranks; `machines` describes these. */
static char *dry(int ranks, void (*machines)(void))
{
    disturbance = (Disturbance){.dry = true, .ranks = ranks, .first = machines};
    const char *batch = ranks == 3 ? "train_batch_size=12" : "train_batch_size=16";
    return run_expecting("dry", (const char *[]){batch, NULL}, 0);
}

static void test_the_start_says_on_which_machines_the_ranks_are(void **state)
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

/* The memory of a machine is that of its own ranks. The plan that leaves the least is printed. */
static void test_the_plan_is_that_of_the_machine_with_the_least_memory_left(void **state)
{
    (void)state;
    char *said = dry(3, two_and_one);
    says(said, "\nmemory  plan ");
    says(said, " for the 2 ranks on host-a: weights ");
    free(said);
    said = dry(3, one_and_two);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_start_says_on_which_machines_the_ranks_are),
        cmocka_unit_test(test_the_plan_is_that_of_the_machine_with_the_least_memory_left),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
