/* test_bench_machine.c -- tests that the fits of `./train bench machine` find the figures with
 * which times were made, and that its output is a machine file. */
#include "parallel/commands/bench_fit.h"
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

/* The fits are the inverse of the costs. */
static void products_give_the_figures_that_made_their_times(void **state)
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

static void attention_gives_the_figures_that_made_its_times(void **state)
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

static void calls_give_the_figures_that_made_their_times(void **state)
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

static void its_output_is_a_machine_file(void **state)
{
    char err[4096],
        *argv[] = {"machine", "--device", "cpu", "--size", "1", "--repetitions", "1", NULL};
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
    char *text = take_text("machine.json");
    assert_non_null(strstr(text, "\"peak_f32\": \"measured by ./train bench machine, train "));
    assert_non_null(strstr(text, "\"between_latency\": \"assumed, "));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_give_the_figures_that_made_their_times),
        cmocka_unit_test(attention_gives_the_figures_that_made_its_times),
        cmocka_unit_test(calls_give_the_figures_that_made_their_times),
        cmocka_unit_test_setup_teardown(its_output_is_a_machine_file, enter_scratch, leave_scratch),
    };
    return cmocka_run_group_tests_name("bench machine", tests, NULL, NULL);
}
