/* test_offload_plan.c -- optimizer states on the host in the memory plan: how they add up, what is
 * compared with the host's memory, and what is written where they do not fit. */
#include "parallel/memory/memory_plan.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GB ((size_t)1000 * 1000 * 1000)

/* A rank whose optimizer has 100 bytes of states, 40 of them on the host. */
static MemoryPlan plan_of_rank(int rank)
{
    size_t r = (size_t)rank + 1;
    return (MemoryPlan){.optimizer = 60 * r,
                        .total = 1000 * r,
                        .host = 50 * r,
                        .offloaded = 40 * r,
                        .offloaded_of_device = 40 * r,
                        .ranks = 1,
                        .of = 3,
                        .neighbours = 1};
}

/* Ranks 0 and 2 are on host-a, and each rank has a device of its own. */
static void add_up(Comm *world, void *context)
{
    (void)context;
    MemoryPlan own = plan_of_rank(world->rank);
    MemoryPlan sum = memory_plan_of_ranks(world, &own, world->rank);
    bool alone = world->rank == 1;
    if (sum.offloaded != (alone ? 80 : 160) || sum.host != (alone ? 100 : 200) ||
        sum.offloaded_of_device != own.offloaded || sum.neighbours != (alone ? 1 : 2) ||
        sum.total != own.total)
        rank_wrong(world, "%zu on the host, %zu of this device, %d neighbours", sum.offloaded,
                   sum.offloaded_of_device, sum.neighbours);
    if (memory_offloaded_share(&sum) != 0.4) rank_wrong(world, "another share than 0.4");
}

static void states_on_the_host_add_up_by_machine(void **state)
{
    (void)state;
    made_up_machines("aba");
    thread_ranks(3, 60, add_up, NULL);
    machines_forget();
}

/* Where the device's memory is the host's, the states are no part of "other". */
static void states_of_a_cpu_are_in_the_total_once(void **state)
{
    (void)state;
    MemoryPlan plan = plan_of_rank(0);
    memory_add_host(&plan);
    assert_int_equal(plan.total, 1050);
    assert_int_equal(plan.other, 10);
    assert_int_equal(plan.optimizer + plan.offloaded, 100);
}

/* ---- what fits ------------------------------------------------------------------------------- */

/* The states of a rank take 100 GB, in shards of 1 GB. */
static MemoryRatios ratios_of(void)
{
    MemoryRatios ratios;
    for (int k = 0; k <= 100; k++)
        ratios.at[k] = (OptimizerBytes){.device = (size_t)(100 - k) * GB, .host = (size_t)k * GB};
    return ratios;
}

/* A device with `device` GB for the plan, beside a host with `host` GB. */
static MemoryRoom room_of(size_t device, size_t host)
{
    return (MemoryRoom){.device = true,
                        .available = device * GB + ((size_t)256 << 20),
                        .total = device * GB,
                        .host = host * GB};
}

/* Ten GB of weights and gradients, `rest` GB beside, and the states, of which `host` GB lie on the
 * host. */
static MemoryPlan plan_of(size_t rest, size_t host)
{
    return (MemoryPlan){.weights = 4 * GB,
                        .gradients = 6 * GB,
                        .optimizer = (100 - host) * GB,
                        .activations = rest * GB,
                        .total = (10 + rest + 100 - host) * GB,
                        .host = host * GB + GB / 10,
                        .offloaded = host * GB,
                        .offloaded_of_device = host * GB,
                        .ranks = 1,
                        .of = 1,
                        .neighbours = 1};
}

static Config config_of(OffloadDevice device)
{
    Config c = {.train_micro_batch_size_per_gpu = 4,
                .gradient_accumulation_steps = 1,
                .parallel.data = 1,
                .data.seq_length = 512};
    c.zero_optimization.offload_optimizer = (OffloadConfig){device, 1.0, true};
    return c;
}

/* Fails unless the plan is refused with a message that has `words`; NULL: it fits. */
static void says_with(const MemoryPlan *plan, MemoryRoom room, const Config *c,
                      const MemoryRatios *ratios, const char *words)
{
    char err[2048] = "";
    bool fits = memory_fits(plan, &room, c, ratios, err, sizeof err);
    if (fits != (words == NULL) || (words && strstr(err, words) == NULL))
        fail_msg("%s instead of: %s", fits ? "it fits" : err, words ? words : "it fits");
}

