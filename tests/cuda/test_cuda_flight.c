/* test_cuda_flight.c -- tests the flight recorder on a device that still works after a call has
 * returned: each stream shows by its progress word what it has finished. Runs on a GPU and on
 * emulated devices, whose streams delay their work as long as the events allow. */
#include "model/core/flight.h"
#include "model/kernels/ops.h"
#include "tests/support/support.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ELEMENTS = 5000 };

static FlightEntry entry[FLIGHT_SNAPSHOT];

static bool is_emulated(void)
{
    return dlsym(RTLD_DEFAULT, "emu_count_allocations") != NULL;
}

/* Returns how many of the entries of this stream have finished; *all is how many there are. */
static int finished_on(const Flight *f, int stream, int *all)
{
    int n = flight_snapshot(f, entry), finished = 0;
    *all = 0;
    for (int i = 0; i < n; i++) {
        if (entry[i].stream != stream) continue;
        ++*all;
        finished += entry[i].finished > 0;
        /* On a device it is not known when an entry finished; `finished` is then its time of
         * issue. */
        if (stream != FLIGHT_HOST && entry[i].finished > 0)
            assert_true(entry[i].finished == entry[i].issued);
    }
    return finished;
}

static void expect_on(const Flight *f, int stream, int finished, int all)
{
    int found, done = finished_on(f, stream, &found);
    assert_int_equal(found, all);
    assert_int_equal(done, finished);
}

static void test_progress_words_show_which_work_has_finished(void **state)
{
    char err[512];
    Device dev;
    Event computed = {0};
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    (void)state;
    cuda_needed();
    if (!device_open(&dev, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
    Flight *f = flight_create();
    flight_attach(f, &dev);
    Device comm = device_on(&dev, dev.comm);
    float *memory = device_alloc(&dev, 2 * ELEMENTS * sizeof(float), "numbers");
    Tensor x = tensor_1d(memory, F32, ELEMENTS), y = tensor_1d(memory + ELEMENTS, F32, ELEMENTS);
    device_event_record(&dev, &computed);
    device_synchronize(&dev);
    expect_on(f, FLIGHT_HOST, 1, 1);
    int64_t waits = dev.waits, allocations = dev.allocations;

    flight_at(f, 1, 0, FLIGHT_FORWARD);
    op_fill(&dev, x, 1);
    op_fill(&dev, x, 2);
    device_event_record(&dev, &computed);
    device_event_wait(&comm, &computed);
    op_copy(&comm, y, x);
    expect_on(f, GRAPH_COMPUTE, 0, 2); /* no progress word has been written yet */
    flight_at(f, 1, 0, FLIGHT_BACKWARD);
    if (is_emulated()) expect_on(f, GRAPH_COMPUTE, 0, 2); /* the stream has not begun */
    op_fill(&dev, x, 3);
    /* Marking, that is, writing the progress word, neither waits nor allocates. */
    assert_int_equal(dev.waits, waits);
    assert_int_equal(dev.allocations, allocations);
    /* Marks the work that is not marked yet. The call itself also becomes an entry
     * (FLIGHT_HOST). */
    device_synchronize(&dev);
    expect_on(f, GRAPH_COMPUTE, 3, 3);
    expect_on(f, GRAPH_COMM, 2, 2);
    expect_on(f, FLIGHT_HOST, 2, 2);
    assert_string_equal(flight_wait_name[entry[0].code], "device");
    int n = flight_snapshot(f, entry);
    assert_int_equal(n, 7);
    assert_int_equal(entry[3].kind, FLIGHT_WAIT);
    assert_int_equal(entry[3].stream, GRAPH_COMM);
    assert_string_equal(flight_wait_name[entry[3].code], "compute");

    op_fill(&dev, x, 4);
    device_event_record(&dev, &computed);
    device_event_synchronize(&dev, &computed); /* a wait for a stream */
    device_synchronize(&dev);
    device_event_destroy(&dev, &computed);
    device_release(&dev, memory, 2 * ELEMENTS * sizeof(float));
    flight_detach(f, &dev);
    expect_on(f, GRAPH_COMPUTE, 4, 4); /* still known after the recorder was detached */
    device_close(&dev);
    flight_free(f);
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
        cmocka_unit_test(test_progress_words_show_which_work_has_finished),
    };
    return cmocka_run_group_tests_name("flight", tests, setup, NULL);
}
