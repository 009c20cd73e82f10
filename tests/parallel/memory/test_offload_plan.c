/* test_offload_plan.c -- tests the memory plan with optimizer states on the host: with which memory
 * it is compared, and the error messages if it does not fit. */
#include "parallel/memory/memory_plan.h"

#include "model/core/figures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GB ((size_t)1000 * 1000 * 1000)

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

/* A plan with 10 GB of weights and gradients, `rest` GB of activations, and 100 GB of states, of
 * which `host` GB are on the host. */
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
                        .of = 1};
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

/* Fails unless the plan is refused with a message that has `words`; words NULL: unless it fits. */
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

/* If some host memory is page-locked, 5 % of the host's memory or 2 GB stay free, whichever is
 * less; otherwise nothing. */
static void with_page_locked_memory_a_part_of_host_memory_is_kept_free(void **state)
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
static void a_host_with_too_little_memory_is_refused_with_the_ratio_that_fits(void **state)
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
    /* For a run in bf16, bf16 moments are suggested as a remedy if the plan then fits; otherwise
     * the message only says how much smaller the states would be. */
    MemoryRoom room = room_of(80, 62);
    c.bf16.enabled = true;
    says(&plan, room, &c,
         "ratio to 0.59; bf16.bf16_optimizer_states true makes the states a third smaller");
    c.bf16.bf16_master_weights_and_grads = true;
    says(&plan, room, &c, "ratio to 0.59, or write bf16.bf16_optimizer_states true");
    says(&plan, room_of(80, 50), &c,
         "; bf16.bf16_optimizer_states true makes the states half as large");
    c.bf16.bf16_master_weights_and_grads = false;
    says(&plan, room_of(80, 70), &c, ", or write bf16.bf16_optimizer_states true");
    says(&plan, room_of(14, 70), &c,
         "; bf16.bf16_optimizer_states true makes the states a third smaller");
    c.bf16.bf16_optimizer_states = true;
    char err[2048];
    MemoryRatios ratios = ratios_of();
    assert_false(memory_fits(&plan, &room, &c, &ratios, err, sizeof err));
    assert_null(strstr(err, "bf16_optimizer_states"));
    /* No ratio fits both memories. */
    says(&plan, room_of(20, 32), &c,
         "no zero_optimization.offload_optimizer.ratio fits: with 0.95 the host lacks 60.3 GiB, "
         "with 0.3 the GPU lacks 60.5 GiB");
}

/* A snapshot does not keep a ratio from fitting: if there is no room for both the snapshot and the
 * states, saves are synchronous. */
static void an_offload_ratio_is_proposed_even_if_a_snapshot_has_no_room(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(5, 0);
    plan.snapshot = 60 * GB;
    plan.host += plan.snapshot;
    says(&plan, room_of(52, 100), &c,
         "{\"device\": \"cpu\", \"ratio\": 0.63}: 58.7 GiB of the 93.1");
}

/* The host's memory is checked in every run, whether it accumulates gradients or not. */
static void the_hosts_memory_is_checked_in_every_run(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = {.host = 2 * GB, .ranks = 1, .of = 1};
    says(&plan, room_of(20, 2), &c, NULL);
    says(
        &plan, room_of(20, 1), &c,
        "the plan needs 1.9 GiB of the host's memory and 953.7 MiB are available; free some of it");
    c.gradient_accumulation_steps = 3;
    says(&plan, room_of(20, 1), &c, "lower gradient_accumulation_steps (now 3)");
}

/* If every rank keeps all states, the error suggests ZeRO stage 1. */
static void the_error_suggests_zero_stage_1_if_every_rank_keeps_all_states(void **state)
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

/* On a CPU, device memory and host memory are the same, so no ratio is suggested. */
static void on_a_cpu_the_error_proposes_no_ratio(void **state)
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

static void the_error_proposes_the_smallest_offload_ratio_that_fits_the_device(void **state)
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

/* If the host has no room for what the device lacks, the error says how much each of them lacks. */
static void if_no_ratio_fits_the_error_says_what_host_and_gpu_lack(void **state)
{
    (void)state;
    Config c = config_of(OFFLOAD_NONE);
    MemoryPlan plan = plan_of(5, 0);
    says(&plan, room_of(52, 42), &c,
         "choose a smaller model: its weights, gradients and optimizer alone take 102.4 GiB; no "
         "zero_optimization.offload_optimizer.ratio fits: with 0.63 the host lacks 21.5");
    says(&plan, room_of(52, 42), &c, "with 0.39 the GPU lacks 22.4 GiB");
}

/* Offloading is not suggested if it does not help. If it is not enough by itself, or if smaller
 * batches would also help, the error says that, too. */
static void the_error_names_what_helps_besides_offload(void **state)
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

/* Offloading is not suggested if the host has no room for the states, or if those that can be on
 * the host already are. */