static void says(const MemoryPlan *plan, MemoryRoom room, const Config *c, const char *words)
{
    MemoryRatios ratios = ratios_of();
    says_with(plan, room, c, &ratios, words);
}

/* Of page-locked memory, 5 % or 2 GB stay free, whichever is less; of other memory nothing. */
static void page_locked_memory_leaves_the_system_some(void **state)
{
    (void)state;
    MemoryPlan none = plan_of(0, 0), some = plan_of(0, 1);
    MemoryRoom small = room_of(100, 10), large = room_of(100, 100),
               unknown = {.device = true, .host = SIZE_MAX};
    assert_int_equal(memory_host_room(&none, &small), 10 * GB);
    assert_int_equal(memory_host_room(&some, &small), 10 * GB - GB / 2);
    assert_int_equal(memory_host_room(&some, &large), 98 * GB);
    assert_true(memory_host_room(&some, &unknown) == SIZE_MAX);
}

/* The ratio that is named fits, and the next one above does not. */
static void a_host_that_is_too_small_is_refused_with_the_ratio_that_fits(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_CPU);
    MemoryPlan plan = plan_of(5, 100);
    says(&plan, room_of(80, 103), &c, NULL);
    says(&plan, room_of(80, 102), &c,
         "needs 93.2 GiB of the host's memory, 93.1 GiB of it page-locked for the optimizer's "
         "states, and 93.1 GiB are available for that; lower "
         "zero_optimization.offload_optimizer.ratio to 0.99");
    says(&plan, room_of(80, 62), &c, "offload_optimizer.ratio to 0.59");
    MemoryRoom limited = room_of(80, 62);
    limited.limited = true;
    says(&plan, limited, &c, "are available for that (its control group's limit); lower");
    /* Moments of half the size are an offer to a run in bf16 that does not have them. */
    MemoryRoom room = room_of(80, 62);
    c.bf16.enabled = true;
    says(&plan, room, &c, "ratio to 0.59, or write bf16.bf16_optimizer_states true");
    c.bf16.bf16_optimizer_states = true;
    char err[2048];
    MemoryRatios ratios = ratios_of();
    assert_false(memory_fits(&plan, &room, &c, &ratios, err, sizeof err));
    assert_null(strstr(err, "bf16_optimizer_states"));
    /* Nothing fits both. */
    says(&plan, room_of(20, 32), &c,
         "no zero_optimization.offload_optimizer.ratio fits: with 0.95 the host lacks 60.3 GiB, "
         "with 0.3 the GPU lacks 60.5 GiB");
}

/* The host's memory is compared in every run, whether it accumulates gradients or not. */
static void the_host_is_compared_always(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = {.host = 2 * GB, .ranks = 1, .of = 1, .neighbours = 1};
    says(&plan, room_of(20, 2), &c, NULL);
    says(
        &plan, room_of(20, 1), &c,
        "the plan needs 1.9 GiB of the host's memory and 953.7 MiB are available; free some of it");
    c.gradient_accumulation_steps = 3;
    says(&plan, room_of(20, 1), &c, "lower gradient_accumulation_steps (now 3)");
}

/* Where every rank keeps all states, ZeRO is named. */
static void states_of_data_parallel_ranks_at_stage_0_name_stage_1(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_CPU);
    MemoryPlan plan = plan_of(5, 100);
    c.parallel.data = 8;
    says(&plan, room_of(80, 62), &c,
         "; each of 8 data-parallel ranks keeps all states, with zero_optimization.stage 1 each "
         "keeps a part of 1/8");
    c.zero_optimization.stage = 1;
    char err[2048];
    MemoryRatios ratios = ratios_of();
    MemoryRoom room = room_of(80, 62);
    assert_false(memory_fits(&plan, &room, &c, &ratios, err, sizeof err));
    assert_null(strstr(err, "zero_optimization.stage"));
}

/* On a CPU both memories are one, and no ratio is named. */
static void a_cpu_is_not_told_a_ratio(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_CPU);
    MemoryPlan plan = plan_of(5, 100);
    memory_add_host(&plan);
    MemoryRoom room = {.available = 60 * GB, .host = 60 * GB};
    says(&plan, room, &c,
         "choose a smaller model: its weights, gradients and optimizer alone take 102.4 GiB");
    room.available = room.host = 116 * GB;
    says(&plan, room, &c, NULL);
}

