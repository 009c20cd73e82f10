/* test_deep.c -- checkpoints of models with very many tensors: the largest model that a config
 * allows stays within the format's limits, and saving and loading never compare every tensor with
 * every other. */
#include "configs/reader/options.h"
#include "model/core/check.h"
#include "model/gpt.h"
#include "optim/optimizer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/checkpoint/whole_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Replaces the C library's strcmp in this program, to count comparisons of names. */
static _Thread_local int64_t comparisons;

int counted_strcmp(const char *a, const char *b) __asm__("strcmp");
int counted_strcmp(const char *a, const char *b)
{
    comparisons++;
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

/* A model with the maximum number of blocks and every parameter that a block can have. */
static GptShape deepest(void)
{
    return (GptShape){.L = (int64_t)option_table[option_find("model.num_layers")].max,
                      .C = 1000000, /* large sizes, which give the longest text */
                      .H = 1000,
                      .G = 1000,
                      .D = 1000,
                      .F = 1000000,
                      .V = 2,
                      .Vp = 128,
                      .P = 1,
                      .norm = {.kind = NORM_LAYERNORM},
                      .activation = ACTIVATION_SWIGLU,
                      .norm_bias = true,
                      .attention_bias = ATTENTION_BIAS_ALL,
                      .mlp_bias = true,
                      .qk_norm = true,
                      .dtype = F32,
                      .grad_dtype = F32};
}

static SafetensorsEntry entry_called(char *name)
{
    return (SafetensorsEntry){.name = name,
                              .dtype = F32,
                              .ndim = 2,
                              .dim = {1000000, 1000000},
                              .bytes = (int64_t)4000000000000};
}

/* Uses the weights, the maximum number of optimizer states per weight, and the longest names. */
static void the_largest_allowed_model_fits_the_header_and_manifest_limits(void **state)
{
    (void)state;
    GptShape shape = deepest();
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    int n = table.n_params * SLOT_MAX, all = n + table.n_params;
    SafetensorsEntry *entry = must_calloc((size_t)n, sizeof *entry);
    Manifest m = {.save_id = "0123456789abcdef",
                  .config = must_strdup("{}"),
                  .machine = must_strdup(""),
                  .code = must_strdup(""),
                  .data = must_strdup(""),
                  .tensor = must_calloc((size_t)all, sizeof *m.tensor),
                  .n_tensors = all};
    manifest_two_files(&m);
    for (int i = 0; i < n; i++)
        entry[i] = entry_called(text_format("%s.exp_avg_sq", table.param[i / SLOT_MAX].name));
    for (int i = 0; i < all; i++) {
        m.tensor[i].entry = entry_called(must_strdup(entry[i % n].name));
        m.tensor[i].chunk = must_calloc(1, sizeof *m.tensor[i].chunk);
        m.tensor[i].n_chunks = 1;
    }
    for (int i = 0; i < n; i++)
        entry[i].bytes = 4; /* small, so the offsets do not overflow */
    size_t header_bytes, manifest_bytes;
    char *header = safetensors_header(entry, n, NULL, 0, &header_bytes),
         *manifest = manifest_print(&m, &manifest_bytes);
    print_message("  %lld layers: a header of %zu bytes, a manifest of %zu\n", (long long)shape.L,
                  header_bytes, manifest_bytes);
    /* Adds room for offsets and lengths, which could have more digits than here. */
    assert_true((int64_t)header_bytes + 30 * (int64_t)n < SAFETENSORS_MAX_HEADER);
    assert_true((int64_t)manifest_bytes + 20 * (int64_t)all < MANIFEST_MAX_BYTES);
    for (int i = 0; i < n; i++)
        free(entry[i].name);
    free(entry);
    free(header);
    free(manifest);
    manifest_free(&m);
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* The number of comparisons is at most EACH per name, and so not quadratic. */
static void name_comparisons_of_save_and_load_grow_linearly_with_the_tensors(void **state)
{
    (void)state;
    enum { N = 3000, EACH = 80 };
    CheckpointIo io;
    char folder[] = "/tmp/test_deep_XXXXXX", err[1024];
    float value[1] = {1};
    Piece *named = must_calloc(N, sizeof *named);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < N; i++)
        named[i] = piece_whole(text_format("blocks.%d.weight", i), tensor_1d(value, F32, 1));
    StepState step = {.steps = 1, .hysteresis = 1, .last_overflow = -1, .loss_scale = 1};
    CheckpointContents contents = {.weights = named,
                                   .n_weights = N,
                                   .slots = named,
                                   .n_slots = 1,
                                   .state = &step,
                                   .config = "{}",
                                   .machine = "{}",
                                   .code = "1",
                                   .data = "none"};
    checkpoint_io_open(&io, NULL, NULL);
    comparisons = 0;
    if (!checkpoint_write(&io, folder, &contents, err, sizeof err)) fail_msg("%s", err);
    print_message("  %d tensors: %lld comparisons\n", N, (long long)comparisons);
    assert_true(comparisons > N && comparisons < (int64_t)EACH * N);
    Checkpoint *c;
    if (!checkpoint_open_newest(&io, folder, &c, err, sizeof err) || c == NULL) fail_msg("%s", err);
    comparisons = 0;
    if (!checkpoint_read(&io, c, CHECKPOINT_WEIGHTS, named, N, err, sizeof err))
        fail_msg("%s", err);
    assert_true(comparisons > 0 && comparisons < (int64_t)EACH * N);
    checkpoint_close(c);
    checkpoint_io_close(&io);
    for (int i = 0; i < N; i++)
        free((char *)(uintptr_t)named[i].name);
    free(named);
    char *clean = text_format("rm -rf '%s'", folder);
    assert_int_equal(system(clean), 0);
    free(clean);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_allowed_model_fits_the_header_and_manifest_limits),
        cmocka_unit_test(name_comparisons_of_save_and_load_grow_linearly_with_the_tensors),
    };
    return cmocka_run_group_tests_name("deep", tests, NULL, NULL);
}