static void offload_is_not_proposed_for_states_that_cannot_move_to_the_host(void **state)
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
        ratios.at[k] = (OptimizerBytes){.device = 10 * GB, .host = 190 * GB};
    plan = plan_of(20, 90);
    plan.host += 100 * GB;
    plan.offloaded = plan.offloaded_of_device = 190 * GB;
    plan.ranks = plan.of = 2;
    c = config_of(OFFLOAD_CPU);
    says_with(&plan, room_of(15, 500), &c, &ratios, smaller);
}

/* Writes the words that suggest to put `states` of the 100 GB of states on the host. `on`:
 * offloading is already on. */
static void how_to_write(bool on, int states, char *words, size_t n)
{
    static const char key[] = "write zero_optimization.offload_optimizer";
    if (on)
        snprintf(words, n, "%s.ratio %g: ", key, states / 100.0);
    else if (states == 100)
        snprintf(words, n, "%s.device \"cpu\": ", key);
    else
        snprintf(words, n, "%s {\"device\": \"cpu\", \"ratio\": %g}: ", key, states / 100.0);
}

/* Returns words of the error that a run gets with `states` GB of its states on the host, "" if it
 * fits. The run has 10 GB of weights and gradients and 5 GB of activations. 2 GB or 5 % of the
 * host, whichever is less, stay free. */
static const char *expected(int device, int host, int states, bool on, char *words, size_t n)
{
    double locked = host / 20.0 < 2 ? host * 0.95 : host - 2;
    int least = 115 - device < 0 ? 0 : 115 - device, most = (int)floor(locked - 0.1);
    bool lower = states > 0 && states + 0.1 > locked, higher = 115 - states > device;
    int high = least > 100 ? 100 : least;
    if (most > 100) most = 100;
    *words = '\0';
    if (!lower && !higher) return words;
    if (least <= most && lower)
        snprintf(words, n, "; lower zero_optimization.offload_optimizer.ratio to %g", most / 100.0);
    else if (least <= most)
        how_to_write(on, least, words, n);
    else if (least <= 100 || lower)
        snprintf(words, n,
                 "no zero_optimization.offload_optimizer.ratio fits: with %g the host lacks %s, "
                 "with %g the GPU lacks %s",
                 high / 100.0, figure_bytes((high + 0.1 - locked) * 1e9).text, most / 100.0,
                 figure_bytes((115 - most - device) * 1e9).text);
    else if (110 - states <= device)
        snprintf(words, n, "; lower train_micro_batch_size_per_gpu ");
    else if (most == 100)
        how_to_write(on, 100, words, n);
    else
        snprintf(words, n, "its weights, gradients and optimizer alone take ");
    return words;
}

/* The device, the host or both lack memory, with all states on the device or some of them on the
 * host. */
static void every_error_about_too_little_memory_proposes_what_helps(void **state)
{
    (void)state;
    static const int device[] = {12, 16, 40, 75, 114, 130}, host[] = {5, 15, 33, 77, 103, 300},
                     states[] = {-1, 0, 21, 62, 100};
    enum { N = sizeof device / sizeof *device, M = sizeof states / sizeof *states };
    int refused = 0;
    for (int i = 0; i < N * N * M; i++) {
        int d = device[i / M / N], h = host[i / M % N], of_host = states[i % M];
        bool on = of_host >= 0;
        Config c = config_of(on ? OFFLOAD_CPU : OFFLOAD_NONE);
        c.zero_optimization.offload_optimizer.ratio = on ? of_host / 100.0 : 1;
        MemoryPlan plan = plan_of(5, on ? (size_t)of_host : 0);
        char words[256];
        expected(d, h, on ? of_host : 0, on, words, sizeof words);
        says(&plan, room_of((size_t)d, (size_t)h), &c, *words ? words : NULL);
        refused += *words != '\0';
    }
    assert_in_range(refused, 100, N * N * M - 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_page_locked_memory_a_part_of_host_memory_is_kept_free),
        cmocka_unit_test(a_host_with_too_little_memory_is_refused_with_the_ratio_that_fits),
        cmocka_unit_test(an_offload_ratio_is_proposed_even_if_a_snapshot_has_no_room),
        cmocka_unit_test(the_hosts_memory_is_checked_in_every_run),
        cmocka_unit_test(the_error_suggests_zero_stage_1_if_every_rank_keeps_all_states),
        cmocka_unit_test(on_a_cpu_the_error_proposes_no_ratio),
        cmocka_unit_test(the_error_proposes_the_smallest_offload_ratio_that_fits_the_device),
        cmocka_unit_test(if_no_ratio_fits_the_error_says_what_host_and_gpu_lack),
        cmocka_unit_test(the_error_names_what_helps_besides_offload),
        cmocka_unit_test(offload_is_not_proposed_for_states_that_cannot_move_to_the_host),
        cmocka_unit_test(every_error_about_too_little_memory_proposes_what_helps),
    };
    return cmocka_run_group_tests_name("states on the host in a plan", tests, NULL, NULL);
}
