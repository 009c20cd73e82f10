/* test_hf_source.c -- tests that weights in Hugging Face's files are presented under our names and
 * in our layout, whole or a few rows at a time, from one file or several; and what is refused. The
 * value of each element is computed from its tensor's name and its index. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/weights/hf_source.h"
#include "model/weights/safetensors.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    const char *name;
    DType dtype;
    int64_t rows, cols; /* cols 0: a vector */
} Stored;

/* A GPT-2 of one block: width 6, mlp 10, 7 tokens, 5 positions. */
static const Stored gpt2[] = {
    {"wte.weight", F32, 7, 6},
    {"wpe.weight", F32, 5, 6},
    {"h.0.ln_1.weight", F32, 6, 0},
    {"h.0.attn.c_attn.weight", F32, 6, 18},
    {"h.0.attn.c_attn.bias", BF16, 18, 0},
    {"h.0.attn.c_proj.weight", F32, 6, 6},
    {"h.0.mlp.c_fc.weight", F16, 6, 10},
    {"h.0.mlp.c_proj.weight", F32, 10, 6},
    {"h.0.attn.bias", F32, 5, 5}, /* a mask, no weight */
    {"ln_f.weight", F32, 6, 0},
};
enum { N_GPT2 = sizeof gpt2 / sizeof *gpt2 };

/* Returns the value of element i of a tensor: a whole number that every type can represent. */
static double value(const char *name, int64_t i)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    h = (h ^ (uint32_t)i) * 2654435761u;
    return (double)(h >> 24) - 128;
}

/* Writes the tensors as FOLDER/NAME. */
static void write_file(const char *folder, const char *name, const Stored *stored, int n)
{
    static const char *const metadata[] = {"format", "pt"};
    SafetensorsEntry *entry = must_calloc((size_t)n, sizeof *entry);
    size_t header_bytes, bytes = 0;
    for (int i = 0; i < n; i++) {
        entry[i] = (SafetensorsEntry){.name = (char *)(uintptr_t)stored[i].name,
                                      .dtype = stored[i].dtype,
                                      .ndim = stored[i].cols ? 2 : 1,
                                      .dim = {stored[i].rows, stored[i].cols}};
        assert_true(safetensors_size(entry[i].dtype, entry[i].ndim, entry[i].dim, &entry[i].bytes));
        bytes += (size_t)entry[i].bytes;
    }
    char *header = safetensors_header(entry, n, metadata, 1, &header_bytes);
    char *file = must_calloc(header_bytes + bytes, 1);
    memcpy(file, header, header_bytes);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < entry[i].bytes / (int64_t)dtype_size(entry[i].dtype); k++)
            dtype_set(entry[i].dtype, file + header_bytes + entry[i].offset, k,
                      value(entry[i].name, k));
    free(file_new(folder, name, file, header_bytes + bytes));
    free(file);
    free(header);
    free(entry);
}

static const Architecture shape = {.kind = ARCHITECTURE_GPT2, .tied = true};

static WeightSource *open_good(const char *folder)
{
    char err[1024];
    WeightSource *source;
    ExitCode code;
    if (!hf_source_open(folder, &shape, &source, err, sizeof err, &code)) fail_msg("%s", err);
    return source;
}

/* Expects that the folder is refused with this sentence and code. */
static void check_refused(const char *folder, ExitCode expected, const char *sentence)
{
    char err[1024] = "";
    WeightSource *source;
    ExitCode code;
    if (hf_source_open(folder, &shape, &source, err, sizeof err, &code))
        fail_msg("opened, instead of: %s", sentence);
    if (strstr(err, sentence) == NULL) fail_msg("%s, instead of: %s", err, sentence);
    assert_int_equal(error_exit_code(err, code), expected);
    assert_null(source);
}

/* Checks our tensor `ours` (rows, cols). If `transposed`, it must be the columns [column, column +
 * rows) of theirs, transposed; else the elements of theirs from index `column` on. */
