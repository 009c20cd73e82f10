/* test_offload_sums.c -- tests how optimizer states on the host add up over the ranks of a device
 * and of a machine, in the memory plan and for each ratio. */
#include "parallel/memory/memory_plan.h"

#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* A rank whose optimizer has 100 bytes of states, 40 of them on the host, and tables of 20 bytes;
 * all numbers are multiplied by rank + 1. */
static MemoryPlan plan_of_rank(int rank)
{
    size_t r = (size_t)rank + 1;
    return (MemoryPlan){.optimizer = 80 * r,
                        .slots = 60 * r,
                        .total = 1000 * r,
                        .host = 50 * r,
                        .offloaded = 40 * r,
                        .offloaded_of_device = 40 * r,
                        .ranks = 1,
                        .of = 3};
}

/* Ranks 0 and 2 are on host-a, and each rank has a device of its own. */
static void add_up(Comm *world, void *context)
{
    (void)context;
    MemoryPlan own = plan_of_rank(world->rank);
    MemoryPlan sum = memory_plan_of_ranks(world, &own, world->rank);
    bool alone = world->rank == 1;
    if (sum.offloaded != (alone ? 80 : 160) || sum.host != (alone ? 100 : 200) ||
        sum.offloaded_of_device != own.offloaded || sum.total != own.total)
        rank_wrong(world, "%zu on the host, %zu of this device", sum.offloaded,
                   sum.offloaded_of_device);
    if (memory_offloaded_share(&sum) != 0.4) rank_wrong(world, "another share than 0.4");
}

/* Each rank has a different number of bytes, as in a pipeline with unequal stages. */
static void add_up_ratios(Comm *world, void *context)
{
    MemoryRatios own;
    bool shared = *(const bool *)context, alone = world->rank == 1;
    size_t r = (size_t)world->rank + 1;
    for (size_t k = 0; k <= 100; k++)
        own.at[k] = (OptimizerBytes){.device = (100 - k) * r, .host = k * r * r};
    MemoryRatios sum = memory_ratios_of_ranks(world, &own, shared ? 0 : world->rank);
    size_t device = alone ? 2 : shared ? 4 : r, host = alone ? 4 : 10;
    for (size_t k = 0; k <= 100; k++)
        if (sum.at[k].device != (100 - k) * device || sum.at[k].host != k * host)
            rank_wrong(world, "at %zu: %zu on the device, %zu on the host", k, sum.at[k].device,
                       sum.at[k].host);
}

static void bytes_for_each_offload_ratio_add_up_by_device_and_machine(void **state)
{
    (void)state;
    bool shared = false;
    made_up_machines("aba");
    thread_ranks(3, 60, add_up_ratios, &shared);
    shared = true;
    thread_ranks(3, 60, add_up_ratios, &shared);
    machines_forget();
}

static void optimizer_states_on_the_host_add_up_by_machine(void **state)
{
    (void)state;
    made_up_machines("aba");
    thread_ranks(3, 60, add_up, NULL);
    machines_forget();
}

/* On a CPU, host memory is added to the total. The states, which are part of it, are not added to
 * "other" as well. */
static void on_a_cpu_optimizer_states_are_counted_once_in_the_total(void **state)
{
    (void)state;
    MemoryPlan plan = plan_of_rank(0);
    memory_add_host(&plan);
    assert_int_equal(plan.total, 1050);
    assert_int_equal(plan.other, 10);
    assert_int_equal(plan.slots + plan.offloaded, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_states_on_the_host_add_up_by_machine),
        cmocka_unit_test(bytes_for_each_offload_ratio_add_up_by_device_and_machine),
        cmocka_unit_test(on_a_cpu_optimizer_states_are_counted_once_in_the_total),
    };
    return cmocka_run_group_tests_name("sums of states on the host", tests, NULL, NULL);
}
