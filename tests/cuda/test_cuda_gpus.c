/* test_cuda_gpus.c -- tests ranks with a GPU each: collectives and messages through NCCL on three
 * streams at once. On emulated devices it runs with every mode of the streams. */
#include "model/core/device.h"
#include "tests/support/grid/busy_ranks.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_ranks_with_a_gpu_each_can_use_three_streams_at_once(void **state)
{
    static const char *const streams[] = {"strict", "deferred", "random"};
    (void)state;
    cuda_needed();
    setenv("EMU_DEVICES", "4", 0);
    int gpus = device_choice("cuda")->count();
    if (gpus < 2) skip_because("cuda: %d GPU", gpus);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        setenv("EMU_STREAMS", streams[i], 1);
        for (int ranks = 2; ranks <= gpus && ranks <= BUSY_MOST_RANKS; ranks++)
            busy_ranks(ranks, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_with_a_gpu_each_can_use_three_streams_at_once),
    };
    return cmocka_run_group_tests_name("ranks with a GPU each", tests, NULL, NULL);
}
