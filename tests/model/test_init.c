/* test_init.c -- tests initial weights, from a config to the values in memory. Matrices must be
 * normal with standard deviation model.initializer_range, divided by sqrt(2 x num_layers) for
 * projections into the residual stream (attn.out, mlp.down). Biases must be 0, weights of norms 1,
 * padding 0. The expected values are listed here by parameter name, independent of the code. */
#include "model/core/check.h"
#include "parallel/trainer/session.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/files/config_support.h"
#include "tests/support/model/param_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCABULARY = 300, MOST_ROWS = 128 };

/* A model as a user configures it. */
typedef struct {
    int layers;
    double range;
    bool tied, rope, gated, bias, qk_norm, rmsnorm;
    int linear_bias;  /* index in linear_biases; 0: as `bias` says */
    const char *more; /* further keys of the config, or "" */
} Asked;

static const struct {
    const char *keys; /* of the model */
    bool qkv, out, mlp;
} linear_biases[] = {
    {.keys = ""},
    {"\"attention_bias\": \"qkv\", \"mlp_bias\": false, ", .qkv = true},
    {"\"attention_bias\": \"all\", \"mlp_bias\": false, ", .qkv = true, .out = true},
    {"\"attention_bias\": \"none\", \"mlp_bias\": true, ", .mlp = true},
};
enum { LINEAR_BIASES = sizeof linear_biases / sizeof *linear_biases };

static const Config *config_of(const Asked *a)
{
    char err[512];
    char *keys = text_format(
        "\"device\": \"cpu\", \"seed\": 11, \"cpu\": {\"threads\": 1}, \"model\": "
        "{%s\"num_layers\": "
        "%d, \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"max_position_embeddings\": 128, \"initializer_range\": %g, \"tie_word_embeddings\": %s, "
        "\"position\": \"%s\", \"activation\": \"%s\", \"bias\": %s, \"qk_norm\": %s, \"norm\": "
        "\"%s\"}, \"data.seq_length\": 32%s",
        linear_biases[a->linear_bias].keys, a->layers, a->range, a->tied ? "true" : "false",
        a->rope ? "rope" : "learned", a->gated ? "swiglu" : "gelu", a->bias ? "true" : "false",
        a->qk_norm ? "true" : "false", a->rmsnorm ? "rmsnorm" : "layernorm", a->more);
    const Config *config = config_test_keys(keys);
    ConfigFacts facts = {.vocab_size = VOCABULARY, .vocab_of = "test"};
    const Config *settled = config_settle(config, &facts, err, sizeof err);
    if (settled == NULL) fail_msg("%s", err);
    free(keys);
    return settled;
}

/* ---- the expected initialisation of each row ------------------------------------------------- */

typedef struct {
    char name[64];
    double mean, std;
} Row;

typedef struct {
    Row row[MOST_ROWS];
    int n;
} Rows;

static void row(Rows *r, int layer, const char *name, double mean, double std)
{
    Row *to = &r->row[r->n++];
    assert_true(r->n <= MOST_ROWS);
    *to = (Row){.mean = mean, .std = std};
    if (layer < 0)
        snprintf(to->name, sizeof to->name, "%s", name);
    else
        snprintf(to->name, sizeof to->name, "block.%d.%s", layer, name);
}

