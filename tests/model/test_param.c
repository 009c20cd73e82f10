/* test_param.c -- tests the parameter table: its rows, which rank owns which element, and initial
 * weights. Bug numbers are those of tests/README.md. */
#include "model/core/check.h"
#include "model/param/extents.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/param_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns, for each element of a unit, the parameter that it belongs to (-1: gap). No element may
 * belong to two. */
static int *cover(const ParamTable *table, int unit)
{
    const Unit *u = &table->unit[unit];
    int *owner = must_alloc((size_t)u->size * sizeof *owner);
    for (int64_t i = 0; i < u->size; i++)
        owner[i] = -1;
    for (int p = u->first; p < u->first + u->count; p++) {
        const Param *q = &table->param[p];
        for (int64_t i = 0; i < q->local[0] * q->local[1]; i++) {
            assert_true(q->offset + i < u->size);
            assert_int_equal(owner[q->offset + i], -1);
            owner[q->offset + i] = p;
        }
    }
    return owner;
}

/* Builds the i-th variant's layers and table over `tp` ranks: 4 heads, and 2 or 4 kv heads. */
static void build_variant(GptLayers *layers, ParamTable *table, int i, int tp)
{
    GptShape s = fixture_variant(i);
    LayersPart part = LAYERS_WHOLE;
    part.size.tp = tp;
    part.at.tp = tp - 1;
    *table = (ParamTable){0};
    gpt_layers_build(layers, table, &s, &part);
}

static void drop_variant(GptLayers *layers, ParamTable *table)
{
    gpt_layers_free(layers);
    param_table_free(table);
}

/* Checks that the ranges cover the unit without gaps or overlaps, and that all rows of a range have
 * the same group and the same way of summing gradients. */
static void check_ranges(const ParamTable *table, const Unit *unit, const int *owner)
{
    int64_t at = 0;
    assert_int_equal(unit->size % PARAM_ALIGNMENT, 0);
    for (int r = 0; r < unit->n_ranges; r++) {
        const Range *range = &unit->range[r];
        assert_int_equal(range->offset, at);
        at += range->count;
        for (int64_t e = range->offset; e < at; e++) {
            if (owner[e] < 0) continue;
            assert_int_equal(table->param[owner[e]].group, range->group);
            assert_int_equal(table->param[owner[e]].tp_grad, range->tp_grad);
        }
    }
    assert_int_equal(at, unit->size);
}

static void test_bug_35_every_element_belongs_to_one_parameter(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * FIXTURE_VARIANTS; i++) {
        GptLayers layers;
        ParamTable table;
        build_variant(&layers, &table, i / 3, 1 << i % 3);
        for (int u = 0; u < table.n_units; u++) {
            int *owner = cover(&table, u);
            check_ranges(&table, &table.unit[u], owner);
            free(owner);
        }
        drop_variant(&layers, &table);
    }
}

/* Checks that names are unique, that packs are aligned and have no gaps inside, and that only
 * matrices have weight decay (bug 37). */
static void test_bug_37_names_are_unique_and_only_matrices_decay(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * FIXTURE_VARIANTS; i++) {
        GptLayers layers;
        ParamTable table;
        build_variant(&layers, &table, i / 3, 1 << i % 3);
        for (int p = 0; p < table.n_params; p++) {
            const Param *q = &table.param[p], *before = p > 0 ? q - 1 : NULL;
            assert_int_equal(param_find(&table, q->name), p);
            assert_int_equal(q->group, q->ndim == 2 ? GROUP_DECAY : GROUP_NO_DECAY);
            if (before == NULL || before->unit != q->unit || before->pack != q->pack)
                assert_int_equal(q->offset % PARAM_ALIGNMENT, 0);
            else
                assert_int_equal(q->offset, before->offset + before->local[0] * before->local[1]);
        }
        drop_variant(&layers, &table);
    }
}

/* Lists, for each row of a block with biases and QK-norm, the part that one rank of four must have:
 * a quarter of the heads, of the MLP and of the padded vocabulary; one of the two kv heads, which
 * it shares with another rank and whose gradients the two sum; and the whole of norms and of biases
 * that are added after a sum over ranks. */
