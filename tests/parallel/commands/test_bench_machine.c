/* test_bench_machine.c -- tests that the fits of `./train bench machine` find the figures from
 * which made-up times were computed, and that its output is a machine file. */
#include "parallel/commands/bench_fit.h"
#include "parallel/commands/bench_sources.h"
#include "parallel/commands/cmd_bench.h"
#include "parallel/plan/cost.h"
#include "tests/support/files/scratch.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static Hardware load(const char *name)
{
    Hardware h;
    char err[512];
    ExitCode code;
    if (!hardware_load(&h, name, &code, err, sizeof err)) fail_msg("%s", err);
    return h;
}

static void near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-3 * fabs(expected))) fail_msg("%g, not %g", got, expected);
}

/* The times are computed from known figures by cost.h, and the fits must find these figures. */
static void figures_of_products_are_recovered_from_made_up_times(void **state)
{
    static const int64_t size[] = {256, 512, 768, 3072, 8192};
    (void)state;
    for (int i = 0; hardware_preset(i) != NULL; i++) {
        Hardware h = load(hardware_preset(i));
        MeasuredProduct p[125];
        double error;
        h.product.edge = 37.5;
        for (int k = 0; k < 125; k++) {
            p[k] = (MeasuredProduct){.m = size[k % 5], .n = size[k / 5 % 5], .k = size[k / 25]};
            p[k].seconds = cost_product(&h, &COST_OWN, BF16, p[k].m, p[k].n, p[k].k, 0);
        }
        double edge = fit_edge(p, 125, h.launch, 256);
        near(edge, 37.5);
        near(fit_rate(p, 125, h.launch, edge, &error),
             h.peak[BF16] * h.product.most * h.product.sustained);
        assert_true(error < 1e-6);
        fit_rate(p, 125, h.launch, 0, &error);
        assert_true(error > 0.02);
    }
}

static double attention_rate(const Hardware *h, int64_t length)
{
    double flops = 4.0 * 0.5 * (double)length * (double)(length + 1) * 128;
    GraphNode node = {
        .kind = NODE_OP, .code = OP_attention_forward, .dtype = BF16, .m = 1, .k = 128};
    node.n = length;
    node.flops = flops;
    return flops / (cost_of_node(h, &COST_OWN, NULL, &node) - h->launch);
}

static void figures_of_attention_are_recovered_from_made_up_times(void **state)
{
    Hardware h = load("a100");
    (void)state;
    FittedAttention f =
        fit_attention(1024, attention_rate(&h, 1024), 8192, attention_rate(&h, 8192));
    near(f.rate, h.attention_forward.share * h.peak[BF16]);
    near(f.length, h.attention_forward.length);
    /* A long sequence that is slower than a short one: no length. */
    f = fit_attention(128, 2e9, 512, 1e9);
    near(f.rate, 1e9);
    assert_true(f.length == 0);
}

static void figures_of_collectives_are_recovered_from_made_up_times(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks++) {
        Hardware h = load("cpu"), fitted = {0};
        GraphGroup group = {.size = ranks, .stride = 1};
        h.devices_per_node = ranks;
        fit_calls(&(MeasuredCalls){.ranks = ranks,
                                   .small_reduce =
                                       cost_collective(&h, &COST_OWN, COMM_ALL_REDUCE, 0, &group),
                                   .small_message = h.collective + h.inside.latency,
                                   .bandwidth = 4e9},
                  &fitted);
        near(fitted.collective, h.collective);
        near(fitted.inside.latency, h.inside.latency);
        near(fitted.inside.bandwidth, 4e9);
    }
    for (int ranks = 2; ranks <= 8; ranks++) {
        Hardware h = load("h200"), fitted = h;
        GraphGroup group = {.size = ranks, .stride = 1};
        fitted.collective = fitted.inside.bandwidth = 0;
        double reduce = cost_collective(&h, &COST_OWN, COMM_ALL_REDUCE, 0, &group);
        fit_calls(&(MeasuredCalls){.ranks = ranks, .small_reduce = reduce, .bandwidth = 4e9},
                  &fitted);
        near(fitted.collective, h.collective);
        near(fitted.inside.latency, h.inside.latency);
        near(fitted.inside.bandwidth, 4e9);
    }
    Hardware odd = {0}; /* an exchange that takes longer than an all-reduce */
    fit_calls(&(MeasuredCalls){.ranks = 2, .small_reduce = 1, .small_message = 2}, &odd);
    assert_true(odd.inside.latency == 0 && odd.collective == 2);
}