static void block_rows(Rows *r, const Asked *a, int layer)
{
    static const char *const matrix[] = {"attn.q.weight", "attn.k.weight", "attn.v.weight",
                                         "mlp.up.weight", "mlp.gate.weight"};
    static const char *const bias[] = {"attn.q.bias",   "attn.k.bias", "attn.v.bias",
                                       "attn.out.bias", "mlp.up.bias", "mlp.down.bias",
                                       "mlp.gate.bias"};
    for (int i = 0; i < (a->gated ? 5 : 4); i++)
        row(r, layer, matrix[i], 0, a->range);
    row(r, layer, "attn.out.weight", 0, a->range / sqrt(2.0 * a->layers));
    row(r, layer, "mlp.down.weight", 0, a->range / sqrt(2.0 * a->layers));
    bool given = a->linear_bias > 0;
    for (int i = 0; i < (a->gated ? 7 : 6); i++) {
        bool has = i < 3   ? linear_biases[a->linear_bias].qkv
                   : i < 4 ? linear_biases[a->linear_bias].out
                           : linear_biases[a->linear_bias].mlp;
        if (given ? has : a->bias) row(r, layer, bias[i], 0, 0);
    }
    row(r, layer, "attn.norm.weight", 1, 0);
    row(r, layer, "mlp.norm.weight", 1, 0);
    if (a->bias && !a->rmsnorm) row(r, layer, "attn.norm.bias", 0, 0);
    if (a->bias && !a->rmsnorm) row(r, layer, "mlp.norm.bias", 0, 0);
    if (a->qk_norm) row(r, layer, "attn.q_norm.weight", 1, 0);
    if (a->qk_norm) row(r, layer, "attn.k_norm.weight", 1, 0);
}

static Rows rows_of(const Asked *a)
{
    Rows r = {.n = 0};
    row(&r, -1, "token.weight", 0, a->range);
    if (!a->rope) row(&r, -1, "position.weight", 0, a->range);
    for (int l = 0; l < a->layers; l++)
        block_rows(&r, a, l);
    row(&r, -1, "final_norm.weight", 1, 0);
    if (a->bias && !a->rmsnorm) row(&r, -1, "final_norm.bias", 0, 0);
    if (!a->tied) row(&r, -1, "head.weight", 0, a->range);
    return r;
}

/* ---- rows of the parameter table ------------------------------------------------------------- */

static void check_table(const Asked *a, const ParamTable *table)
{
    Rows want = rows_of(a);
    assert_int_equal(table->n_params, want.n);
    for (int i = 0; i < want.n; i++) {
        const Row *w = &want.row[i];
        int at = param_find(table, w->name);
        if (at < 0) fail_msg("there is no row %s", w->name);
        const Param *p = &table->param[at];
        Init init = w->std > 0 ? INIT_NORMAL : w->mean > 0 ? INIT_ONE : INIT_ZERO;
        if (p->init != init) fail_msg("%s: init is %d, not %d", w->name, p->init, init);
        if (!(fabs((double)p->std - w->std) <= 1e-6 * w->std))
            fail_msg("%s: standard deviation %.9g, not %.9g", w->name, (double)p->std, w->std);
    }
}

/* Checks every parameter of every model that combinations of the config's switches can make. */
static void test_every_parameter_has_the_expected_initialisation(void **state)
{
    static const int layers[] = {1, 2, 5};
    (void)state;
    for (int i = 0; i < 3 * 64 * LINEAR_BIASES; i++) {
        Asked a = {.layers = layers[i / 64 % 3],
                   .range = i % 2 ? 0.02 : 0.37,
                   .tied = i & 1,
                   .rope = i & 2,
                   .gated = i & 4,
                   .bias = i & 8,
                   .qk_norm = i & 16,
                   .rmsnorm = i & 32,
                   .linear_bias = i / (3 * 64),
                   .more = ""};
        const Config *config = config_of(&a);
        GptShape shape = gpt_shape(config, 1);
        GptLayers layers_built;
        ParamTable table = {0};
        gpt_layers_build(&layers_built, &table, &shape, &LAYERS_WHOLE);
        check_table(&a, &table);
        gpt_layers_free(&layers_built);
        param_table_free(&table);
        config_free(config);
    }
}

/* ---- initial values in memory ---------------------------------------------------------------- */

/* Constants must be exact. The mean and standard deviation of normal numbers must be within five
 * standard deviations of their expected values. */
