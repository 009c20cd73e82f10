/* test_schedule.c -- the actions of a step: those of one stage, and how much each stage holds. */
#include "parallel/pipeline/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Whatever the kind, one stage goes backward at once, on one set of activations. */
static void test_one_stage(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_INTERLEAVED; kind++) {
        ScheduleSpec spec = {.kind = (ScheduleKind)kind, .stages = 1, .chunks = 1, .micros = 5};
        Schedule s = schedule_create(&spec, 0);
        assert_int_equal(s.n, 10);
        for (int i = 0; i < 10; i++) {
            const Action *a = &s.action[i];
            assert_int_equal(a->kind, i % 2 ? ACT_BACKWARD : ACT_FORWARD);
            assert_int_equal(a->micro, i / 2);
            assert_true(a->slot == 0 && a->batch == 0 && a->in == -1 && a->out == -1);
        }
        assert_true(s.slots[0] == 1 && s.batches == 1 && s.buffers == 0 && s.n_transfers == 0);
        schedule_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
