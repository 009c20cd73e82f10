/* device_counted.c -- see device_counted.h. */
#include "model/core/device_counted.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>

/* A table in which every op does nothing (model/kernels/op_counted.c). */
extern const struct OpTable op_table_counted;

/* Addresses that no memory of a process has: x86-64 needs bits 47 to 63 to be equal. */
#define NOWHERE ((uintptr_t)1 << 60)
#define PAGE    ((uintptr_t)4096)

enum { STREAMS = 6 };

typedef struct {
    CountedFacts facts;
    uintptr_t next;       /* address of the next allocation */
    char stream[STREAMS]; /* one byte per stream, whose address identifies it */
} CountedDevice;

static CountedDevice *counted_of(const Device *device)
{
    return device->impl;
}

static void counted_close(Device *device)
{
    pool_destroy(device->pool);
    free(device->impl);
}

static void *counted_alloc(Device *device, size_t bytes)
{
    CountedDevice *counted = counted_of(device);
    uintptr_t at = counted->next;
    /* An unused page separates the end of an allocation from the beginning of the next. */
    counted->next += (bytes + 2 * PAGE - 1) / PAGE * PAGE;
    return (void *)at; /* NOLINT(performance-no-int-to-ptr) */
}

static void counted_release(Device *device, void *p, size_t bytes)
{
    (void)device, (void)p, (void)bytes;
}

static void counted_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    (void)device, (void)stream, (void)dst, (void)src;
}

static void counted_event_on(Device *device, Event *event, Stream stream)
{
    (void)device, (void)event, (void)stream;
}

static void counted_event(Device *device, Event *event)
{
    (void)device, (void)event;
}

static bool counted_event_reached(Device *device, Event *event)
{
    (void)device, (void)event;
    return true;
}

static double counted_event_seconds(Device *device, Event *from, Event *to)
{
    (void)device, (void)from, (void)to;
    return 0;
}

static void *counted_host_alloc(Device *device, size_t bytes)
{
    (void)device;
    return malloc(bytes);
}

static void counted_host_release(Device *device, void *p)
{
    (void)device;
    if ((uintptr_t)p < NOWHERE) free(p);
}

static void counted_synchronize(Device *device)
{
    (void)device;
}

static void counted_memory(Device *device, size_t *available, size_t *total)
{
    const CountedFacts *facts = &counted_of(device)->facts;
    size_t taken = facts->workspace + device->held;
    *total = (size_t)facts->facts.bytes;
    *available = taken < *total ? *total - taken : 0;
}

static const char *counted_describe(const Device *device, char *buf, size_t n)
{
    const CountedFacts *facts = &counted_of(device)->facts;
    if (facts->place == PLACE_HOST)
        snprintf(buf, n, "counted: host memory");
    else
        snprintf(buf, n, "counted: sm_%d, %lld bytes", facts->facts.capability,
                 (long long)facts->facts.bytes);
    return buf;
}

#define SAME_FOR_BOTH                                                                              \
    .name = "counted", .close = counted_close, .alloc = counted_alloc, .release = counted_release, \
    .copy = counted_copy, .event_record = counted_event_on, .event_wait = counted_event_on,        \
    .event_reached = counted_event_reached, .event_synchronize = counted_event,                    \
    .event_seconds = counted_event_seconds, .event_destroy = counted_event,                        \
    .host_alloc = counted_host_alloc, .host_release = counted_host_release,                        \
    .synchronize = counted_synchronize, .describe = counted_describe

static const Backend counted_on_host = {SAME_FOR_BOTH, .place = PLACE_HOST};
static const Backend counted_on_device = {SAME_FOR_BOTH, .place = PLACE_DEVICE,
                                          .memory = counted_memory};

bool device_is_counted(const Device *device)
{
    return device->backend == &counted_on_host || device->backend == &counted_on_device;
}

void *device_counted_reserve(Device *device, size_t bytes)
{
    CHECK(device_is_counted(device), "the device has memory");
    device->allocations++;
    device->host_held += bytes;
    return counted_alloc(device, bytes);
}

void device_counted_open(Device *device, const CountedFacts *facts)
{
    CountedDevice *counted = must_calloc(1, sizeof *counted);
    *counted = (CountedDevice){.facts = *facts, .next = NOWHERE};
    *device = (Device){.backend = &counted_on_host,
                       .ops = &op_table_counted,
                       .ops_f64 = &op_table_counted,
                       .pool = pool_create(1),
                       .impl = counted};
    if (facts->place == PLACE_HOST) return;
    device->backend = &counted_on_device;
    device->ops_f64 = NULL;
    Stream *const stream[STREAMS] = {&device->compute, &device->copy, &device->comm,
                                     &device->p2p,     &device->tp,   &device->update};
    for (int i = 0; i < STREAMS; i++)
        stream[i]->impl = &counted->stream[i];
}
