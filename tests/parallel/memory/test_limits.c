/* test_limits.c -- tests numbers that are allowed in a config or a checkpoint but too large for any
 * machine: each is refused with an error message before anything is computed from it. Sanitizers
 * would detect an overflow. */
#include "parallel/checkpoint/manifest.h"
#include "parallel/run/run.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/trainer/seen_run.h"
#include "tests/support/trainer/train_child.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int plan_rank(Run *run)
{
    run_plan(run);
    trainer_close(&run->trainer);
    return EXIT_OK;
}

/* Executes a run with random tokens up to its memory plan. */
static int plan(int argc, char **argv)
{
    RunArguments arguments;
    Run run;
    char err[256];
    int code;
    if (!run_arguments(&arguments, argc, argv, &code)) return code;
    run_configure(&run, &arguments);
    data_open_random(&run.data, 300);
    ConfigFacts facts = {.vocab_size = 300, .vocab_of = "test"};
    run.config = config_settle(run.config, &facts, err, sizeof err);
    if (run.config == NULL) return EXIT_CONFIG;
    return run_on_ranks(&run, plan_rank);
}

typedef struct {
    const char *set[7];
    int code;
    const char *says;
} Case;

static const Case cases[] = {
    {{"train_steps=1000000000", "train_batch_size=auto", "gradient_accumulation_steps=1000000000",
      "train_micro_batch_size_per_gpu=1", "data.seq_length=1000000000"},
     EXIT_NO_MEMORY,
     "the plan needs"},
    /* in these cases, one of these sizes is too large: a tensor, an arena, a sum of arenas, the
     * host's part */
    {{"data.seq_length=1000000000", "train_batch_size=1000000000",
      "train_micro_batch_size_per_gpu=1000000000"},
     EXIT_NO_MEMORY,
     "2^63 bytes"},
    {{"model.num_layers=2000", "model.hidden_size=1000000", "model.head_dim=100000",
      "model.num_attention_heads=100000"},
     EXIT_NO_MEMORY,
     "2^63 bytes"},
    /* units (flat buffers of parameters) that add up to more than 2^63 elements */
    {{"model.num_layers=1000", "model.hidden_size=1000000", "model.head_dim=100000",
      "model.num_attention_heads=100000", "zero_optimization.overlap_comm=true"},
     EXIT_NO_MEMORY,
     "2^63 bytes"},
    {{"model.num_layers=14", "model.hidden_size=1000000", "model.head_dim=100000",
      "model.num_attention_heads=100000"},
     EXIT_NO_MEMORY,
     "the plan needs"},
    {{"model.num_layers=25", "model.hidden_size=1000000", "model.head_dim=100000",
      "model.num_attention_heads=100000", "data.seq_length=1000000"},
     EXIT_NO_MEMORY,
     "the plan needs 16384.0 PiB"}, /* 2^64 bytes, the largest number printed */
    {{"train_batch_size=1000000000", "train_micro_batch_size_per_gpu=1", "model.num_layers=1000"},
     EXIT_NO_MEMORY,
     "gradient_accumulation_steps"},
    {{"train_batch_size=auto", "train_micro_batch_size_per_gpu=1000000000",
      "gradient_accumulation_steps=1000000000"},
     EXIT_CONFIG,
     "train_batch_size"},
    {{"eval.sample_tokens=1000000", "model.max_position_embeddings=1000000000",
      "model.head_dim=100000", "model.num_attention_heads=100000", "model.num_layers=100"},
     EXIT_NO_MEMORY,
     "bytes"},
    {{"model.num_layers=20000"}, EXIT_CONFIG, "from 1 to 3000"},
    {{"model.position=rope", "model.max_position_embeddings=8"},
     EXIT_CONFIG,
     "data.seq_length 16 do not fit max_position_embeddings 8"},
    {{"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true", "model.hidden_size=1000000",
      "model.num_attention_heads=1000", "model.head_dim=100000"},
     EXIT_CONFIG,
     "bf16_master_weights_and_grads false"},
    {{"checkpoint.keep=1000000", "train_steps=1000000000"}, EXIT_OK, "plan"},
};

static void absurdly_large_sizes_are_refused_with_an_error_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ChildResult ended =
            train_config_in_child(&(ChildPlace){.program = plan},
                                  &(ChildRun){.config = "base.json", .sets = cases[i].set});
        if (ended.code != cases[i].code || strstr(ended.text, cases[i].says) == NULL)
            fail_msg("case %zu ends with %d, not %d with \"%s\":\n%s", i, ended.code, cases[i].code,
                     cases[i].says, ended.text);
        free(ended.text);
    }
}

/* A resumed run adds to the numbers of its state. Numbers near the limits of 64 bits are refused
 * when they are read, and so are loss scales by which one cannot divide. */
static void a_checkpoint_with_an_impossible_step_state_is_refused(void **state)
{
    (void)state;
    const StepState good = {.steps = 3,
                            .samples = 12,
                            .hysteresis = 2,
                            .last_overflow = -1,
                            .loss_scale = 1,
                            .loss_seed = 1};
    Manifest m = {.save_id = "0123456789abcdef",
                  .config = must_strdup("{}"),
                  .machine = must_strdup(""),
                  .code = must_strdup(""),
                  .data = must_strdup("")},
             again;
    manifest_two_files(&m);
    int64_t *const field = (int64_t *)&m.state; /* 64 bits each, doubles too */
    const int64_t odd[] = {INT64_MAX, INT64_MIN, -2, (INT64_C(1) << 53) + 1};
    char err[300], *text;
    size_t n, fields = offsetof(StepState, losses) / 8;
    m.state = good;
    text = manifest_print(&m, &n);
    if (!manifest_parse(&again, text, n, err, sizeof err)) fail_msg("%s", err);
    manifest_free(&again);
    free(text);
    for (size_t i = 0; i < fields * 4; i++) {
        if (i / 4 == offsetof(StepState, loss_seed) / 8) continue; /* computed anew */
        m.state = good;
        field[i / 4] = odd[i % 4];
        bool scale = i / 4 == offsetof(StepState, loss_scale) / 8;
        if (scale) m.state.loss_scale = (const double[]){0, -1, INFINITY, NAN}[i % 4];
        text = manifest_print(&m, &n);
        if (manifest_parse(&again, text, n, err, sizeof err)) fail_msg("state %zu is taken", i);
        free(text);
    }
    manifest_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absurdly_large_sizes_are_refused_with_an_error_message),
        cmocka_unit_test(a_checkpoint_with_an_impossible_step_state_is_refused),
    };
    return cmocka_run_group_tests(tests, seen_folder_setup, leave_scratch);
}
