/* test_plan_offload.c -- plans with states of the optimizer on the host: how many bytes a rank
 * keeps in each precision, what fits a card of 24 GB, which remedy a plan names if it does not fit,
 * and the time of updates over the link. */
#include "parallel/plan/plan.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "tests/support/files/config_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SETS = 6 };

/* Few micro-batches, because these plans are about memory. */
#define FEW "train_batch_size=4"

static Hardware preset(const char *machine)
{
    Hardware hardware;
    ExitCode code;
    char err[512];
    if (!hardware_load(&hardware, machine, &code, err, sizeof err)) fail_msg("%s", err);
    return hardware;
}

/* A plan and its config, whose offload_optimizer section is set after the config was read. */
typedef struct {
    const Config *read;
    Config config;
    Plan plan;
} Planned;

/* Reads a config; a ratio below 0: all states are on the device. */
static Planned *read_config(const char *path, const Hardware *h, int64_t ranks, double ratio,
                            const char *const set[SETS])
{
    Planned *p = must_calloc(1, sizeof *p);
    char err[512];
    ConfigReport report;
    ConfigContext context = plan_context(h, ranks);
    int n = 0;
    while (n < SETS && set[n] != NULL)
        n++;
    p->read = config_load(path, n, set, &context, &report);
    if (p->read == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    p->read = plan_settle(p->read, h, err, sizeof err);
    if (p->read == NULL) fail_msg("%s", err);
    p->config = *p->read;
    p->config.zero_optimization.offload_optimizer =
        (OffloadConfig){ratio >= 0 ? OFFLOAD_CPU : OFFLOAD_NONE, ratio >= 0 ? ratio : 1, true};
    return p;
}

static Planned *plan_of(const char *path, const Hardware *h, int64_t ranks, double ratio,
                        const char *const set[SETS])
{
    Planned *p = read_config(path, h, ranks, ratio > 0 ? ratio : -1, set);
    char err[512];
    if (!plan_make(&p->plan, &p->config, h, err, sizeof err)) fail_msg("%s", err);
    return p;
}

/* Plans only the memory of GPT-2 124M. */
static Planned *planned_memory(const Hardware *h, double ratio, const char *const set[SETS])
{
    Planned *p = read_config("configs/gpt2_124m.json", h, 1, ratio, set);
    p->plan = plan_memory(&p->config, h);
    return p;
}

static void end(Planned *p)
{
    plan_free(&p->plan);
    config_free(p->read);
    free(p);
}

static void end_memory(Planned *p)
{
    free(p->plan.remedy);
    config_free(p->read);
    free(p);
}

/* ---- what a rank keeps ----------------------------------------------------------------------- */

#define BF16_STATES "bf16.bf16_master_weights_and_grads=true", "data_types.grad_accum_dtype=bf16"

#define MOMENTS "bf16.bf16_optimizer_states=true"

/* `device`: bytes of a parameter's weight, gradient and optimizer states on the device. `host`:
 * bytes of its states on the host. */
static void the_bytes_of_a_parameter_follow_from_its_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *what, *set[SETS];
        double ratio, device, host;
    } row[] = {
        {"f32 masters, moments and gradients", {FEW}, 0, 18, 0},
        {"no masters, bf16 gradients", {BF16_STATES, FEW}, 0, 12, 0},
        {"no masters, bf16 gradients and moments", {BF16_STATES, MOMENTS, FEW}, 0, 8, 0},
        {"states on the host", {FEW}, 1, 6, 12},
        {"states on the host, bf16 gradients", {"data_types.grad_accum_dtype=bf16", FEW}, 1, 4, 12},
        {"no masters, states on the host", {BF16_STATES, FEW}, 1, 4, 8},
        {"no masters, bf16 moments on the host", {BF16_STATES, MOMENTS, FEW}, 1, 4, 4}};
    const Hardware h = preset("h100");
    print_message("%-40s %9s %9s %10s %10s %12s %12s\n", "llama_8b, one rank", "B on GPU",
                  "B on host", "GB on GPU", "GB on host", "most in 70 GB", "most in 20 GB");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Planned *p = plan_of("configs/llama_8b.json", &h, 1, row[i].ratio, row[i].set);
        const MemoryPlan *m = &p->plan.stage[0].memory;
        double n = (double)p->plan.parameters,
               device = (double)(m->weights + m->gradients + m->optimizer),
               host = (double)m->offloaded;
        print_message("%-40s %9.2f %9.2f %10.1f %10.1f %10.1f B %10.1f B\n", row[i].what,
                      device / n, host / n, device / 1e9, host / 1e9, 70 / (device / n),
                      20 / (device / n));
        /* The planned bytes are a little more, because units are padded. */
        if (fabs(device / n - row[i].device) > 0.02 || fabs(host / n - row[i].host) > 0.02)
            fail_msg("%s: %g and %g bytes", row[i].what, device / n, host / n);
        end(p);
    }
}