/* The bandwidth of links is found with the times of calls of all sizes, and without those of the
 * largest size. */
static void the_bandwidth_is_recovered_from_made_up_times_of_large_calls(void **state)
{
    (void)state;
    for (int sizes = CALL_SIZES - 1; sizes <= CALL_SIZES; sizes++)
        for (int ranks = 2; ranks <= 8; ranks++)
            for (int host = 0; host < 2; host++) {
                Hardware h = load(host ? "cpu" : "h200");
                const GraphGroup group = {.size = ranks, .stride = 1};
                const CallsWanted wanted = {.ranks = ranks, .sizes = sizes};
                CallsMeasured m = {.wanted = &wanted};
                h.devices_per_node = ranks;
                /* GPUs have several protocols, and the smallest call uses another one than large
                 * calls do, so the made-up times on GPUs contain no latency. */
                h.inside.latency = host ? h.inside.latency : 0;
                h.inside.bandwidth = 4e9;
                h.collective = 1e-5;
                for (int verb = 0; verb <= COMM_ALL_GATHER; verb++)
                    for (int size = 0; size < sizes; size++)
                        m.seconds[verb][size] = cost_collective(&h, &COST_OWN, (CommVerb)verb,
                                                                call_bytes(size), &group);
                near(fit_bandwidth(&m, host), 4e9);
                /* Calls of both sizes count. */
                CallsMeasured slower = m;
                for (int verb = 0; verb <= COMM_ALL_GATHER; verb++)
                    slower.seconds[verb][sizes - 2] +=
                        m.seconds[verb][sizes - 2] - m.seconds[verb][0];
                near(fit_bandwidth(&slower, host), 4e9 / sqrt(2));
                if (!host) continue;
                /* If something else has delayed the small calls, their time is not subtracted, and
                 * the result is a lower bound. */
                for (int verb = 0; verb <= COMM_ALL_GATHER; verb++)
                    m.seconds[verb][0] = 1;
                double least = fit_bandwidth(&m, host);
                assert_true(least < 4e9 && least > 1e9);
            }
}

/* Whether or not the peak is known from a data sheet, peak * product.most, the rate of large
 * products, becomes the measured rate. A known peak is not changed. */
static void a_peak_from_a_data_sheet_is_kept(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        Hardware h = load("h200");
        double sheet = h.peak[BF16];
        h.product.most = 0.9;
        fit_peak(&h, BF16, 700e12, known);
        near(h.peak[BF16] * h.product.most, 700e12);
        near(known ? h.peak[BF16] : h.product.most, known ? sheet : 0.9);
    }
}

static void a_node_has_at_most_one_network_interface_per_device(void **state)
{
    (void)state;
    for (int devices = 1; devices <= 16; devices *= 2) {
        Hardware h = load("h200");
        fit_node(&h, devices);
        assert_int_equal(h.devices_per_node, devices);
        assert_int_equal(h.nics_per_node, devices < 8 ? devices : 8);
    }
}

/* ---- sources --------------------------------------------------------------------------------- */

static void says(BenchSources *s, const char *key, const char *text)
{
    assert_string_equal(bench_source(s, key), text);
}

