/* test_lead.c -- tests how many steps the host runs ahead of a device that delays all work as long
 * as possible: as many as there are free slots for data, or two if the ranks are on several
 * machines. */
#include "tests/support/device/late_device.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/trainer/rank_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2 };

typedef struct {
    const char *map; /* the machines of the ranks */
    int most[RANKS]; /* for each rank: the largest number of unfinished steps on its device after it
                        issued a step */
} Lead;

/* Counts the unfinished steps after each step that is issued. The machines are made up only during
 * these steps, because the ranks share a device, which ranks on several machines could not open. */
static void count_unfinished(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    Lead *lead = run->context;
    comm_barrier(world);
    if (world->rank == 0) made_up_machines(lead->map);
    comm_barrier(world);
    for (int64_t i = 0; i < steps; i++) {
        int unfinished = 0;
        trainer_step(t);
        for (int64_t s = t->steps_read; s < t->steps; s++)
            unfinished += !device_event_reached(&t->session.dev, &t->recorded[s % TRAINER_HISTORY]);
        if (unfinished > lead->most[world->rank]) lead->most[world->rank] = unfinished;
    }
    comm_barrier(world);
    if (world->rank == 0) machines_forget();
    comm_barrier(world);
}

/* Trains with ranks on the machines of `map`, and fails unless the host of each rank was `expected`
 * steps ahead. */
static void train_on(RankRun *run, const Folder *folder, const char *map, int expected)
{
    static const char *const sets[] = {"gradient_accumulation_steps=1", NULL};
    Lead lead = {.map = map};
    rank_run_open(run, folder, RANKS, sets);
    run->take_middle = count_unfinished;
    run->context = &lead;
    rank_run_train(run);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(lead.most[r], expected);
}

static void test_the_host_runs_two_steps_ahead_if_ranks_are_on_two_machines(void **state)
{
    static RankRun one, two;
    late_devices(true);
    train_on(&one, *state, "aa", 3);
    train_on(&two, *state, "ab", TRAINER_LEAD);
    late_devices(false);
    rank_runs_equal(&one, &two);
    rank_run_close(&one);
    rank_run_close(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_host_runs_two_steps_ahead_if_ranks_are_on_two_machines),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
