/* test_cuda_streams.c -- tests that ops on a view of a device run on the view's stream, and that
 * only events order the streams. Runs on a GPU and on emulated devices, whose streams delay their
 * work as long as the events allow. */
#include "model/kernels/ops.h"
#include "tests/support/support.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ELEMENTS = 5000, ROUNDS = 8, STREAMS = 6 };

static bool is_emulated(void)
{
    return dlsym(RTLD_DEFAULT, "emu_count_allocations") != NULL;
}

static void open_device(Device *dev)
{
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    cuda_needed();
    if (!device_open(dev, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
}

/* Passes a number around the six streams; each stream adds 1 to the result of the previous one.
 * Returns the final number. With `waits`, each stream waits for the previous stream's event first.
 */
static float round_the_streams(bool waits)
{
    Device dev, view[STREAMS];
    Event done[STREAMS] = {0};
    float got = 0;
    open_device(&dev);
    const Stream stream[STREAMS] = {dev.compute, dev.copy, dev.comm, dev.p2p, dev.tp, dev.update};
    size_t bytes = ELEMENTS * sizeof(float);
    float *memory = device_alloc(&dev, (STREAMS + 1) * bytes, "the numbers");
    Tensor one = tensor_1d(memory + (size_t)STREAMS * ELEMENTS, F32, ELEMENTS);
    op_fill(&dev, one, 1);
    device_synchronize(&dev);
    for (int i = 0; i < STREAMS; i++)
        view[i] = device_on(&dev, stream[i]);
    for (int i = 0; i < ROUNDS * STREAMS; i++) {
        int at = i % STREAMS, before = (i + STREAMS - 1) % STREAMS;
        Tensor from = tensor_1d(memory + (size_t)before * ELEMENTS, F32, ELEMENTS);
        Tensor to = tensor_1d(memory + (size_t)at * ELEMENTS, F32, ELEMENTS);
        if (waits) device_event_wait(&view[at], &done[before]);
        op_add(&view[at], to, from, one);
        device_event_record(&view[at], &done[at]);
    }
    if (waits) device_event_wait(&dev, &done[STREAMS - 1]);
    device_copy(&dev, tensor_1d(&got, F32, 1),
                tensor_1d(memory + (size_t)(STREAMS - 1) * ELEMENTS + 4321, F32, 1));
    device_synchronize(&dev);
    for (int i = 0; i < STREAMS; i++)
        device_event_destroy(&dev, &done[i]);
    device_release(&dev, memory, (STREAMS + 1) * bytes);
    assert_int_equal(dev.held, 0);
    device_close(&dev);
    return got;
}

static void test_streams_are_ordered_only_by_events(void **state)
{
    (void)state;
    assert_true(round_the_streams(true) == ROUNDS * STREAMS);
    if (is_emulated()) assert_true(round_the_streams(false) != ROUNDS * STREAMS);
}

static int setup(void **state)
{
    (void)state;
    return setenv("EMU_STREAMS", "deferred", 1); /* otherwise emulated streams do their work at once
                                                  */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_are_ordered_only_by_events),
    };
    return cmocka_run_group_tests_name("streams", tests, setup, NULL);
}
