/* test_device_counted.c -- compares a counted device with real ones: the same calls give the same
 * counters of memory, waits and allocations on every backend of this build. The addresses that it
 * returns are no addresses of the process. A program without CUDA has this device, too. */
#include "model/core/device_counted.h"
#include "model/kernels/ops.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const CountedFacts hopper = {.facts = {.capability = 90, .bytes = (int64_t)80 << 30},
                                    .place = PLACE_DEVICE,
                                    .workspace = 1 << 25};

enum { HELD = 20 };

/* One device, and the memory that the calls below hold. */
typedef struct {
    Device dev;
    void *device[HELD], *host[HELD];
    size_t bytes[HELD];
    Event event;
} Holder;

/* Draws a call and makes it: allocates or releases memory, copies, records, waits, or issues an
 * op. */
static void make_call(Holder *h, int64_t draw)
{
    int i = (int)(drawn_uniform(1, draw) * HELD), what = (int)(drawn_uniform(2, draw) * 8);
    size_t bytes = (size_t)(drawn_uniform(3, draw) * 100) * 8;
    Device *dev = &h->dev;
    switch (what) {
    case 0:
    case 1:
    case 2:
        if (h->device[i] == NULL && h->host[i] == NULL) {
            h->bytes[i] = bytes;
            h->device[i] = device_alloc(dev, bytes, "a test");
        } else if (h->device[i] != NULL) {
            device_release(dev, h->device[i], h->bytes[i]);
            h->device[i] = NULL;
        }
        break;
    case 3:
        if (h->host[i] == NULL && h->device[i] == NULL) {
            h->bytes[i] = bytes;
            h->host[i] = device_host_alloc(dev, bytes, "a test");
        } else if (h->host[i] != NULL) {
            device_host_release(dev, h->host[i], h->bytes[i]);
            h->host[i] = NULL;
        }
        break;
    case 4: device_synchronize(dev); break;
    case 5:
        device_event_record(dev, &h->event);
        device_event_wait(dev, &h->event);
        break;
    default:
        if (h->device[i] == NULL || h->host[i] != NULL || h->bytes[i] == 0) break;
        op_fill(dev, tensor_1d(h->device[i], F32, (int64_t)h->bytes[i] / 4), 1);
        device_copy_words(dev, h->device[i], h->device[i], h->bytes[i]);
        break;
    }
}

static void release_all(Holder *h)
{
    for (int i = 0; i < HELD; i++)
        if (h->device[i])
            device_release(&h->dev, h->device[i], h->bytes[i]);
        else
            device_host_release(&h->dev, h->host[i], h->bytes[i]);
    device_event_destroy(&h->dev, &h->event);
}

static void compare(const Holder *a, const Holder *b, int call)
{
    const Device *x = &a->dev, *y = &b->dev;
    if (x->held != y->held || x->host_held != y->host_held || x->waits != y->waits ||
        x->allocations != y->allocations)
        fail_msg("%s, call %d: %zu and %zu bytes, %lld waits, %lld allocations; counted %zu and "
                 "%zu, %lld, %lld",
                 x->backend->name, call, x->held, x->host_held, (long long)x->waits,
                 (long long)x->allocations, y->held, y->host_held, (long long)y->waits,
                 (long long)y->allocations);
}

static void test_a_counted_device_counts_calls_and_bytes_as_real_devices_do(void **state)
{
    const Backend *backend;
    int compared = 0;
    (void)state;
    for (int b = 0; (backend = backend_linked(b)) != NULL; b++) {
        char err[512];
        Holder real = {0}, counted = {0};
        if (!device_open(&real.dev, backend->name, &(DeviceOptions){.threads = 1}, err, sizeof err))
            continue; /* this machine has no device of this backend */
        device_counted_open(&counted.dev,
                            &(CountedFacts){.facts = {.bytes = 1 << 30}, .place = backend->place});
        assert_int_equal(counted.dev.ops_f64 == NULL, real.dev.ops_f64 == NULL);
        for (int call = 0; call < 2000; call++) {
            make_call(&real, call);
            make_call(&counted, call);
            compare(&real, &counted, call);
        }
        assert_true(real.dev.held > 0 && real.dev.host_held > 0 && real.dev.waits > 0);
        release_all(&real);
        release_all(&counted);
        compare(&real, &counted, -1);
        assert_int_equal(counted.dev.held + counted.dev.host_held, 0);
        device_close(&real.dev);
        device_close(&counted.dev);
        compared++;
    }
    assert_int_equal(compared, 1 + (cuda_devices() > 0));
}

