/* test_verify.c -- `./train verify`: every preset config equals a single rank on grids of up to 32
 * ranks, and planted faults are found and named. */
#include "parallel/verify/verify.h"
#include "tests/support/grid/grid_faults.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_SETS = 8, VERIFIED_STAGES = 4 };

/* The output of `verify`, and its exit code. */
typedef struct {
    char text[4096];
    int code;
} Said;

/* Verifies a config on `ranks` ranks with settings `sets`, which end with NULL, and returns its
 * output. */
static Said verify_said(const char *config, int ranks, const char *const *sets, VerifyDtype dtype,
                        const GridHooks *hooks)
{
    Said said = {0};
    const char *item[MOST_SETS];
    char path[] = "/tmp/test_verify_XXXXXX";
    VerifyOptions options = {
        .config = config, .set = {.item = item}, .ranks = ranks, .dtype = dtype};
    for (; *sets; sets++)
        item[options.set.count++] = *sets;
    if (hooks) {
        options.opened = hooks->opened;
        options.context = hooks->context;
    }
    fflush(stdout);
    int file = mkstemp(path), out = dup(1), err = dup(2);
    unlink(path);
    dup2(file, 1);
    dup2(file, 2);
    said.code = verify_config(&options);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    if (pread(file, said.text, sizeof said.text - 1, 0) < 0) said.text[0] = '\0';
    close(file);
    return said;
}

static void expect_said(const Said *said, int code, const char *words)
{
    if (said->code != code || strstr(said->text, words) == NULL)
        fail_msg("exit code %d, not %d, or nothing of \"%s\" in\n%s", said->code, code, words,
                 said->text);
}

static const char *const presets[] = {
    "configs/demo.json",      "configs/gpt2_124m.json",  "configs/gpt2_350m.json",
    "configs/gpt2_774m.json", "configs/gpt2_1558m.json", "configs/llama_160m.json",
    "configs/llama_1b.json",  "configs/llama_8b.json",   "configs/gpt2_1558m_8gpu.json"};
enum { PRESETS = sizeof presets / sizeof *presets };

/* Each preset is tried with another number of ranks and another ZeRO stage. Most batch sizes fit
 * these numbers of ranks, but they need not. */
