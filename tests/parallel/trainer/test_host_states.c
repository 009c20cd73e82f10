/* test_host_states.c -- blocks of host memory for the optimizer's states. */
#include "parallel/trainer/host_states.h"

#include "model/core/device_counted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A plan lays out states that may be larger than the memory of the machine that computes the plan.
 * So on a counted device, blocks that are too large for any machine can be laid out. */
static void a_counted_device_lays_out_states_without_memory(void **state)
{
    (void)state;
    const size_t huge = (size_t)1 << 50, bytes[] = {huge, 0, 3 * huge};
    for (int place = PLACE_HOST; place <= PLACE_DEVICE; place++) {
        Device dev;
        HostStates states;
        device_counted_open(&dev, &(CountedFacts){.place = (Place)place});
        host_states_open(&states, &dev, bytes, 3);
        assert_true(states.bytes == 4 * huge && dev.host_held == 4 * huge && dev.held == 0);
        assert_int_equal(dev.allocations, 2);
        assert_null(states.arena[1].base);
        for (int u = 0; u < 3; u++) {
            assert_true(states.arena[u].size == bytes[u] && states.arena[u].used == 0);
            assert_int_equal(states.arena[u].place, PLACE_HOST);
        }
        uintptr_t first = (uintptr_t)states.arena[0].base, last = (uintptr_t)states.arena[2].base;
        assert_true(first > 0 && (last >= first + huge || first >= last + 3 * huge));
        host_states_close(&states, &dev);
        assert_true(dev.host_held == 0);
        device_close(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counted_device_lays_out_states_without_memory)};
    return cmocka_run_group_tests_name("host states", tests, NULL, NULL);
}