/* ---- what helps a device --------------------------------------------------------------------- */

static void a_device_is_told_the_least_ratio_that_leaves_room(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(5, 0);
    says(&plan, room_of(115, 500), &c, NULL);
    says(&plan, room_of(52, 500), &c,
         "write zero_optimization.offload_optimizer {\"device\": \"cpu\", \"ratio\": 0.63}: 58.7 "
         "GiB "
         "of the 465.7 GiB available on the host");
    says(&plan, room_of(15, 500), &c,
         "write zero_optimization.offload_optimizer.device \"cpu\": 93.1");
    c.zero_optimization.offload_optimizer = (OffloadConfig){OFFLOAD_CPU, 0.2, true};
    plan = plan_of(5, 20);
    says(&plan, room_of(52, 500), &c, "write zero_optimization.offload_optimizer.ratio 0.63: 58.7");
}

/* Where the host has no room for what the device lacks, both shortfalls are named. */
static void where_no_ratio_fits_both_shortfalls_are_named(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(5, 0);
    says(&plan, room_of(52, 42), &c,
         "choose a smaller model: its weights, gradients and optimizer alone take 102.4 GiB; no "
         "zero_optimization.offload_optimizer.ratio fits: with 0.63 the host lacks 21.5");
    says(&plan, room_of(52, 42), &c, "with 0.39 the GPU lacks 22.4 GiB");
}

/* States on the host are not named where they do not help, or do not help alone. */
static void what_else_is_too_large_is_named(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(20, 0);
    says(&plan, room_of(8, 500), &c,
         "choose a smaller model: its weights and gradients alone take 9.3 GiB");
    says(
        &plan, room_of(20, 500), &c,
        "write zero_optimization.offload_optimizer.device \"cpu\": 93.1 GiB of the 465.7 GiB "
        "available on the host; and lower train_micro_batch_size_per_gpu (now 4), data.seq_length");
    says(
        &plan, room_of(120, 500), &c,
        "lower train_micro_batch_size_per_gpu (now 4), data.seq_length (now 512), or the model, or "
        "set activation_checkpointing.policy to \"selective\" or \"full\", or write "
        "zero_optimization.offload_optimizer {\"device\": \"cpu\", \"ratio\": 0.1}");
}

/* Nor where the host has no room for them, or where those that can lie there do already. */
static void states_that_cannot_move_to_the_host_are_not_named(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(20, 0);
    static const char smaller[] =
        "choose a smaller model: its weights, gradients and optimizer alone take ";
    says(&plan, room_of(20, 50), &c, smaller);
    /* Two ranks share the device: each keeps 5 GB of states there with any ratio. */
    MemoryRatios ratios;
    for (int k = 0; k <= 100; k++)
        ratios.at[k] = (OptimizerBytes){.device = 5 * GB, .host = 95 * GB};
    plan = plan_of(20, 90);
    plan.host += 100 * GB;
    plan.offloaded = plan.offloaded_of_device = 190 * GB;
    plan.ranks = plan.of = plan.neighbours = 2;
    c = config_of(OFFLOAD_CPU);
    says_with(&plan, room_of(15, 500), &c, &ratios, smaller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_on_the_host_add_up_by_machine),
        cmocka_unit_test(states_of_a_cpu_are_in_the_total_once),
        cmocka_unit_test(page_locked_memory_leaves_the_system_some),
        cmocka_unit_test(a_host_that_is_too_small_is_refused_with_the_ratio_that_fits),
        cmocka_unit_test(the_host_is_compared_always),
        cmocka_unit_test(states_of_data_parallel_ranks_at_stage_0_name_stage_1),
        cmocka_unit_test(a_cpu_is_not_told_a_ratio),
        cmocka_unit_test(a_device_is_told_the_least_ratio_that_leaves_room),
        cmocka_unit_test(where_no_ratio_fits_both_shortfalls_are_named),
        cmocka_unit_test(what_else_is_too_large_is_named),
        cmocka_unit_test(states_that_cannot_move_to_the_host_are_not_named),
    };
    return cmocka_run_group_tests_name("states on the host in a plan", tests, NULL, NULL);
}