static void test_every_preset_on_data_parallel_ranks_equals_a_single_rank(void **state)
{
    (void)state;
    int every = (int)turns_every(9);
    for (int i = (int)turns_first(every); i < PRESETS; i += every) {
        char stage[64];
        snprintf(stage, sizeof stage, "zero_optimization.stage=%d", i % VERIFIED_STAGES);
        Said said =
            verify_said(presets[i], 2 + i % 3, (const char *[]){stage, NULL}, VERIFY_DEFAULT, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
    }
}

/* Grids on which a preset is verified, and the line that must be printed about each. On a few of
 * the most expensive grids the preset gets fewer heads, and with them a smaller hidden size; each
 * of these presets is also verified with all its heads on another grid. */
static const struct {
    int preset, ranks;
    const char *sets[MOST_SETS], *words;
} grids[] = {
    {0,
     8,
     {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence_parallel=true",
      "zero_optimization.stage=3"},
     "grid       8 ranks = pp 2 x dp 2 x tp 2 (threads), ZeRO 3, 1f1b, sequence parallel\n"},
    {0,
     8,
     {"parallel.tensor=4", "parallel.pipeline=2", "parallel.schedule=gpipe",
      "parallel.pipeline_split=[1,3]", "train_batch_size=12", "gradient_accumulation_steps=3"},
     "grid       8 ranks = pp 2 x tp 4 (threads), ZeRO 0, gpipe\n"},
    {0,
     6,
     {"tensor_parallel.autotp_size=2", "pipeline.stages=3", "pipeline.partition=parameters"},
     "grid       6 ranks = pp 3 x tp 2 (threads), ZeRO 0, 1f1b\n"},
    {1,
     6,
     {"parallel.tensor=3", "zero_optimization.stage=2"},
     "grid       6 ranks = dp 2 x tp 3 (threads), ZeRO 2\n"},
    {1,
     8,
     {"parallel.pipeline=2", "parallel.pipeline_chunks=2", "parallel.tensor=2",
      "zero_optimization.stage=1"},
     "grid       8 ranks = pp 2 x dp 2 x tp 2 (threads), ZeRO 1, interleaved\n"},
    {2,
     4,
     {"parallel.tensor=4", "parallel.sequence_parallel=true"},
     "grid       4 ranks = tp 4 (threads), ZeRO 0, sequence parallel\n"},
    {2,
     6,
     {"parallel.pipeline=3", "zero_optimization.stage=3", "model.num_attention_heads=4"},
     "grid       6 ranks = pp 3 x dp 2 (threads), ZeRO 3, 1f1b\n"},
    {3,
     10,
     {"parallel.tensor=5", "zero_optimization.stage=3"},
     "grid       10 ranks = dp 2 x tp 5 (threads), ZeRO 3\n"},
    {4,
     10,
     {"parallel.tensor=5", "parallel.pipeline=2"},
     "grid       10 ranks = pp 2 x tp 5 (threads), ZeRO 0, 1f1b\n"},
    {4,
     5,
     {"parallel.tensor=5", "parallel.sequence_parallel=true", "data.seq_length=1000"},
     "grid       5 ranks = tp 5 (threads), ZeRO 0, sequence parallel\n"},
    {5,
     12,
     {"parallel.tensor=2", "parallel.pipeline=6", "parallel.schedule=gpipe",
      "model.num_attention_heads=4", "model.num_key_value_heads=2"},
     "grid       12 ranks = pp 6 x tp 2 (threads), ZeRO 0, gpipe\n"},
    {5,
     8,
     {"parallel.tensor=4", "zero_optimization.stage=2", "parallel.sequence_parallel=true"},
     "grid       8 ranks = dp 2 x tp 4 (threads), ZeRO 2, sequence parallel\n"},
    {6, 16, {"parallel.tensor=16"}, "grid       16 ranks = tp 16 (threads), ZeRO 0\n"},
    {6,
     8,
     {"parallel.tensor=2", "parallel.pipeline=2", "zero_optimization.stage=1",
      "parallel.sequence_parallel=true", "model.num_attention_heads=8",
      "model.num_key_value_heads=4"},
     "grid       8 ranks = pp 2 x dp 2 x tp 2 (threads), ZeRO 1, 1f1b, sequence parallel\n"},
    {7,
     8,
     {"parallel.tensor=4", "zero_optimization.stage=3"},
     "grid       8 ranks = dp 2 x tp 4 (threads), ZeRO 3\n"},
    {7,
     8,
     {"parallel.tensor=2", "parallel.pipeline=4", "parallel.pipeline_chunks=2",
      "model.num_attention_heads=8", "model.num_key_value_heads=4"},
     "grid       8 ranks = pp 4 x tp 2 (threads), ZeRO 0, interleaved\n"},
    {0,
     16,
     {"parallel.pipeline=16", "model.num_layers=16", "train_micro_batch_size_per_gpu=1",
      "train_batch_size=5"},
     "grid       16 ranks = pp 16 (threads), ZeRO 0, 1f1b\n"},
    {0,
     16,
     {"parallel.pipeline=16", "model.num_layers=32", "parallel.pipeline_chunks=2",
      "train_micro_batch_size_per_gpu=1", "train_batch_size=17"},
     "grid       16 ranks = pp 16 (threads), ZeRO 0, interleaved\n"},
    {0,
     32,
     {"parallel.pipeline=16", "model.num_layers=16", "zero_optimization.stage=3",
      "train_micro_batch_size_per_gpu=1", "train_batch_size=8",
      "activation_checkpointing.policy=full"},
     "grid       32 ranks = pp 16 x dp 2 (threads), ZeRO 3, 1f1b\n"},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static void test_presets_on_grids_of_all_axes_equal_a_single_rank(void **state)
{
    (void)state;
    int every = (int)turns_every(17);
    for (int i = (int)turns_first(every); i < GRIDS; i += every) {
        Said said = verify_said(presets[grids[i].preset], grids[i].ranks, grids[i].sets,
                                VERIFY_DEFAULT, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
        expect_said(&said, EXIT_OK, grids[i].words);
    }
}

/* Includes grids on which tensor-parallel ranks add numbers that they have rounded to 16 bits. */
static void test_grids_in_16_bit_types_equal_a_single_rank(void **state)
{
    (void)state;
    static const char *const sets[][6] = {
        {"parallel.tensor=4", "parallel.pipeline=2", "bf16.enabled=true"},
        {"parallel.tensor=2", "parallel.sequence_parallel=true", "fp16.enabled=true",
         "bf16.enabled=false", "zero_optimization.stage=3"},
        {"parallel.tensor=2", "parallel.pipeline=2", "bf16.enabled=false",
         "communication_data_type=bf16", "zero_optimization.stage=2"},
        {"parallel.tensor=4", "bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true",
         "model.qk_norm=true", "model.num_key_value_heads=2"},
        {"parallel.pipeline=8", "model.num_layers=16", "parallel.pipeline_chunks=2",
         "fp16.enabled=true", "bf16.enabled=false"}};
    int64_t every = turns_every(3);
    for (int64_t i = turns_first(every); i < 5; i += every) {
        Said said = verify_said(presets[0], 8, sets[i], VERIFY_CONFIG, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
    }
}

/* In f64, rows of the residual stream are sent in f64, whatever type the config names for them. */
static void test_a_sequence_parallel_communication_type_passes_verify(void **state)
{
    (void)state;
    static const char *const sets[][6] = {
        {"parallel.tensor=2", "parallel.sequence_parallel=true", "bf16.enabled=true",
         "seq_parallel_communication_data_type=bf16"},
        {"parallel.tensor=2", "parallel.sequence_parallel=true", "bf16.enabled=false",
         "seq_parallel_communication_data_type=fp32"}};
    for (int i = 0; i < 2; i++)
        for (VerifyDtype dtype = VERIFY_DEFAULT; dtype <= VERIFY_CONFIG; dtype++) {
            Said said = verify_said(presets[0], 2, sets[i], dtype, NULL);
            expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
        }
}

/* Without RoPE the gradient of a key bias is only rounding noise, which a small eps would turn into
 * updates. A config in f64 gets the same minimum of eps, whether or not f64 is requested on the
 * command line. */
static void test_gradients_that_are_only_rounding_noise_do_not_fail_verify(void **state)
{
    (void)state;
    for (VerifyDtype dtype = VERIFY_DEFAULT; dtype <= VERIFY_CONFIG; dtype++) {
        Said said = verify_said(
            presets[1], 2,
            (const char *[]){"parallel.tensor=2", "fp64.enabled=true", "bf16.enabled=false",
                             "data.seq_length=5", "data_types.grad_accum_dtype=auto",
                             "optimizer.params.eps=1e-8", "scheduler.type=Constant", NULL},
            dtype, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
    }
}

/* A config in its own dtype is compared with the bounds of that dtype. */
static void test_every_dtype_passes_verify_within_the_bounds_of_its_type(void **state)
{
    (void)state;
    static const char *const sets[][3] = {
        {"seed=1"},
        {"bf16.enabled=true"},
        {"fp16.enabled=true", "bf16.enabled=false"},
        {"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true"}};
    for (int i = 0; i < 4; i++) {
        Said said = verify_said(presets[0], 3, sets[i], VERIFY_CONFIG, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
        expect_said(&said, EXIT_OK, i == 0 ? " (bound 2e-05): " : ": gradients beside f32, step ");
        assert_int_equal(strstr(said.text, "(bound") != NULL, i == 0);
    }
}

/* Planted faults such as bug 1 are found and named. */
static void test_a_planted_fault_is_found_and_its_first_difference_named(void **state)
{
    (void)state;
    static const struct {
        GridFault fault;
        const char *words;
    } planted[] = {
        {FAULT_SKIPPED_REDUCE, "the grid is not a single rank: norm of the gradients, step 1: "},
        {FAULT_SKIPPED_UNIT, "weight of block.1."},
        {FAULT_LOCAL_DECISION, "the grid is not a single rank: loss, step 1: "},
    };
    for (int i = 0; i < 3; i++) {
        GridHooks hooks = grid_fault_hooks(planted[i].fault);
        Said said = verify_said(presets[0], 2, (const char *[]){"zero_optimization.stage=1", NULL},
                                VERIFY_DEFAULT, &hooks);
        expect_said(&said, EXIT_REPLICAS, planted[i].words);
        expect_said(&said, EXIT_REPLICAS, "error[89] ");
        expect_said(&said, EXIT_REPLICAS, "; bound ");
    }
}

/* A grid whose first rank equals a single rank may still have replicas that differ (bug 16). Tries
 * every ZeRO stage. */
static void test_bug_16_a_replica_that_drifts_is_reported(void **state)
{
    (void)state;
    GridHooks hooks = grid_fault_hooks(FAULT_DRIFT);
    for (int i = 0; i < VERIFIED_STAGES; i++) {
        char stage[64];
        snprintf(stage, sizeof stage, "zero_optimization.stage=%d", i);
        Said said =
            verify_said(presets[0], 3, (const char *[]){stage, NULL}, VERIFY_DEFAULT, &hooks);
        expect_said(&said, EXIT_REPLICAS,
                    "after 3 steps ranks have other weights than their replicas");
        expect_said(&said, EXIT_REPLICAS, "error[89] ");
    }
}

/* In bf16, a wrong sum is farther from f32 than rounding can explain. */
static void test_a_planted_fault_is_found_in_bf16(void **state)
{
    (void)state;
    GridHooks hooks = grid_fault_hooks(FAULT_SKIPPED_REDUCE);
    Said said = verify_said(presets[0], 2, (const char *[]){"bf16.enabled=true", NULL},
                            VERIFY_CONFIG, &hooks);
    expect_said(&said, EXIT_REPLICAS, "a single rank is 0.");
}

/* Gradients that are sent in a coarser type than they are kept in are rounded as the config says,
 * which is accepted. A planted fault causes a larger difference, which is found. */
static void test_verify_accepts_gradients_sent_in_16_bits_but_finds_a_fault(void **state)
{
    (void)state;
    static const char *const sets[][6] = {
        {"communication_data_type=bf16", "bf16.enabled=false"},
        {"communication_data_type=fp16", "bf16.enabled=false"},
        {"communication_data_type=bf16", "bf16.enabled=false", "zero_optimization.stage=2",
         "gradient_accumulation_steps=2"},
        {"communication_data_type=fp16", "bf16.enabled=false", "zero_optimization.stage=3"},
        {"communication_data_type=bf16", "bf16.enabled=false", "fp16.enabled=true"},
        {"communication_data_type=bf16", "bf16.enabled=true"}};
    GridHooks hooks = grid_fault_hooks(FAULT_SKIPPED_REDUCE);
    int64_t every = turns_every(5);
    for (int64_t i = turns_first(every); i < 6 * 2; i += every) {
        int ranks = 2 + (int)(i / 6);
        Said said = verify_said(presets[0], ranks, sets[i % 6], VERIFY_CONFIG, NULL);
        expect_said(&said, EXIT_OK, "equal      to a single rank; worst deviation ");
        said = verify_said(presets[0], ranks, sets[i % 6], VERIFY_CONFIG, &hooks);
        expect_said(&said, EXIT_REPLICAS, "the grid is not a single rank: ");
    }
}

/* A step that both sides skip proves nothing. The dynamic scale of fp16 begins at a value at which
 * no step overflows; a fixed scale that is too large is reported. */
static void test_a_step_that_both_sides_skip_does_not_count_as_equal(void **state)
{
    (void)state;
    Said said = verify_said(presets[0], 2,
                            (const char *[]){"fp16.enabled=true", "bf16.enabled=false",
                                             "fp16.initial_scale_power=32", NULL},
                            VERIFY_CONFIG, NULL);
    expect_said(&said, EXIT_OK, ": gradients beside f32, step ");
    said = verify_said(
        presets[0], 2,
        (const char *[]){"fp16.enabled=true", "bf16.enabled=false", "fp16.loss_scale=1e9", NULL},
        VERIFY_CONFIG, NULL);
    expect_said(&said, EXIT_CONFIG, "nothing was compared in step 1: ");
    expect_said(&said, EXIT_CONFIG, "write a smaller fp16.loss_scale");
    if (strstr(said.text, "equal ")) fail_msg("equal in\n%s", said.text);
}

/* A config that is refused ends with the same error as in other commands. */
static void test_an_invalid_or_missing_config_ends_verify_with_its_error(void **state)
{
    (void)state;
    Said said =
        verify_said(presets[0], 2, (const char *[]){"train_steps=0", NULL}, VERIFY_DEFAULT, NULL);
    expect_said(&said, EXIT_CONFIG, "train_steps");
    said = verify_said("configs/none.json", 2, (const char *[]){NULL}, VERIFY_DEFAULT, NULL);
    expect_said(&said, EXIT_MISSING, "configs/none.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_preset_on_data_parallel_ranks_equals_a_single_rank),
        cmocka_unit_test(test_presets_on_grids_of_all_axes_equal_a_single_rank),
        cmocka_unit_test(test_grids_in_16_bit_types_equal_a_single_rank),
        cmocka_unit_test(test_a_sequence_parallel_communication_type_passes_verify),
        cmocka_unit_test(test_gradients_that_are_only_rounding_noise_do_not_fail_verify),
        cmocka_unit_test(test_every_dtype_passes_verify_within_the_bounds_of_its_type),
        cmocka_unit_test(test_a_planted_fault_is_found_and_its_first_difference_named),
        cmocka_unit_test(test_bug_16_a_replica_that_drifts_is_reported),
        cmocka_unit_test(test_a_planted_fault_is_found_in_bf16),
        cmocka_unit_test(test_verify_accepts_gradients_sent_in_16_bits_but_finds_a_fault),
        cmocka_unit_test(test_a_step_that_both_sides_skip_does_not_count_as_equal),
        cmocka_unit_test(test_an_invalid_or_missing_config_ends_verify_with_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
