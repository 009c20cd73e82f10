/* test_hf_logits.c -- reads folders in Hugging Face's layout (tests/golden/make_hf.py) and compares
 * the logits of the models in them with those of transformers (scripts/make_hf_logits.py): the
 * config, the names, the layout of the weights and the model itself are right together. */
#include "model/core/check.h"
#include "model/weights/hf_source.h"
#include "tests/support/files/data_support.h"
#include "tests/support/model/golden.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const kinds[] = {"llama",  "gpt2",  "llama3", "mistral",
                                    "smollm", "qwen2", "qwen3"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void make_folder(const char *folder, const char *arguments)
{
    char *command = text_format("python3 tests/golden/make_hf.py '%s' %s", folder, arguments);
    assert_int_equal(system(command), 0); /* scripts/setup.sh installs python3 */
    free(command);
}

/* Returns the config of the folder's model in f64. */
static const Config *config_of(const Architecture *architecture)
{
    static const char *const sets[] = {"data.text=unused.txt"};
    ConfigReport report = {0};
    char *text = architecture_config(architecture, F64, NULL);
    const Config *config = config_parse(NULL, "imported", text, strlen(text), 1, sets, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    free(text);
    return config;
}

/* Fills every parameter from the source, which has no other tensors. */
static void load_weights(Fixture *f, WeightSource *source)
{
    char err[512];
    assert_int_equal(source->n_tensors, f->table.n_params);
    for (int p = 0; p < f->table.n_params; p++) {
        Tensor w = fixture_fetch(f, fixture_weight(f, p));
        int index = weight_source_find(source, f->table.param[p].name);
        if (index < 0) fail_msg("%s is missing", f->table.param[p].name);
        const SourceTensor *t = &source->tensor[index];
        void *values = must_alloc((size_t)(t->dim[0] * source_row_bytes(t)));
        assert_int_equal(tensor_count(w), t->dim[0] * t->dim[1]);
        if (!source->read(source, index, 0, t->dim[0], values, err, sizeof err))
            fail_msg("%s", err);
        weights_convert(w.data, F64, values, t->dtype, tensor_count(w));
        fixture_store(f, fixture_weight(f, p), w);
        free(values);
        free(w.data);
    }
}

/* |difference| <= 1e-10 of the rms of the row. */
static void check_row(const char *kind, int64_t row, const double *is, const double *want,
                      int64_t V)
{
    double squares = 0;
    for (int64_t v = 0; v < V; v++)
        squares += want[v] * want[v];
    double bound = 1e-10 * sqrt(squares / (double)V);
    for (int64_t v = 0; v < V; v++)
        if (!(fabs(is[v] - want[v]) <= bound))
            fail_msg("%s: logit %lld of row %lld is %.17g, transformers says %.17g", kind,
                     (long long)v, (long long)row, is[v], want[v]);
}

static void check_kind(const char *kind, const char *more)
{
    char err[1024], *folder = folder_new(), *arguments = text_format("--kind %s %s", kind, more);
    ExitCode code;
    Architecture architecture;
    WeightSource *source;
    Fixture f;
    make_folder(folder, arguments);
    if (!hf_folder_config(folder, &architecture, err, sizeof err, &code) ||
        !hf_source_open(folder, &architecture, &source, err, sizeof err, &code))
        fail_msg("%s: %s", kind, err);
    Golden *golden = golden_open("hf_logits");
    Tensor tokens = golden_tensor(golden, "tokens"), rows = golden_tensor(golden, "rows"),
           want = golden_tensor(golden, kind);
    const Config *config = config_of(&architecture);
    GptShape shape = gpt_shape(config, 1);
    assert_int_equal(shape.V, tensor_cols(want));
    int64_t T = tensor_count(tokens);
    fixture_open_on(&f, "cpu", &shape, 1, T, 1, 2, 0);
    load_weights(&f, source);
    for (int64_t t = 0; t < T; t++)
        f.tokens[t] = (int32_t)((double *)tokens.data)[t];
    Tensor logits =
        tensor_2d(must_calloc((size_t)(T * shape.Vp), sizeof(double)), F64, T, shape.Vp);
    fixture_logits(&f, 0, logits);
    for (int64_t i = 0; i < tensor_count(rows); i++) {
        int64_t row = (int64_t)((double *)rows.data)[i];
        check_row(kind, row, tensor_row(logits, row), tensor_row(want, i), shape.V);
    }
    free(logits.data);
    fixture_close(&f);
    config_free(config);
    golden_close(golden);
    source->close(source);
    free(arguments);
    folder_drop(folder);
}

static void every_kind_of_folder_gives_the_logits_of_transformers(void **state)
{
    (void)state;
    int every = (int)turns_every(3);
    for (int i = (int)turns_first(every); i < KINDS; i += every)
        check_kind(kinds[i], "");
}

static void
folders_of_several_files_with_keys_of_old_transformers_give_the_same_logits(void **state)
{
    static const char *const old[] = {"gpt2", "llama3", "qwen2"};
    (void)state;
    int every = (int)turns_every(3);
    for (int i = (int)turns_first(every); i < 3; i += every)
        check_kind(old[i], "--shards 3 --spelling old");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_folder_gives_the_logits_of_transformers),
        cmocka_unit_test(
            folders_of_several_files_with_keys_of_old_transformers_give_the_same_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