/* A rank of a ZeRO group has its part of the states on the host, and a node those of its ranks. */
static void a_node_holds_the_offloaded_states_of_its_ranks(void **state)
{
    (void)state;
    const Hardware h = preset("h100");
    for (int stage = 0; stage <= 3; stage++) {
        char set[64];
        snprintf(set, sizeof set, "zero_optimization.stage=%d", stage);
        const char *const sets[SETS] = {set, "train_micro_batch_size_per_gpu=1",
                                        "checkpoint.async=false"};
        Planned *p = plan_of("configs/gpt2_1558m.json", &h, 16, 1, sets);
        double of_node = (stage == 0 ? 8 : 0.5) * 12 * (double)p->plan.parameters;
        const PlanRoom *host = &p->plan.host;
        if (fabs((double)host->needed / of_node - 1) > 0.01)
            fail_msg("stage %d: %g, not %g", stage, (double)host->needed, of_node);
        assert_int_equal(host->offloaded, 8 * p->plan.stage[0].memory.offloaded);
        end(p);
    }
}

/* A plan keeps as much host memory free as the run does. If there is page-locked memory, that is 2
 * GB or 5 %, whichever is less, unless memory_margin is more. */
static void a_plan_leaves_as_much_host_memory_free_as_a_run(void **state)
{
    (void)state;
    const char *const wide[SETS] = {"memory_margin=0.1", FEW}, *const narrow[SETS] = {FEW};
    static const struct {
        double bytes, ratio, margin;
        bool wide;
    } row[] = {{20e9, 1, 1e9, false},
               {20e9, 0, 0.6e9, false},
               {60e9, 1, 2e9, false},
               {90e9, 1, 2.7e9, false},
               {20e9, 1, 2e9, true}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Hardware h = preset("rtx4090");
        h.host_bytes = (int64_t)row[i].bytes;
        Planned *p = planned_memory(&h, row[i].ratio, row[i].wide ? wide : narrow);
        assert_int_equal(p->plan.host.margin, (int64_t)row[i].margin);
        assert_int_equal(p->plan.host.room, h.host_bytes - (int64_t)row[i].margin);
        end_memory(p);
    }
}

/* ---- a card of 24 GB ------------------------------------------------------------------------- */

static const char *const stage_3[SETS] = {"zero_optimization.stage=3", FEW};

static bool fits(const Hardware *h, double ratio)
{
    Planned *p = plan_of("configs/gpt2_1558m.json", h, 1, ratio, stage_3);
    bool good = p->plan.fits;
    end(p);
    return good;
}

static void says(const Hardware *h, double ratio, const char *words)
{
    Planned *p = plan_of("configs/gpt2_1558m.json", h, 1, ratio, stage_3);
    if (p->plan.fits || p->plan.remedy == NULL || strstr(p->plan.remedy, words) == NULL)
        fail_msg("%s instead of: %s", p->plan.remedy ? p->plan.remedy : "no remedy", words);
    end(p);
}

