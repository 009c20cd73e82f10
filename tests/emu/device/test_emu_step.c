/* test_emu_step.c -- counts the kernels and the library's products that a training step launches.
 * scripts/sass must predict steps with the same numbers. The emulated device counts; a GPU has no
 * such counters. */
#include "tests/support/support.h"
#include "tests/support/trainer/trainer_fixture.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

/* One micro-batch of 16 tokens on one rank with f32 masters and gradients, as
 * scripts/sass/kernels.py assumes. Of the shape only the layers and the chunks of the head matter.
 * Kernels process whole tensors, and a row of 128 bf16 leaves no gap between parameters that had to
 * be filled with zeros; nor do the widths of the real models. */
#define SHARED                                                                                     \
    "{\"device\": \"cuda\", \"bf16\": {\"enabled\": true},"                                        \
    " \"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"train_batch_size\": 1,"                  \
    " \"data\": {\"tokenizer_vocab_size\": 280, \"seq_length\": 16},"                              \
    " \"train_steps\": 40, \"gradient_clipping\": 1.0,"                                            \
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 6e-4, \"weight_decay\": 0.1}},"    \
    " \"model\": {\"hidden_size\": 128, "
#define GPT2                                                                                       \
    SHARED "\"num_attention_heads\": 2, \"norm\": \"layernorm\", \"activation\": \"gelu\","        \
           " \"position\": \"learned\", \"bias\": true, \"tie_word_embeddings\": true,"            \
           " \"fused_gelu\": true}}"
#define LLAMA                                                                                      \
    SHARED "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"norm\": \"rmsnorm\","        \
           " \"activation\": \"swiglu\", \"position\": \"rope\", \"bias\": false,"                 \
           " \"tie_word_embeddings\": false}}"

/* The models of scripts/sass/kernels.py in their order, with the number of chunks in which the head
 * computes its rows on an H200 (for example 4 for GPT-2 124M with 64 x 1024 tokens). most: an
 * upper bound of the launches; 0: none. */
static const struct {
    const char *config, *layers, *chunk;
    int64_t most;
} models[] = {
    {GPT2, "model.num_layers=12", "model.head_chunk_rows=4", 400},
    {GPT2, "model.num_layers=48", "model.head_chunk_rows=16", 0},
    {LLAMA, "model.num_layers=32", "model.head_chunk_rows=8", 0},
};
enum { MODELS = sizeof models / sizeof *models };

/* Returns in *kernels and *products what scripts/sass/kernels.py counts for a step of its model on
 * an H200. */
static void predicted(int model, int64_t *kernels, int64_t *products)
{
    long long n[2] = {0};
    char *command = text_format(
        "python3 -B -c \"import sys; sys.path.insert(0, 'scripts/sass'); import kernels, predict; "
        "print(*kernels.launches(kernels.MODELS[%d], 1e9 * "
        "predict.MACHINE['H200']['memory_gb']))\"",
        model);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    int read = fscanf(out, "%lld %lld", &n[0], &n[1]);
    if (pclose(out) != 0 || read != 2) fail_msg("%s: no two numbers", command);
    free(command);
    *kernels = n[0];
    *products = n[1];
}

/* The launches by which streams write their progress words for the flight recorder in a step of one
 * micro-batch: two at the end of the forward pass, on the streams compute and copy, and one on the
 * stream compute after each of the backward pass, the decision and the update. The report leaves
 * them out, because each is one thread that stores a number. */
enum { MARKS = 5 };

/* A step of GPT-2 124M launches at most 400 kernels and products. For every model of the report of
 * scripts/sass_report.sh, the numbers in the report are those that are counted. */
static void test_launches_of_a_step_equal_those_in_the_sass_report(void **state)
{
    if (system("python3 -c ''") != 0) skip_because("python3 is not installed");
    int64_t every = turns_every(1), first = turns_first(every);
    for (int i = 0; i < MODELS; i++) {
        if (i > 0 && (i - 1) % every != first) continue; /* the first one always */
        Training t;
        Trainer trainer;
        int64_t kernels, products;
        training_of_config(&t, models[i].config, *state, 1,
                           (const char *const[]){models[i].layers, models[i].chunk, NULL});
        training_open_rank(&trainer, NULL, &t);
        trainer_warm_up(&trainer);
        predicted(i, &kernels, &products);
        int64_t first_kernel = emu_count_launches(), first_product = emu_count_products();
        trainer_step(&trainer);
        assert_int_equal(emu_count_launches() - first_kernel, kernels + MARKS);
        assert_int_equal(emu_count_products() - first_product, products);
        if (models[i].most) assert_in_range(kernels + MARKS + products, 1, models[i].most);
        trainer_close(&trainer);
        training_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_of_a_step_equal_those_in_the_sass_report),
    };
    return cmocka_run_group_tests_name("launches of a step", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
