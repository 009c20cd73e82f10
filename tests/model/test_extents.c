/* test_extents.c -- tests the mapping from parts of units to elements of parameters. */
#include "model/core/check.h"
#include "model/param/extents.h"
#include "tests/support/model/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_EXTENTS = 64 };

/* Counts the elements of an extent in seen[param][element of the whole], and checks that the extent
 * is inside the part of the unit and that positions and elements match. */
static void mark(const ParamTable *table, int unit, const ParamExtent *extent, int64_t offset,
                 int64_t count, unsigned char **seen)
{
    const Param *p = &table->param[extent->param];
    assert_int_equal(p->unit, unit);
    assert_true(extent->count > 0 && extent->offset >= offset &&
                extent->offset + extent->count <= offset + count);
    for (int64_t i = 0; i < extent->count; i++) {
        int64_t e = param_extent_element(extent, i);
        assert_true(e >= 0 && e < param_count(p));
        /* The element's position in the unit, computed from the table alone. */
        int64_t place = p->offset + e / p->dim[1] * p->local[1] + e % p->dim[1];
        assert_int_equal(place, extent->offset + i);
        seen[extent->param][e]++;
    }
}

/* Splits all units into `parts` equal parts, each a multiple of `grain`, splits each part again at
 * an odd element, and checks that every element is covered. */
static void check_cover(const ParamTable *table, int parts, int64_t grain)
{
    GridPlace at = {0, 0, 0, 0};
    unsigned char **seen = must_calloc((size_t)table->n_params, sizeof *seen);
    for (int i = 0; i < table->n_params; i++)
        seen[i] = must_calloc((size_t)param_count(&table->param[i]), 1);
    for (int u = 0; u < table->n_units; u++) {
        int64_t part = (table->unit[u].size + parts * grain - 1) / (parts * grain) * grain;
        for (int64_t begin = 0; begin < part * parts; begin += part) {
            int64_t odd = part * 2 / 3 + 1, cut[3] = {begin, begin + odd, begin + part};
            for (int c = 0; c < 2; c++) {
                ParamExtent extent[MOST_EXTENTS];
                int n =
                    param_extents(table, &at, u, cut[c], cut[c + 1] - cut[c], extent, MOST_EXTENTS);
                assert_true(n <= table->unit[u].count);
                for (int i = 0; i < n; i++) {
                    assert_true(i == 0 ||
                                extent[i].offset >= extent[i - 1].offset + extent[i - 1].count);
                    mark(table, u, &extent[i], cut[c], cut[c + 1] - cut[c], seen);
                }
            }
        }
    }
    for (int i = 0; i < table->n_params; i++) {
        for (int64_t e = 0; e < param_count(&table->param[i]); e++)
            assert_int_equal(seen[i][e], 1);
        free(seen[i]);
    }
    free(seen);
}

static void test_bug_35_every_element_is_in_exactly_one_extent(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_VARIANTS; i += 5) {
        GptShape s = fixture_variant(i);
        GptLayers layers;
        ParamTable table = {0};
        gpt_layers_build(&layers, &table, &s, &LAYERS_WHOLE);
        for (int parts = 1; parts <= 8; parts++) {
            check_cover(&table, parts, PARAM_ALIGNMENT);
            check_cover(&table, parts, 1);
        }
        gpt_layers_free(&layers);
        param_table_free(&table);
    }
}

/* Makes a table with odd sizes and padding: a vocabulary of 17 in 24 rows of 3, a vector of 131. */
static void make_odd_table(ParamTable *table)
{
    param_table_add(
        table, 0, F32,
        &(ParamSpec){
            .name = "table", .pack = -1, .rows = 17, .cols = 3, .padded_rows = 24, .tp_dim = 0});
    param_table_add(
        table, 1, F32,
        &(ParamSpec){
            .name = "vector", .pack = -1, .rows = 131, .tp_dim = -1, .group = GROUP_NO_DECAY});
    param_table_add(table, 1, F32,
                    &(ParamSpec){.name = "matrix", .pack = -1, .rows = 5, .cols = 7, .tp_dim = 1});
    param_table_layout(table);
}

static void test_padding_is_in_no_extent_and_extents_are_in_ascending_order(void **state)
{
    (void)state;
    GridPlace at = {0, 0, 0, 0};
    ParamTable table = {0};
    ParamExtent extent[4];
    make_odd_table(&table);
    for (int parts = 1; parts <= 8; parts++)
        check_cover(&table, parts, 1);
    /* Padding rows and the unit's tail must not be in any extent. */
    assert_int_equal(param_extents(&table, &at, 0, 17 * 3, 1000, extent, 4), 0);
    assert_int_equal(param_extents(&table, &at, 0, 17 * 3 - 1, 1000, extent, 4), 1);
    assert_int_equal(param_extent_element(&extent[0], 0), 50);
    /* The matrix is stored first. The number of extents is returned even if there is no room for
     * them. */
    assert_int_equal(param_extents(&table, &at, 1, 0, 1000, NULL, 0), 2);
    assert_int_equal(param_extents(&table, &at, 1, 0, 1000, extent, 1), 2);
    assert_int_equal(extent[0].param, 2);
    param_table_free(&table);
}

/* Checks the second of two tensor-parallel ranks: it has rows 12 to 16 of the table (7 of its 12
 * rows are padding), and of the matrix's 8 columns those from 4 on. The test sets these sizes
 * itself. */
static void test_extents_of_a_rank_with_a_part_of_each_parameter_are_right(void **state)
{
    (void)state;
    GridPlace at = {.tp = 1};
    ParamTable table = {0};
    ParamExtent extent[4];
    make_odd_table(&table);
    table.param[0].local[0] = 12;
    table.param[2].dim[1] = 8;
    table.param[2].local[1] = 4;
    assert_int_equal(param_extents(&table, &at, 0, 2, 1000, extent, 4), 1);
    assert_int_equal(extent[0].count, 5 * 3 - 2);
    assert_int_equal(param_extent_element(&extent[0], 0), 12 * 3 + 2);
    assert_int_equal(param_extents(&table, &at, 1, 3, 17, extent, 4), 1);
    assert_int_equal(extent[0].count, 17);
    assert_int_equal(param_extent_element(&extent[0], 0), 7);  /* row 0, last column */
    assert_int_equal(param_extent_element(&extent[0], 1), 12); /* row 1, column 0 of this part */
    assert_int_equal(param_extent_element(&extent[0], 16), 8 * 4 + 4 + 3);
    param_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_35_every_element_is_in_exactly_one_extent),
        cmocka_unit_test(test_padding_is_in_no_extent_and_extents_are_in_ascending_order),
        cmocka_unit_test(test_extents_of_a_rank_with_a_part_of_each_parameter_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
