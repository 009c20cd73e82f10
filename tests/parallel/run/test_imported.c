/* test_imported.c -- tests the run folder that is made of weights from elsewhere: its checkpoint
 * has exactly the source's numbers, even if a tensor is read in several parts (windows) that end in
 * the middle of a row; and a source that fails, or a process that is killed while it reads, leaves
 * no folder of that name. */
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/layers.h"
#include "parallel/checkpoint/source.h"
#include "parallel/run/imported.h"
#include "tests/support/files/child.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Rows of 1540 bytes in bf16, 3080 in f32: no window of 2 MiB ends with a row. */
static const char keys[] = "\"model\": {\"vocab_size\": 2000, \"hidden_size\": 770, "
                           "\"num_attention_heads\": 7, \"num_layers\": 1, "
                           "\"intermediate_size\": 64, \"max_position_embeddings\": 1024}, "
                           "\"bf16\": {\"enabled\": true}";

typedef struct {
    WeightSource base;
    int reads, fails_at, dies_at; /* counted from 1; 0: never */
    int64_t most_rows;
} Numbers;

/* A number that bf16 holds exactly, from -128 to 127. */
static float number(int tensor, int64_t element)
{
    uint64_t h = (uint64_t)element * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 1099511628211u;
    return (float)(h >> 56) - 128;
}

static bool read_numbers(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                         char *err, size_t n)
{
    Numbers *s = (Numbers *)source;
    int64_t cols = source->tensor[index].ndim > 1 ? source->tensor[index].dim[1] : 1;
    if (++s->reads == s->dies_at) _exit(9);
    if (s->reads == s->fails_at) return error_set(err, n, "the source is at its end");
    if (rows > s->most_rows) s->most_rows = rows;
    for (int64_t i = 0; i < rows * cols; i++)
        ((float *)out)[i] = number(index, first * cols + i);
    return true;
}

static void close_numbers(WeightSource *source)
{
    free(source->tensor);
}

