/* test_llmc_runs.c -- compares the step times that plans predict with the presets' machine files
 * with the published step times of llm.c, a program of the same kind as this one: C and CUDA, fused
 * kernels, bf16, ZeRO 1 on one node of eight GPUs. Nothing is fitted to these runs, and no trait of
 * the program is assumed. */
#include "model/core/check.h"
#include "parallel/plan/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The published step times: karpathy/llm.c @f1e2ace, scripts/run_gpt2_*.sh: about 300 ms, 820 ms,
 * 1.7 s, 2.7 to 2.8 s. The first row: KellerJordan/modded-nanogpt @f411b3d,
 * records/track_1_short/2024-10-13_llmc. A step has `sequences` sequences of 1024 tokens on all
 * GPUs together. */
static const struct {
    const char *what, *machine;
    int layers, width, heads, micro, sequences;
    double seconds;
} runs[] = {
    {"124M on 8 H100", "h100", 12, 768, 12, 64, 512, 0.140},
    {"124M on 8 A100", "a100", 12, 768, 12, 64, 512, 0.300},
    {"350M on 8 A100", "a100", 24, 1024, 16, 64, 512, 0.820},
    {"774M on 8 A100", "a100", 36, 1280, 20, 32, 512, 1.7},
    {"1558M on 8 H100", "h100", 48, 1600, 25, 16, 1024, 2.75},
};
enum { RUNS = sizeof runs / sizeof *runs };

/* Returns the predicted seconds of a step. */
static double predicted(int i)
{
    Hardware h;
    ExitCode code;
    char err[1024],
        *text = text_format(
            "{\"model\": {\"num_layers\": %d, \"hidden_size\": %d, \"num_attention_heads\": %d,"
            " \"vocab_size\": 50257}, \"data\": {\"text\": \"x\", \"seq_length\": 1024},"
            " \"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d,"
            " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}}",
            runs[i].layers, runs[i].width, runs[i].heads, runs[i].sequences, runs[i].micro);
    if (!hardware_load(&h, runs[i].machine, &code, err, sizeof err)) fail_msg("%s", err);
    const ConfigContext context = plan_context(&h, 8);
    ConfigReport report;
    const Config *c = config_parse(&context, runs[i].what, text, strlen(text), 0, NULL, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    c = plan_settle(c, &h, err, sizeof err);
    if (c == NULL) fail_msg("%s", err);
    Plan plan;
    if (!plan_make(&plan, c, &h, err, sizeof err)) fail_msg("%s", err);
    double seconds = plan.step.seconds;
    plan_free(&plan);
    config_free(c);
    free(text);
    return seconds;
}

static void planned_step_times_are_close_to_published_ones_of_llm_c(void **state)
{
    double sum = 0, worst = 0;
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        double seconds = predicted(i), error = seconds / runs[i].seconds - 1;
        print_message("%-16s predicted %7.3f s, published %7.3f s: %+5.1f %%\n", runs[i].what,
                      seconds, runs[i].seconds, 100 * error);
        sum += fabs(error);
        worst = fmax(worst, fabs(error));
    }
    print_message("mean error %.1f %%, worst %.1f %%\n", 100 * sum / RUNS, 100 * worst);
    assert_true(sum / RUNS <= 0.06 && worst <= 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_step_times_are_close_to_published_ones_of_llm_c)};
    return cmocka_run_group_tests_name("steps of llm.c", tests, NULL, NULL);
}
