/* test_plan_hardware.c -- tests that a plan takes from a machine file what the config asks for: the
 * peak of products in f32 or TF32, and the storage that its nodes can fill. */
#include "parallel/plan/plan.h"

#include "tests/support/files/config_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Plans a small model in f32 on `ranks` ranks. Free with plan_free and config_free. */
static Plan plan_of(const char *machine, int ranks, bool tf32)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 1024, \"num_attention_heads\": 8},"
        " \"data\": {\"text\": \"t\", \"seq_length\": 1024}, \"train_steps\": 100,"
        " \"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": false}}";
    const char *const set[] = {tf32 ? "cuda.tf32=true" : "cuda.tf32=false"};
    Hardware hardware;
    ExitCode code;
    char err[512];
    Plan plan;
    ConfigReport report;
    if (!hardware_load(&hardware, machine, &code, err, sizeof err)) fail_msg("%s", err);
    ConfigContext context = plan_context(&hardware, ranks);
    const Config *config = config_parse(&context, "c.json", text, strlen(text), 1, set, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    config = plan_settle(config, &hardware, err, sizeof err);
    if (config == NULL) fail_msg("%s", err);
    if (!plan_make(&plan, config, &hardware, err, sizeof err)) fail_msg("%s", err);
    return plan;
}

static void end(Plan *plan)
{
    const Config *config = plan->config;
    plan_free(plan);
    config_free(config);
}

static void near(double got, double expected, double bound)
{
    if (!(fabs(got / expected - 1) <= bound)) fail_msg("%g, not %g", got, expected);
}

/* With TF32 the time of the products falls by the ratio of the peaks, except for launches and for
 * products that memory bandwidth limits; nothing else of the step changes. mfu6 is then a share of
 * the TF32 peak. */
static void tf32_speeds_up_the_products(void **state)
{
    (void)state;
    static const char *const gpus[] = {"a100", "h100", "h200", "b200"};
    for (int i = 0; i < 4; i++) {
        Plan plain = plan_of(gpus[i], 1, false), rough = plan_of(gpus[i], 1, true);
        double ratio = plain.hardware.peak_tf32 / plain.hardware.peak[F32];
        assert_true(ratio > 7);
        near(plain.step.products / rough.step.products, ratio, 0.3);
        assert_true(plain.step.attention == rough.step.attention);
        near(plain.mfu6 / rough.mfu6, rough.step.seconds / plain.step.seconds * ratio, 1e-9);
        end(&plain);
        end(&rough);
    }
    Plan plain = plan_of("cpu", 1, false), rough = plan_of("cpu", 1, true);
    assert_true(plain.step.seconds == rough.step.seconds && plain.mfu6 == rough.mfu6);
    end(&plain);
    end(&rough);
}

/* Each node writes at its own bandwidth, until the nodes together reach the full bandwidth of the
 * storage system; then more nodes make saves no faster. */
static void few_nodes_do_not_use_the_full_bandwidth_of_shared_storage(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= 128; nodes *= 2) {
        Plan plan = plan_of("h100", 8 * nodes, false);
        const Hardware *h = &plan.hardware;
        double bandwidth = fmin(nodes * h->node_disk_bandwidth, h->disk_bandwidth);
        assert_true(plan.nodes == nodes);
        near(plan.save_seconds, (double)plan.stage[0].checkpoint_bytes / bandwidth, 1e-9);
        assert_true((bandwidth == h->disk_bandwidth) == (nodes > 47));
        end(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf32_speeds_up_the_products),
        cmocka_unit_test(few_nodes_do_not_use_the_full_bandwidth_of_shared_storage),
    };
    return cmocka_run_group_tests_name("a plan's hardware", tests, NULL, NULL);
}
