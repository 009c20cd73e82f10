/* test_schedule.c -- the actions of a step on one stage. */
#include "parallel/pipeline/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_one_stage_schedule(void **state)
{
    (void)state;
    Action a[10];
    assert_int_equal(schedule_one_stage(5, a), 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(a[i].kind, i % 2 ? ACT_BACKWARD : ACT_FORWARD);
        assert_int_equal(a[i].micro, i / 2);
        assert_int_equal(a[i].slot, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stage_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