static void gpt2_1558m_fits_a_card_of_24_gb_with_states_on_the_host(void **state)
{
    (void)state;
    const Hardware h = preset("rtx4090");
    Planned *p = plan_of("configs/gpt2_1558m.json", &h, 1, 1, stage_3);
    assert_true(p->plan.fits);
    assert_in_range(p->plan.device.needed, 9.3e9, 10.1e9);
    assert_in_range(p->plan.stage[0].memory.offloaded, 18.6e9, 18.8e9);
    /* The states cross the link in each update; the time that the next forward pass does not hide
     * is part of the step.
     */
    double link = (double)p->plan.stage[0].memory.offloaded / h.host_bandwidth;
    assert_true(p->plan.step.exposed_host > 0.5 * link && p->plan.step.exposed_host < link);
    end(p);
    assert_false(fits(&h, 0));
}

/* The remedy names the least ratio that fits the GPU or, if only the host lacks memory, the largest
 * that fits the host. */
static void a_plan_that_does_not_fit_names_an_offload_ratio_that_would_fit(void **state)
{
    (void)state;
    Hardware h = preset("rtx4090");
    says(&h, 0,
         "--set zero_optimization.offload_optimizer.device=cpu --set "
         "zero_optimization.offload_optimizer.ratio=0.22 fits: ");
    assert_true(fits(&h, 0.22));
    assert_false(fits(&h, 0.21));
    says(&h, 0.1, "--set zero_optimization.offload_optimizer.ratio=0.22 fits: ");
    h.host_bytes = (int64_t)15e9;
    says(&h, 1, "--set zero_optimization.offload_optimizer.ratio=0.74 fits: ");
    assert_true(fits(&h, 0.74));
    assert_false(fits(&h, 0.75));
    h.host_bytes = (int64_t)3e9;
    for (int ratio = 0; ratio <= 1; ratio++)
        says(
            &h, ratio,
            "no ratio of zero_optimization.offload_optimizer fits: with 0.22 a node lacks 1.5 GiB, "
            "with 0.13 a GPU lacks 1.5 GiB");
    /* With two ranks, the remedy also proposes ZeRO stage 1, unless the config already has it. */
    h = preset("rtx4090");
    for (int stage = 0; stage <= 1; stage++) {
        h.device.bytes = (int64_t)(stage == 0 ? 25e9 : 20e9);
        const char *const set[SETS] = {stage ? "zero_optimization.stage=1" : "seed=1",
                                       "train_batch_size=2"};
        Planned *two = plan_of("configs/gpt2_1558m.json", &h, 2, 0, set);
        bool named = strstr(two->plan.remedy, "; zero_optimization.stage=1 leaves each of 2 "
                                              "data-parallel ranks 1/2 of the states") != NULL;
        assert_int_equal(named, stage == 0);
        end(two);
    }
    /* On this GPU the model is too large even without optimizer states, so there is no remedy. */
    h = preset("rtx4090");
    h.device.bytes = (int64_t)6e9;
    Planned *p = plan_of("configs/gpt2_1558m.json", &h, 1, 0, stage_3);
    assert_false(p->plan.fits);
    assert_null(p->plan.remedy);
    end(p);
}

/* Bytes that a plan needs of each memory with k hundredths of the states on the host, for k = 0 to
 * 100; `offloaded`: of `host`, the bytes of states. */
typedef struct {
    int64_t device[101], host[101], offloaded[101];
} Needs;

static void count_needs(Needs *needs, const Hardware *h, const char *const set[SETS])
{
    for (int k = 0; k <= 100; k++) {
        Planned *p = planned_memory(h, k / 100.0, set);
        needs->device[k] = p->plan.device.needed;
        needs->host[k] = p->plan.host.needed;
        needs->offloaded[k] = p->plan.host.offloaded;
        end_memory(p);
    }
}

/* Returns how much host memory a plan may use with k hundredths of the states on the host: all but
 * 3 %, or all but 5 % if some of it is page-locked (5 % and not 2 GB, because these hosts are
 * small). */
static int64_t host_room(const Hardware *h, const Needs *needs, int k)
{
    double bytes = (double)h->host_bytes;
    return h->host_bytes - (int64_t)((needs->offloaded[k] > 0 ? 0.05 : 0.03) * bytes);
}

/* Fails unless the remedy of a plan with this ratio (below 0: without offload) is the one that
 * trying all ratios finds. Returns the kind of the answer: 'f': the plan fits; 'r' or 'l': the
 * smallest or the largest ratio that fits; 'n': no ratio fits; '-': there is no remedy. */