static void test_a_rank_of_four_has_the_expected_part_of_each_row(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t rows, cols;
        TpGrad finish;
    } is[] = {{"token.weight", 32, 24, TP_GRAD_CUT},
              {"position.weight", 16, 24, TP_GRAD_PARTIAL_IF_SP},
              {"block.1.attn.q.weight", 6, 24, TP_GRAD_CUT},
              {"block.1.attn.k.weight", 6, 24, TP_GRAD_SUBGROUP},
              {"block.1.attn.v.weight", 6, 24, TP_GRAD_SUBGROUP},
              {"block.1.attn.out.weight", 24, 6, TP_GRAD_CUT},
              {"block.1.attn.q.bias", 6, 1, TP_GRAD_CUT},
              {"block.1.attn.k.bias", 6, 1, TP_GRAD_SUBGROUP},
              {"block.1.attn.v.bias", 6, 1, TP_GRAD_SUBGROUP},
              {"block.1.attn.out.bias", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"block.1.attn.norm.weight", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"block.1.attn.norm.bias", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"block.1.attn.q_norm.weight", 6, 1, TP_GRAD_PARTIAL},
              {"block.1.attn.k_norm.weight", 6, 1, TP_GRAD_PARTIAL},
              {"block.1.mlp.up.weight", 10, 24, TP_GRAD_CUT},
              {"block.1.mlp.up.bias", 10, 1, TP_GRAD_CUT},
              {"block.1.mlp.down.weight", 24, 10, TP_GRAD_CUT},
              {"block.1.mlp.down.bias", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"block.1.mlp.norm.weight", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"final_norm.weight", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"final_norm.bias", 24, 1, TP_GRAD_PARTIAL_IF_SP},
              {"head.weight", 32, 24, TP_GRAD_CUT}};
    GptShape s = fixture_shape();
    LayersPart part = LAYERS_WHOLE;
    GptLayers layers;
    ParamTable table = {0};
    part.size.tp = 4;
    s.G = 2;
    s.qk_norm = true;
    s.tied = false;
    gpt_layers_build(&layers, &table, &s, &part);
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        const Param *p = &table.param[param_find(&table, is[i].name)];
        if (p->local[0] != is[i].rows || p->local[1] != is[i].cols || p->tp_grad != is[i].finish)
            fail_msg("%s: %lld x %lld, finished as %d", p->name, (long long)p->local[0],
                     (long long)p->local[1], (int)p->tp_grad);
        assert_int_equal(p->sharers, is[i].finish == TP_GRAD_SUBGROUP ? 2 : 1);
    }
    drop_variant(&layers, &table);
}

static void test_decay_on_all_gives_every_parameter_weight_decay(void **state)
{
    (void)state;
    GptShape s = fixture_shape();
    GptLayers layers;
    ParamTable table = {0};
    s.decay_on = DECAY_ON_ALL;
    gpt_layers_build(&layers, &table, &s, &LAYERS_WHOLE);
    for (int p = 0; p < table.n_params; p++)
        assert_int_equal(table.param[p].group, GROUP_DECAY);
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* The number of parameters of GPT-2 124M is V C + P C + L (12 C^2 + 13 C) + 2 C. */
static void test_gpt2_124m_has_124439808_parameters(void **state)
{
    (void)state;
    GptShape s = fixture_gpt2_shape();
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &s, &LAYERS_WHOLE);
    assert_int_equal(param_table_count(&table), 124439808);
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* Each tensor-parallel rank must have an equal share of the rows or columns that are split,
 * including padding, and the whole of a parameter that is not split. */
static void test_split_rows_and_columns_are_divided_equally_among_ranks(void **state)
{
    (void)state;
    ParamTable table = {.tp = 4};
    const ParamSpec spec[] = {
        {.name = "rows", .pack = -1, .rows = 12, .cols = 6, .tp_dim = 0},
        {.name = "columns", .pack = -1, .rows = 3, .cols = 8, .tp_dim = 1},
        {.name = "whole", .pack = -1, .rows = 5, .cols = 7, .tp_dim = -1},
        {.name = "padded", .pack = -1, .rows = 17, .cols = 2, .padded_rows = 32, .tp_dim = 0}};
    static const int64_t local[][2] = {{3, 6}, {3, 2}, {5, 7}, {8, 2}};
    for (int i = 0; i < 4; i++) {
        int row = param_table_add(&table, 0, F32, &spec[i]);
        const Param *p = &table.param[row];
        assert_int_equal(p->local[0], local[i][0]);
        assert_int_equal(p->local[1], local[i][1]);
        assert_int_equal(p->dim[0], spec[i].rows);
    }
    param_table_free(&table);
}

/* A weight must depend only on seed, name and index: not on the other parameters, the layout of the
 * dtype, or the number of threads. */
static void test_initial_weights_depend_only_on_seed_name_and_index(void **state)
{
    (void)state;
    Fixture a, b;
    GptShape s = fixture_shape(), t = fixture_variant(FIXTURE_VARIANTS - 1);
    t.G = s.G;
    fixture_open(&a, &s, 1, 2, 1, 1, 0);
    fixture_open(&b, &t, 1, 2, 1, 3, 0);
    const char *names[] = {"token.weight", "block.0.attn.q.weight", "block.1.mlp.down.weight"};
    for (int i = 0; i < 3; i++) {
        Tensor x = fixture_weight(&a, param_find(&a.table, names[i]));
        Tensor y = fixture_weight(&b, param_find(&b.table, names[i]));
        assert_memory_equal(x.data, y.data, tensor_bytes(x));
    }
    fixture_close(&a);
    fixture_close(&b);
}

/* Counts, for each element of the whole parameter, the ranks that own the part that contains it. */
static void count_owned(const ParamTable *table, GridPlace size, int row, int *times)
{
    int u = table->param[row].unit;
    ParamExtent extent[8];
    for (int tp = 0; tp < size.tp; tp++) {
        GridPlace at = {.tp = tp};
        if (!param_owned_here(table, row, &size, &at)) continue;
        int n = param_extents(table, &at, u, 0, table->unit[u].size, extent, 8);
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; extent[r].param == row && i < extent[r].count; i++)
                times[param_extent_element(&extent[r], i)]++;
    }
}

