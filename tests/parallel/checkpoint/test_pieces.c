/* test_pieces.c -- extent_stretch: each element of an extent is in exactly one stretch, at its
 * correct position. */
#include "parallel/checkpoint/pieces.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Draws an integer from `least` to `most`. */
static int64_t drawn_int(uint64_t stream, int64_t i, int64_t least, int64_t most)
{
    return least + (int64_t)(drawn_uniform(stream, i) * (double)(most - least + 1));
}

/* Random extents of small tensors, with cut and uncut columns, seen through windows of random
 * size. */
static void every_element_of_an_extent_is_in_exactly_one_stretch(void **state)
{
    (void)state;
    int cut = 0, several = 0;
    for (int64_t i = 0; i < 20000; i++) {
        int64_t rows = drawn_int(1, 8 * i, 1, 6), whole = drawn_int(1, 8 * i + 1, 1, 7),
                cols = drawn_int(1, 8 * i + 2, 1, whole), part = rows * cols,
                column = drawn_int(1, 8 * i + 3, 0, whole - cols),
                from = drawn_int(1, 8 * i + 4, 0, part - 1);
        ParamExtent extent = {.from = from,
                              .count = drawn_int(1, 8 * i + 5, 0, part - from),
                              .first = column,
                              .cols = cols,
                              .whole_cols = whole};
        int64_t window = drawn_int(1, 8 * i + 6, 1, rows * whole), seen = 0, stretches = 0;
        for (int64_t at = 0; at < rows * whole; at += window) {
            Stretch s;
            for (int64_t next = at; extent_stretch(&extent, next, at + window, &s);
                 next = s.at + s.count) {
                assert_true(s.count > 0 && s.at >= next && s.at + s.count <= at + window);
                assert_int_equal(s.within, seen); /* in ascending order, none left out */
                for (int64_t e = 0; e < s.count; e++)
                    assert_int_equal(param_extent_element(&extent, s.within + e), s.at + e);
                seen += s.count;
                stretches++;
            }
        }
        assert_int_equal(seen, extent.count);
        if (cols == whole && extent.count > 0)
            assert_in_range(stretches, 1, (rows * whole - 1) / window + 1);
        cut += cols < whole;
        several += stretches > 1;
    }
    assert_true(cut > 5000 && several > 5000);
}

/* An extent of a rank that has no part of a tensor: all fields 0, or a position without
 * elements. */
static void an_empty_extent_has_no_stretch(void **state)
{
    (void)state;
    const ParamExtent none[] = {{0}, {.from = 5, .first = 2, .cols = 3, .whole_cols = 6}};
    Stretch s;
    for (int i = 0; i < 2; i++)
        for (int64_t from = 0; from < 20; from++)
            assert_false(extent_stretch(&none[i], from, 20, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_of_an_extent_is_in_exactly_one_stretch),
        cmocka_unit_test(an_empty_extent_has_no_stretch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