/* Opens a source in f32 with all tensors of the config's model, in reverse order. */
static Numbers open_numbers(const Config *config)
{
    GptShape shape = gpt_shape(config, 1);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    Numbers s = {
        .base = {.n_tensors = table.n_params, .read = read_numbers, .close = close_numbers}};
    s.base.tensor = must_calloc((size_t)table.n_params, sizeof *s.base.tensor);
    for (int i = 0; i < table.n_params; i++) {
        const Param *p = &table.param[table.n_params - 1 - i];
        SourceTensor *t = &s.base.tensor[i];
        *t = (SourceTensor){.dtype = F32, .ndim = p->ndim, .dim = {p->dim[0], p->dim[1]}};
        memcpy(t->name, p->name, sizeof t->name);
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    return s;
}

static bool import(const Config *config, Numbers *source, const char *out, char *err, size_t n)
{
    ImportedFile file = {.name = "LICENSE", .text = "Anyone.\n", .bytes = 8};
    ImportedResult result;
    ExitCode code;
    const ImportedRun run = {.source = &source->base,
                             .config = config,
                             .origin = "numbers",
                             .data = "tokenizer none; train none; val none",
                             .file = &file,
                             .n_files = 1};
    return imported_run_write(out, &run, &result, err, n, &code);
}

static void check_weights(const char *out, const Numbers *source)
{
    char err[1024], *path = text_format("%s/checkpoints/step_00000000", out);
    Checkpoint *checkpoint;
    WeightSource *saved;
    if (!checkpoint_open(path, &checkpoint, err, sizeof err)) fail_msg("%s", err);
    assert_true(checkpoint_weights_only(checkpoint));
    assert_true(checkpoint_source_open(checkpoint, &saved, err, sizeof err));
    assert_int_equal(saved->n_tensors, source->base.n_tensors);
    for (int i = 0; i < saved->n_tensors; i++) {
        const SourceTensor *t = &saved->tensor[i];
        int index = weight_source_find(&source->base, t->name);
        int64_t count = t->dim[0] * (t->ndim > 1 ? t->dim[1] : 1);
        uint16_t *data = must_alloc((size_t)count * 2);
        assert_int_equal(t->dtype, BF16);
        if (!saved->read(saved, i, 0, t->dim[0], data, err, sizeof err)) fail_msg("%s", err);
        for (int64_t k = 0; k < count; k++)
            if (bf16_to_f32(data[k]) != number(index, k))
                fail_msg("%s: element %lld is %g", t->name, (long long)k,
                         (double)bf16_to_f32(data[k]));
        free(data);
    }
    saved->close(saved);
    checkpoint_close(checkpoint);
    free(path);
}

static void test_every_imported_weight_is_in_the_checkpoint(void **state)
{
    (void)state;
    char err[1024], *folder = folder_new(), *out = text_format("%s/new/run/", folder);
    const Config *config = config_test_keys(keys);
    Numbers source = open_numbers(config);
    if (!import(config, &source, out, err, sizeof err)) fail_msg("%s", err);
    check_weights(out, &source);
    /* Only one window is read at a time: no read has more rows than 2 MiB of bf16 contain, plus one
     * at each end. */
    assert_true(source.most_rows <= 2 * 1024 * 1024 / (2 * 770) + 2);
    char *licence = text_format("%s/LICENSE", out),
         *config_path = text_format("%s/config.json", out);
    assert_int_equal(access(licence, F_OK) + access(config_path, F_OK), 0);
    source.base.close(&source.base);
    config_free(config);
    free(licence);
    free(config_path);
    free(out);
    folder_drop(folder);
}

/* Returns how many entries a folder has, also hidden ones. */
static int entries(const char *folder)
{
    struct dirent **entry;
    int n = fs_scan(folder, &entry);
    for (int i = 0; i < n; i++)
        free(entry[i]);
    free(entry);
    return n;
}

static void test_an_import_from_a_failing_source_leaves_no_files(void **state)
{
    (void)state;
    char err[1024], *folder = folder_new(), *out = text_format("%s/run", folder);
    const Config *config = config_test_keys(keys);
    Numbers source = open_numbers(config);
    assert_true(import(config, &source, out, err, sizeof err));
    int all = source.reads;
    folder_drop(folder);
    folder = folder_new();
    free(out);
    out = text_format("%s/run", folder);
    for (int at = 1; at <= all; at++) {
        source.reads = 0;
        source.fails_at = at;
        assert_false(import(config, &source, out, err, sizeof err));
        assert_string_equal(err, "the source is at its end");
        assert_int_equal(entries(folder), 0);
    }
    source.base.close(&source.base);
    config_free(config);
    free(out);
    folder_drop(folder);
}

typedef struct {
    const Config *config;
    Numbers source;
    const char *out;
} Dying;

static void import_and_die(void *context)
{
    char err[1024];
    Dying *d = context;
    import(d->config, &d->source, d->out, err, sizeof err);
}

static void test_a_killed_import_leaves_no_folder_of_that_name(void **state)
{
    (void)state;
    char err[1024], said[1024], *folder = folder_new(), *out = text_format("%s/run", folder);
    const Config *config = config_test_keys(keys);
    Dying d = {.config = config, .source = open_numbers(config), .out = out};
    for (int at = 1; at <= 5; at += 2) {
        d.source.dies_at = at;
        assert_int_equal(child_run(import_and_die, &d, said, sizeof said), 9);
        assert_int_not_equal(access(out, F_OK), 0);
    }
    /* The temporary folder that a killed import has left does not disturb the next import. */
    d.source.dies_at = 0;
    assert_true(import(config, &d.source, out, err, sizeof err));
    check_weights(out, &d.source);
    d.source.base.close(&d.source.base);
    config_free(config);
    free(out);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_imported_weight_is_in_the_checkpoint),
        cmocka_unit_test(test_an_import_from_a_failing_source_leaves_no_files),
        cmocka_unit_test(test_a_killed_import_leaves_no_folder_of_that_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