static void check_tensor(WeightSource *source, const char *ours, const Stored *theirs,
                         bool transposed, int64_t column, int64_t rows, int64_t cols)
{
    char err[512];
    int index = weight_source_find(source, ours);
    if (index < 0) fail_msg("%s is missing", ours);
    const SourceTensor *t = &source->tensor[index];
    assert_int_equal(t->dtype, theirs->dtype);
    assert_int_equal(t->ndim, cols ? 2 : 1);
    assert_int_equal(t->dim[0], rows);
    assert_int_equal(t->dim[1], cols ? cols : 1);
    char *out = must_calloc((size_t)rows, (size_t)source_row_bytes(t));
    int64_t width = cols ? cols : 1;
    for (int64_t first = 0; first < rows; first++)
        for (int64_t n = 1; first + n <= rows; n++) {
            if (!source->read(source, index, first, n, out, err, sizeof err)) fail_msg("%s", err);
            for (int64_t i = 0; i < n * width; i++) {
                int64_t r = first + i / width, c = i % width,
                        there = transposed ? c * theirs->cols + column + r : column + r * width + c;
                double expected = value(theirs->name, there), got = dtype_get(t->dtype, out, i);
                if (got != expected)
                    fail_msg("%s [%lld, %lld]: %g instead of %g", ours, (long long)r, (long long)c,
                             got, expected);
            }
        }
    free(out);
}

static void check_gpt2(WeightSource *source)
{
    assert_int_equal(source->n_tensors, 13);
    check_tensor(source, "token.weight", &gpt2[0], false, 0, 7, 6);
    check_tensor(source, "position.weight", &gpt2[1], false, 0, 5, 6);
    check_tensor(source, "block.0.attn.norm.weight", &gpt2[2], false, 0, 6, 0);
    check_tensor(source, "block.0.attn.q.weight", &gpt2[3], true, 0, 6, 6);
    check_tensor(source, "block.0.attn.k.weight", &gpt2[3], true, 6, 6, 6);
    check_tensor(source, "block.0.attn.v.weight", &gpt2[3], true, 12, 6, 6);
    check_tensor(source, "block.0.attn.q.bias", &gpt2[4], false, 0, 6, 0);
    check_tensor(source, "block.0.attn.v.bias", &gpt2[4], false, 12, 6, 0);
    check_tensor(source, "block.0.attn.out.weight", &gpt2[5], true, 0, 6, 6);
    check_tensor(source, "block.0.mlp.up.weight", &gpt2[6], true, 0, 10, 6);
    check_tensor(source, "block.0.mlp.down.weight", &gpt2[7], true, 0, 6, 10);
    check_tensor(source, "final_norm.weight", &gpt2[9], false, 0, 6, 0);
    source->close(source);
}

static void test_a_model_in_one_file_is_read_correctly(void **state)
{
    (void)state;
    char *folder = folder_new();
    write_file(folder, "model.safetensors", gpt2, N_GPT2);
    check_gpt2(open_good(folder));
    folder_drop(folder);
}

/* Writes the tensors to two files, and an index with the weight map `map`; NULL: the right one. */
static void write_two_files(const char *folder, const char *map)
{
    write_file(folder, "model-00001-of-00002.safetensors", gpt2, 4);
    write_file(folder, "model-00002-of-00002.safetensors", gpt2 + 4, N_GPT2 - 4);
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fputs("{\"metadata\": {\"total_size\": 1.5e3, \"x\": [1, {\"y\": null}]}, \"weight_map\": {",
          to);
    for (int i = 0; map == NULL && i < N_GPT2; i++)
        fprintf(to, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", i ? ", " : "", gpt2[i].name,
                i < 4 ? 1 : 2);
    fprintf(to, "%s}}", map ? map : "");
    fclose(to);
    free(text_file_new(folder, "model.safetensors.index.json", text));
    free(text);
}

static void test_a_model_in_several_files_is_read_correctly(void **state)
{
    (void)state;
    char *folder = folder_new();
    write_two_files(folder, NULL);
    check_gpt2(open_good(folder));
    folder_drop(folder);
}