static char check_remedy(const Hardware *h, const Needs *needs, double ratio,
                         const char *const set[SETS])
{
    Planned *p = planned_memory(h, ratio, set);
    plan_find_remedy(&p->plan);
    const char *remedy = p->plan.remedy;
    const PlanRoom *device = &p->plan.device;
    int least = 101, most = -1, first = 101, last = -1;
    for (int k = 0; k <= 100; k++) {
        bool on_device = needs->device[k] <= device->room,
             on_host = needs->host[k] <= host_room(h, needs, k);
        if (on_device && least > 100) least = k;
        if (on_host) most = k;
        if (on_device && on_host && first > 100) first = k;
        if (on_device && on_host) last = k;
    }
    bool on = ratio >= 0, lower = device->needed <= device->room;
    char want[256] = "", given = p->plan.fits ? 'f' : '-';
    if (!p->plan.fits && last >= 0 && !on && first == 100)
        snprintf(want, sizeof want, "--set zero_optimization.offload_optimizer.device=cpu fits: ");
    else if (!p->plan.fits && last >= 0)
        snprintf(want, sizeof want, "--set %szero_optimization.offload_optimizer.ratio=%g fits: ",
                 on ? "" : "zero_optimization.offload_optimizer.device=cpu --set ",
                 (lower ? last : first) / 100.0);
    else if (!p->plan.fits && least <= 100 && most >= 0)
        snprintf(want, sizeof want, "with %g a node lacks %s, with %g a GPU lacks %s",
                 least / 100.0,
                 figure_bytes((double)(needs->host[least] - host_room(h, needs, least))).text,
                 most / 100.0, figure_bytes((double)(needs->device[most] - device->room)).text);
    if ((remedy != NULL) != (*want != '\0') || (remedy && strstr(remedy, want) == NULL))
        fail_msg("device %g, host %g, ratio %g: \"%s\", not \"%s\"", (double)h->device.bytes,
                 (double)h->host_bytes, ratio, remedy ? remedy : "nothing", want);
    if (remedy) given = last >= 0 ? (lower ? 'l' : 'r') : 'n';
    end_memory(p);
    return given;
}

/* Tests every kind of answer, for configs with all states on the device, and with some or all on
 * the host. */
static void the_proposed_ratio_equals_the_result_of_trying_all_ratios(void **state)
{
    (void)state;
    static const double room[] = {0.001e9, 0.8e9, 1.3e9, 2.2e9}, ratio[] = {-1, 0, 0.2, 0.55, 1};
    const char *const set[SETS] = {"train_batch_size=4", "train_micro_batch_size_per_gpu=1",
                                   "checkpoint.async=false"};
    char seen[64] = "";
    Hardware h = preset("rtx4090");
    Needs needs;
    for (size_t d = 0; d < sizeof room / sizeof *room; d++) {
        /* The size of the head's chunks depends on the device's memory, so the needs are counted
         * for each device. */
        h.device.bytes = (int64_t)room[d] + h.workspace_bytes;
        count_needs(&needs, &h, set);
        for (size_t n = 0; n < sizeof room / sizeof *room; n++)
            for (size_t r = 0; r < sizeof ratio / sizeof *ratio; r++) {
                h.host_bytes = (int64_t)room[n];
                char kind[2] = {check_remedy(&h, &needs, ratio[r], set), '\0'};
                if (strstr(seen, kind) == NULL) strcat(seen, kind);
            }
    }
    assert_int_equal(strlen(seen), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_a_parameter_follow_from_its_dtypes),
        cmocka_unit_test(a_node_holds_the_offloaded_states_of_its_ranks),
        cmocka_unit_test(a_plan_leaves_as_much_host_memory_free_as_a_run),
        cmocka_unit_test(gpt2_1558m_fits_a_card_of_24_gb_with_states_on_the_host),
        cmocka_unit_test(a_plan_that_does_not_fit_names_an_offload_ratio_that_would_fit),
        cmocka_unit_test(the_proposed_ratio_equals_the_result_of_trying_all_ratios),
    };
    return cmocka_run_group_tests_name("plans with states on the host", tests, NULL, NULL);
}