static void check_row(const Row *want, Tensor t)
{
    double sum = 0, squares = 0, n = (double)tensor_count(t);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double x = dtype_get(t.dtype, t.data, i);
        sum += x;
        squares += x * x;
        if (want->std == 0 && x != want->mean)
            fail_msg("%s: element %lld is %g, not %g", want->name, (long long)i, x, want->mean);
    }
    if (want->std == 0) return;
    double mean = sum / n, std = sqrt(squares / n - mean * mean);
    if (!(fabs(mean) <= 5 * want->std / sqrt(n)))
        fail_msg("%s: mean %g of %g normal numbers of %g", want->name, mean, n, want->std);
    if (!(fabs(std / want->std - 1) <= 5 / sqrt(2 * n)))
        fail_msg("%s: standard deviation %g of %g numbers, not %g", want->name, std, n, want->std);
}

/* Checks that no two parameters begin with the same random numbers, measured in units of their
 * standard deviations. */
static void check_apart(const Rows *want, const double *first)
{
    for (int i = 0; i < want->n; i++)
        for (int k = 0; k < i; k++)
            if (want->row[i].std > 0 && want->row[k].std > 0 &&
                fabs(first[i] / want->row[i].std - first[k] / want->row[k].std) < 1e-6)
                fail_msg("%s and %s have the same numbers", want->row[i].name, want->row[k].name);
}

/* Checks that the rows of a table after the vocabulary, which are padding, are zero. */
static void check_padding(Session *s, const char *name)
{
    int at = param_find(&s->table, name);
    const Param *p = &s->table.param[at];
    s->params->step_begin(s->params, NULL, 0);
    s->params->acquire(s->params, p->unit);
    Tensor all = s->params->weight(s->params, at, 1);
    assert_int_equal(p->dim[0], VOCABULARY);
    assert_true(all.dim[0] > VOCABULARY);
    for (int64_t i = VOCABULARY * p->dim[1]; i < all.dim[0] * p->dim[1]; i++)
        assert_true(dtype_get(all.dtype, all.data, i) == 0);
    s->params->release(s->params, p->unit);
}

static void check_drawn(const Asked *a)
{
    char err[512];
    Session s;
    const Config *config = config_of(a);
    Rows want = rows_of(a);
    double first[MOST_ROWS] = {0};
    Piece weight[MOST_ROWS];
    if (!session_open(&s, config, NULL, false, err, sizeof err)) fail_msg("%s", err);
    session_allocate(&s);
    session_init_weights(&s);
    assert_int_equal(s.table.n_params, want.n);
    session_weights(&s, PURPOSE_UPDATE, weight);
    for (int i = 0; i < want.n; i++) {
        int at = param_find(&s.table, want.row[i].name);
        assert_true(at >= 0);
        check_row(&want.row[i], piece_tensor(&weight[at]));
        first[i] = dtype_get(weight[at].dtype, weight[at].data.data, 0);
    }
    check_apart(&want, first);
    check_padding(&s, "token.weight");
    if (!a->tied) check_padding(&s, "head.weight");
    session_close(&s);
    config_free(config);
}

static void test_initial_weights_have_the_expected_mean_and_deviation(void **state)
{
    static const Asked asked[] = {
        {.layers = 1, .range = 0.02, .tied = true, .bias = true, .more = ""},
        {.layers = 3, .range = 0.1, .tied = true, .bias = true, .qk_norm = true, .more = ""},
        {.layers = 4, .range = 0.5, .rope = true, .gated = true, .rmsnorm = true, .more = ""},
        {.layers = 2, .range = 0.02, .gated = true, .bias = true, .qk_norm = true, .more = ""},
        {.layers = 3,
         .range = 0.02,
         .tied = true,
         .bias = true,
         .more = ", \"bf16\": {\"enabled\": true}"},
        {.layers = 2,
         .range = 0.02,
         .rope = true,
         .bias = true,
         .more = ", \"fp64\": {\"enabled\": true}"}};
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        check_drawn(&asked[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_parameter_has_the_expected_initialisation),
        cmocka_unit_test(test_initial_weights_have_the_expected_mean_and_deviation),
    };
    return cmocka_run_group_tests_name("initial weights", tests, NULL, NULL);
}