static void test_indexes_that_contradict_their_files_are_refused(void **state)
{
    (void)state;
#define FILE_1 "model-00001-of-00002.safetensors"
#define FILE_2 "model-00002-of-00002.safetensors"
    static const struct {
        const char *map, *sentence;
        ExitCode code;
    } table[] = {
        {"\"wte.weight\": \"../" FILE_1 "\"", "wte.weight is to be in \"../model-00001", 65},
        {"\"wte.weight\": \"/etc/passwd\"", "only plain names of .safetensors files", 65},
        {"\"wte.weight\": \"sub/" FILE_1 "\"", "only plain names", 65},
        {"\"wte.weight\": \"..\"", "only plain names", 65},
        {"\"wte.weight\": \".x.safetensors\"", "only plain names", 65},
        {"\"wte.weight\": \"pytorch_model.bin\"", "only plain names", 65},
        {"\"wte.weight\": \"none.safetensors\"", "none.safetensors: No such file", 65},
        {"\"wte.weight\": \"" FILE_1 "\"",
         "has a tensor wpe.weight, which the index does not name there", 65},
        {"\"wte.weight\": \"" FILE_1 "\", \"wte.weight\": \"" FILE_2 "\"", "wte.weight twice", 65},
        {"\"wte.weight\": \"" FILE_1 "\", \"wpe.weight\": \"" FILE_1
         "\", \"h.0.ln_1.weight\": \"" FILE_1 "\", \"h.0.attn.c_attn.weight\": \"" FILE_1
         "\", \"h.1.ln_1.weight\": \"" FILE_1 "\"",
         "has 4 tensors, and the index names 5 there", 65},
        {"", "weight_map names no tensor", 65},
        {"\"../x\": \"" FILE_1 "\"", "a tensor's name is not made of letters", 65},
        {"\"wte.weight\": 7", "\" is needed here", 65},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *folder = folder_new();
        write_two_files(folder, table[i].map);
        check_refused(folder, table[i].code, table[i].sentence);
        folder_drop(folder);
    }
}