/* With fewer kv heads than ranks, several ranks share a head, and only the first of them may count
 * it. Only the first rank counts parameters that are on all ranks, and each rank counts its part of
 * a split parameter. */
static void test_every_row_is_counted_once_however_ranks_share_kv_heads(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int kv = 1; kv <= 4; kv *= 2) {
            const ParamSpec rows[] = {
                {.name = "norm", .rows = 24, .tp_dim = -1, .tp_grad = TP_GRAD_WHOLE},
                {.name = "q", .rows = 40, .cols = 6, .tp_dim = 0},
                {.name = "out", .rows = 6, .cols = 40, .tp_dim = 1},
                {.name = "k", .rows = kv * 8, .cols = 6, .tp_grad = TP_GRAD_SUBGROUP},
                {.name = "k.bias", .rows = kv * 8, .tp_grad = TP_GRAD_SUBGROUP},
                {.name = "v", .rows = 6, .cols = kv * 8, .tp_dim = 1, .tp_grad = TP_GRAD_SUBGROUP}};
            ParamTable table = {.tp = tp, .kv = kv};
            GridPlace size = {1, 1, 1, tp};
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                ParamSpec spec = rows[i];
                spec.pack = -1;
                param_table_add(&table, 0, F32, &spec);
            }
            param_table_layout(&table);
            assert_int_equal(table.param[3].local[0],
                             tp > kv ? 8 : kv * 8 / tp); /* a rank never has half a head */
            for (int p = 0; p < table.n_params; p++) {
                int times[512] = {0};
                count_owned(&table, size, p, times);
                for (int64_t i = 0; i < param_count(&table.param[p]); i++)
                    if (times[i] != 1)
                        fail_msg("tp %d kv %d: %s[%lld] is counted %d times", tp, kv,
                                 table.param[p].name, (long long)i, times[i]);
            }
            param_table_free(&table);
        }
}

/* The vocabulary is padded to a multiple of 128 rows on one rank, and with more ranks also to a
 * multiple of 8 rows on each. */
static void test_the_vocabulary_is_padded_to_fit_the_number_of_ranks(void **state)
{
    (void)state;
    static const struct {
        int64_t V;
        int tp;
        int64_t padded;
    } is[] = {{1, 1, 128},       {128, 1, 128},      {129, 1, 256},      {50257, 1, 50304},
              {50257, 8, 50304}, {50257, 16, 50304}, {50257, 3, 50304},  {50257, 32, 50432},
              {17, 3, 384},      {385, 6, 768},      {50257, 64, 50688}, {1, 1000, 16000}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        Config config = {.model.vocab_size = is[i].V};
        assert_int_equal(gpt_shape(&config, is[i].tp).Vp, is[i].padded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_35_every_element_belongs_to_one_parameter),
        cmocka_unit_test(test_every_row_is_counted_once_however_ranks_share_kv_heads),
        cmocka_unit_test(test_the_vocabulary_is_padded_to_fit_the_number_of_ranks),
        cmocka_unit_test(test_bug_37_names_are_unique_and_only_matrices_decay),
        cmocka_unit_test(test_a_rank_of_four_has_the_expected_part_of_each_row),
        cmocka_unit_test(test_decay_on_all_gives_every_parameter_weight_decay),
        cmocka_unit_test(test_gpt2_124m_has_124439808_parameters),
        cmocka_unit_test(test_split_rows_and_columns_are_divided_equally_among_ranks),
        cmocka_unit_test(test_initial_weights_depend_only_on_seed_name_and_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