/* No number is called measured that was not measured. */
static void only_measured_numbers_are_called_measured(void **state)
{
    Hardware printed = load("h200"), measured = printed;
    BenchSources s = {.printed = &printed,
                      .measured = &measured,
                      .preset = "h200",
                      .by = "it",
                      .known = true,
                      .calls = true};
    (void)state;
    says(&s, "launch", "measured by it");
    says(&s, "product_most", "measured by it");
    says(&s, "peak_bf16", "the data sheet's, as in the preset h200");
    says(&s, "peak_tf32", "the data sheet's, as in the preset h200");
    says(&s, "product_sustained", "assumed, not measured, as in the preset h200");
    says(&s, "between_latency", "assumed, not measured, as in the preset h200");
    says(&s, "inside_latency", "assumed, not measured, as in the preset h200");
    says(&s, "inside_bandwidth", "measured by it");
    says(&s, "nics_per_node", "assumed: as in the preset h200, at most one for each device");
    says(&s, "devices_per_node", "the GPUs that this program sees");
    says(&s, "capability", "the GPU's driver");
    says(&s, "node_disk_bandwidth", "measured by it");
    measured.launch = 1e-7;
    printed = measured;
    hardware_limit(&printed);
    says(&s, "launch", "the limit of what is possible: 1e-07 was measured by it");
    s.known = s.calls = false;
    says(&s, "product_most", "by definition: the peaks are fitted rates divided by this");
    says(&s, "peak_bf16", "measured by it; large products reach product_most of it");
    says(&s, "peak_tf32", "assumed: in the same ratio to peak_bf16 as in the preset h200");
    says(&s, "peak_f64", "assumed, not measured, as in the preset h200");
    says(&s, "collective", "assumed, not measured, as in the preset h200");
    printed = measured = load("cpu");
    s.preset = "cpu";
    says(&s, "devices_per_node", "the cores that this program may use, at least 2");
    s.given_ranks = true;
    says(&s, "devices_per_node", "given by --ranks");
    says(&s, "capability", "a CPU has none");
    says(&s, "product_sustained", "measured by it");
}

/* --size 10 is the smallest with which calls of all sizes are measured. */
static void the_output_is_a_valid_machine_file(void **state)
{
    char err[4096],
        *argv[] = {"machine", "--device", "cpu", "--size", "10", "--repetitions", "1", NULL};
    Hardware h;
    ExitCode code;
    (void)state;
    fflush(stdout);
    int terminal = dup(STDOUT_FILENO);
    assert_non_null(freopen("machine.json", "w", stdout));
    int end = args_run(&cmd_bench_machine, 7, argv);
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    assert_int_equal(end, EXIT_OK);
    if (!hardware_load(&h, "machine.json", &code, err, sizeof err)) fail_msg("%s", err);
    assert_false(h.cuda);
    assert_true(h.host_bytes > 0 && h.peak[F32] > 0 && h.devices_per_node >= 2);
    /* No computer copies memory faster. */
    if (!(h.inside.bandwidth > 1e6 && h.inside.bandwidth < 2e12))
        fail_msg("%g", h.inside.bandwidth);
    char *text = take_text("machine.json");
    assert_non_null(strstr(text, "\"peak_f32\": \"measured by ./train bench machine, train "));
    assert_non_null(strstr(text, "\"between_latency\": \"assumed, "));
    assert_non_null(strstr(text, "\"product_most\": \"by definition"));
    assert_true(h.peak_tf32 == h.peak[F32] && h.gpu[0] == '\0');
    assert_true(h.nics_per_node == 1 && h.disk_bandwidth >= h.node_disk_bandwidth);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_of_products_are_recovered_from_made_up_times),
        cmocka_unit_test(figures_of_attention_are_recovered_from_made_up_times),
        cmocka_unit_test(figures_of_collectives_are_recovered_from_made_up_times),
        cmocka_unit_test(the_bandwidth_is_recovered_from_made_up_times_of_large_calls),
        cmocka_unit_test(a_peak_from_a_data_sheet_is_kept),
        cmocka_unit_test(a_node_has_at_most_one_network_interface_per_device),
        cmocka_unit_test(only_measured_numbers_are_called_measured),
        cmocka_unit_test_setup_teardown(the_output_is_a_valid_machine_file, enter_scratch,
                                        leave_scratch),
    };
    return cmocka_run_group_tests_name("bench machine", tests, NULL, NULL);
}