static void test_the_error_names_files_of_another_format(void **state)
{
    (void)state;
    static const struct {
        const char *file, *sentence;
    } table[] = {
        {"pytorch_model.bin", "pytorch_model.bin is a pickle file, which could run any code"},
        {"consolidated.00.pth", "consolidated.00.pth is a pickle file"},
        {"model.pt", "model.pt is a pickle file"},
        {"model.gguf", "model.gguf alone is not read"},
        {"model-00001-of-00002.safetensors", "model-00001-of-00002.safetensors alone is not read"},
        {"notes.txt", "neither model.safetensors nor model.safetensors.index.json"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *folder = folder_new();
        free(text_file_new(folder, table[i].file, "x"));
        check_refused(folder, EXIT_MISSING, table[i].sentence);
        folder_drop(folder);
    }
}

static void test_links_out_of_the_folder_are_refused(void **state)
{
    (void)state;
    char *home = folder_new(), *folder = text_format("%s/model", home),
         *weights = text_format("%s/model.safetensors", folder);
    assert_int_equal(mkdir(folder, 0755), 0);
    write_file(home, "model-elsewhere", gpt2, N_GPT2);
    assert_int_equal(symlink("../model-elsewhere", weights), 0);
    check_refused(folder, EXIT_DAMAGED, "a symbolic link that leads out of the folder, to ");
    assert_int_equal(unlink(weights), 0);
    /* A link inside the folder is as good as the file. */
    write_file(folder, "blob", gpt2, N_GPT2);
    assert_int_equal(symlink("blob", weights), 0);
    check_gpt2(open_good(folder));
    assert_int_equal(unlink(weights), 0);
    assert_int_equal(symlink("nothing", weights), 0);
    check_refused(folder, EXIT_DAMAGED, "No such file or directory");
    free(weights);
    free(folder);
    folder_drop(home);
}

/* In Hugging Face's cache the files of a snapshot are links to CACHE/blobs. */
static void test_a_snapshot_in_hugging_faces_cache_is_read(void **state)
{
    (void)state;
    char *cache = folder_new(), *blobs = text_format("%s/blobs", cache),
         *snapshots = text_format("%s/snapshots", cache),
         *folder = text_format("%s/0123abcd", snapshots),
         *weights = text_format("%s/model.safetensors", folder);
    assert_int_equal(mkdir(blobs, 0755) + mkdir(snapshots, 0755) + mkdir(folder, 0755), 0);
    write_file(blobs, "5e1f", gpt2, N_GPT2);
    assert_int_equal(symlink("../../blobs/5e1f", weights), 0);
    check_gpt2(open_good(folder));
    assert_int_equal(unlink(weights), 0);
    write_file(cache, "5e1f", gpt2, N_GPT2);
    assert_int_equal(symlink("../../5e1f", weights), 0);
    check_refused(folder, EXIT_DAMAGED, "leads out of the folder");
    free(weights);
    free(folder);
    free(snapshots);
    free(blobs);
    folder_drop(cache);
}

static void test_the_error_names_unexpected_tensors(void **state)
{
    (void)state;
    static const struct {
        Stored more;
        const char *sentence;
    } table[] = {
        {{"h.0.mlp.c_gate.weight", F32, 2, 3},
         "h.0.mlp.c_gate.weight F32 [2, 3] is no tensor of such a model"},
        {{"model.embed_tokens.weight", F32, 2, 3},
         "1 tensor of the files belongs to no gpt2 model"},
        {{"h.0.ln_2.weight", I32, 6, 0}, "h.0.ln_2.weight I32 [6] is no matrix or vector of "},
        {{"h.1.attn.c_attn.weight", F32, 6, 16}, "[6, 16] cannot be q, k and v in one"},
        {{"transformer.wte.weight", F32, 7, 6}, "has two tensors for token.weight"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Stored all[N_GPT2 + 1];
        char *folder = folder_new();
        memcpy(all, gpt2, sizeof gpt2);
        all[N_GPT2] = table[i].more;
        write_file(folder, "model.safetensors", all, N_GPT2 + 1);
        check_refused(folder, EXIT_DAMAGED, table[i].sentence);
        folder_drop(folder);
    }
}

static void test_a_head_weight_is_read_only_if_the_model_is_untied(void **state)
{
    (void)state;
    Stored all[N_GPT2 + 1];
    char err[512], *folder = folder_new();
    ExitCode code;
    WeightSource *source;
    memcpy(all, gpt2, sizeof gpt2);
    all[N_GPT2] = (Stored){"lm_head.weight", F32, 7, 6};
    write_file(folder, "model.safetensors", all, N_GPT2 + 1);
    check_gpt2(open_good(folder));
    const Architecture untied = {.kind = ARCHITECTURE_GPT2};
    assert_true(hf_source_open(folder, &untied, &source, err, sizeof err, &code));
    check_tensor(source, "head.weight", &all[N_GPT2], false, 0, 7, 6);
    source->close(source);
    folder_drop(folder);
}

/* A file that is cut at any byte, or has any bit of its header changed, is refused, or read without
 * harm. */
static void test_truncated_files_are_refused_and_altered_headers_do_no_harm(void **state)
{
    (void)state;
    char *folder = folder_new(), *text, err[1024],
         *path = text_format("%s/model.safetensors", folder);
    size_t size;
    ExitCode code;
    WeightSource *source;
    write_file(folder, "model.safetensors", gpt2 + 2, 4);
    assert_true(file_read(path, &text, &size, NULL, err, sizeof err));
    size_t header = size - (6 * 4 + 6 * 18 * 4 + 18 * 2 + 36 * 4);
    for (size_t cut = 0; cut < size; cut++) {
        free(file_new(folder, "model.safetensors", text, cut));
        assert_false(hf_source_open(folder, &shape, &source, err, sizeof err, &code));
        assert_int_equal(code, EXIT_DAMAGED);
    }
    for (size_t at = 0; at < 8 * header; at++) {
        text[at / 8] = (char)(text[at / 8] ^ 1 << at % 8);
        free(file_new(folder, "model.safetensors", text, size));
        if (hf_source_open(folder, &shape, &source, err, sizeof err, &code)) {
            for (int i = 0; i < source->n_tensors; i++) {
                const SourceTensor *t = &source->tensor[i];
                char *out = must_alloc((size_t)(t->dim[0] * source_row_bytes(t)) + 1);
                assert_true(source->read(source, i, 0, t->dim[0], out, err, sizeof err));
                free(out);
            }
            source->close(source);
        }
        text[at / 8] = (char)(text[at / 8] ^ 1 << at % 8);
    }
    /* Cut after it was opened: an error, not a crash. */
    free(file_new(folder, "model.safetensors", text, size));
    source = open_good(folder);
    assert_int_equal(truncate(path, (off_t)header + 4), 0);
    char out[36 * 4];
    int index = weight_source_find(source, "block.0.attn.out.weight");
    assert_false(source->read(source, index, 0, 6, out, err, sizeof err));
    assert_non_null(strstr(err, "in the middle of its data"));
    source->close(source);
    free(text);
    free(path);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_in_one_file_is_read_correctly),
        cmocka_unit_test(test_a_model_in_several_files_is_read_correctly),
        cmocka_unit_test(test_indexes_that_contradict_their_files_are_refused),
        cmocka_unit_test(test_the_error_names_files_of_another_format),
        cmocka_unit_test(test_links_out_of_the_folder_are_refused),
        cmocka_unit_test(test_a_snapshot_in_hugging_faces_cache_is_read),
        cmocka_unit_test(test_the_error_names_unexpected_tensors),
        cmocka_unit_test(test_a_head_weight_is_read_only_if_the_model_is_untied),
        cmocka_unit_test(test_truncated_files_are_refused_and_altered_headers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