/* Allocates 20 TiB in all on a counted device of 80 GiB; every second allocation has 0 bytes. */
static void test_allocations_are_distinct_and_never_fail(void **state)
{
    enum { PIECES = 40 };
    Device dev;
    char *piece[PIECES], *before = NULL;
    size_t before_bytes = 0, available, total;
    (void)state;
    device_counted_open(&dev, &hopper);
    assert_true(device_memory(&dev, &available, &total));
    assert_true(total == (size_t)80 << 30 && available == total - (1 << 25));
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = i % 2 ? (size_t)1 << 40 : 0;
        piece[i] = device_alloc(&dev, bytes, "a piece");
        assert_true((uintptr_t)piece[i] % ARENA_ALIGNMENT == 0);
        /* Not an address of a process: in those, bits 47 to 63 are equal. */
        assert_true((uintptr_t)piece[i] >> 47 != 0 && (uintptr_t)piece[i] >> 47 != 0x1ffff);
        assert_true(before == NULL || (uintptr_t)piece[i] > (uintptr_t)before + before_bytes);
        before = piece[i];
        before_bytes = bytes;
        assert_true(device_memory(&dev, &available, &total));
        assert_true(i == 0 || available == 0);
    }
    for (int i = 0; i < PIECES; i++)
        device_release(&dev, piece[i], i % 2 ? (size_t)1 << 40 : 0);
    assert_int_equal(dev.held, 0);
    device_close(&dev);
}

static void test_available_memory_shrinks_by_the_allocated_bytes(void **state)
{
    Device dev;
    size_t available, total;
    (void)state;
    device_counted_open(&dev, &hopper);
    void *p = device_alloc(&dev, 1000, "a test");
    assert_true(device_memory(&dev, &available, &total));
    assert_true(available == total - (1 << 25) - 1000);
    device_release(&dev, p, 1000);
    device_close(&dev);
    device_counted_open(&dev, &(CountedFacts){.place = PLACE_HOST});
    assert_false(device_memory(&dev, &available, &total));
    device_close(&dev);
}

static void test_the_streams_are_distinct_only_on_a_device_with_its_own_memory(void **state)
{
    (void)state;
    for (int place = PLACE_HOST; place <= PLACE_DEVICE; place++) {
        Device dev;
        CountedFacts facts = hopper;
        facts.place = (Place)place;
        device_counted_open(&dev, &facts);
        const void *stream[] = {dev.compute.impl, dev.copy.impl, dev.comm.impl,
                                dev.p2p.impl,     dev.tp.impl,   dev.update.impl};
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < i; j++)
                assert_int_equal(stream[i] != stream[j], place == PLACE_DEVICE);
        assert_int_equal(device_arena(&dev, NULL, 0).place, place);
        assert_int_equal(dev.ops_f64 == NULL, place == PLACE_DEVICE);
        device_close(&dev);
    }
}

/* Page-locked host memory is real. Calls that would read or write device memory do nothing. */
static void test_ops_and_copies_read_and_write_nothing(void **state)
{
    Device dev;
    char text[128];
    Event event = {0}, timed = {0};
    (void)state;
    device_counted_open(&dev, &hopper);
    double *host = device_host_alloc(&dev, 8 * sizeof *host, "a record");
    Tensor x = tensor_1d(device_alloc(&dev, 64, "x"), F64, 8), y = tensor_1d(host, F64, 8);
    host[3] = 5;
    device_copy(&dev, y, x);
    device_copy(&dev, x, y);
    op_fill(&dev, x, 1);
    device_synchronize(&dev);
    assert_true(host[3] == 5);
    device_event_record(&dev, &event);
    device_event_record_timed(&dev, &timed);
    assert_true(device_event_reached(&dev, &event));
    assert_true(device_event_seconds(&dev, &timed, &timed) == 0);
    device_event_synchronize(&dev, &event);
    assert_int_equal(dev.waits, 1); /* device_synchronize */
    assert_string_equal(device_describe(&dev, text, sizeof text),
                        "counted: sm_90, 85899345920 bytes");
    device_host_release(&dev, host, 8 * sizeof *host);
    device_release(&dev, x.data, 64);
    device_close(&dev);
}

static void test_device_open_opens_no_counted_device(void **state)
{
    Device dev;
    char err[256];
    (void)state;
    assert_false(device_open(&dev, "counted", &(DeviceOptions){0}, err, sizeof err));
    assert_string_equal(err, "device \"counted\" is not built into this program");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_counted_device_counts_calls_and_bytes_as_real_devices_do),
        cmocka_unit_test(test_allocations_are_distinct_and_never_fail),
        cmocka_unit_test(test_available_memory_shrinks_by_the_allocated_bytes),
        cmocka_unit_test(test_the_streams_are_distinct_only_on_a_device_with_its_own_memory),
        cmocka_unit_test(test_ops_and_copies_read_and_write_nothing),
        cmocka_unit_test(test_device_open_opens_no_counted_device),
    };
    return cmocka_run_group_tests_name("counted device", tests, NULL, NULL);
}
