/* test_bucket.c -- tests which units share a bucket: as many as fit into its size. A unit that is
 * larger than a bucket gets a bucket of its own. */
#include "parallel/zero/bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_units_share_a_bucket_up_to_its_size(void **state)
{
    (void)state;
    Bucket b = bucket_create(3, 100);
    assert_true(bucket_has_room(&b, 100));
    assert_false(bucket_has_room(&b, 101));
    bucket_add(&b, 7, 60);
    assert_false(bucket_is_full(&b));
    assert_true(bucket_has_room(&b, 40));
    assert_false(bucket_has_room(&b, 41));
    /* A unit that exceeds the size by far is refused like one that exceeds it by one element. */
    assert_false(bucket_has_room(&b, 1000));
    bucket_add(&b, 3, 40);
    assert_true(bucket_is_full(&b));
    assert_false(bucket_has_room(&b, 1));
    assert_int_equal(b.n, 2);
    assert_int_equal(b.unit[0], 7);
    assert_int_equal(b.unit[1], 3);
    assert_int_equal(b.elements, 100);
    bucket_free(&b);
}

static void test_a_unit_larger_than_a_bucket_is_alone_in_it(void **state)
{
    (void)state;
    Bucket b = bucket_create(2, 100);
    bucket_add(&b, 1, 250);
    assert_true(bucket_is_full(&b));
    assert_false(bucket_has_room(&b, 1));
    bucket_clear(&b);
    assert_false(bucket_is_full(&b));
    assert_true(bucket_has_room(&b, 100));
    assert_int_equal(b.n, 0);
    bucket_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_share_a_bucket_up_to_its_size),
        cmocka_unit_test(test_a_unit_larger_than_a_bucket_is_alone_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
