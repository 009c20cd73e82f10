/* backend.c -- chooses and opens a backend, and implements the device calls of device.h. Backends
 * are found by weak symbols: one that is not linked into the program is simply missing. */
#include "model/core/check.h"
#include "model/core/device.h"
#include "model/core/figures.h"
#include "model/core/flight.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "model/core/recorder.h"

#include <string.h>

extern const Backend backend_cpu __attribute__((weak));
extern const Backend backend_cuda __attribute__((weak));

const Backend *backend_linked(int i)
{
    const Backend *const candidate[] = {&backend_cuda, &backend_cpu};
    for (int c = 0; c < 2; c++)
        if (candidate[c] != NULL && i-- == 0) return candidate[c];
    return NULL;
}

/* Returns the next usable backend called `name` ("auto": any name). The search starts at index *i,
 * and *i becomes the index after the result. Returns NULL if there is none; err then holds the
 * error message of the last backend tried. device->trouble receives the reason why the first
 * unusable one was skipped. */
static const Backend *next_usable(Device *device, const char *name, int *i, char *err, size_t n)
{
    bool any = strcmp(name, "auto") == 0;
    const Backend *b;
    while ((b = backend_linked((*i)++)) != NULL) {
        if (!any && strcmp(b->name, name) != 0) continue;
        Device asked = {.index = device->index};
        if (b->usable == NULL || b->usable(&asked, err, n)) return b;
        /* Keep only the first reason. Backends are ordered best first, so it is about the best
         * device. */
        if (device->trouble[0] == '\0')
            memcpy(device->trouble, asked.trouble, sizeof asked.trouble);
    }
    return NULL;
}

const Backend *device_choice(const char *name)
{
    char ignored[512];
    int i = 0;
    Device asked = {0};
    return next_usable(&asked, name, &i, ignored, sizeof ignored);
}

bool device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                 size_t n)
{
    sigset_t before;
    int i = 0;
    const Backend *b;
    *device = (Device){.index = options->index};
    error_set(err, n, "device \"%s\" is not built into this program", name);
    while ((b = next_usable(device, name, &i, err, n)) != NULL) {
        Device opened = {.backend = b, .index = options->index};
        /* Threads that libraries start while they open must not receive signals. */
        signals_hold(&before);
        bool good = b->open(&opened, options, err, n);
        signals_release(&before);
        if (device->trouble[0] != '\0')
            memcpy(opened.trouble, device->trouble, sizeof opened.trouble);
        if (good) {
            *device = opened;
            return true;
        }
        memcpy(device->trouble, opened.trouble, sizeof opened.trouble);
    }
    return false;
}

void device_warn(const Device *device)
{
    if (device->trouble[0])
        log_warning("going on with the CPU: %s (device \"cpu\" chooses it, \"cuda\" insists)",
                    device->trouble);
    if (device->lacking[0]) log_warning("%s", device->lacking);
}

/* Stops with a failed CHECK if the device is a view. A view is a copy of the device, so waits and
 * allocations through it would not be counted in the device. */
static void expect_no_view(const Device *device, const char *what)
{
    CHECK(!device->view, "%s on a view of a device", what);
}

/* Stops with a failed CHECK if memory may not be allocated or released now (Device.fixed). */
static void expect_free(const Device *device, const char *what)
{
    expect_no_view(device, what);
    CHECK(!device->fixed, "memory of the device (%s) between the ranks' meetings", what);
}

void device_close(Device *device)
{
    expect_no_view(device, "close");
    if (device->backend) device->backend->close(device);
    *device = (Device){0};
}

static void refuse_memory(Device *device, size_t bytes, const char *what)
{
    size_t available, total;
    if (device_memory(device, &available, &total))
        fail(EXIT_NO_MEMORY,
             "%zu bytes for %s were refused: %zu of the device's %zu are free; " MEMORY_ADVICE,
             bytes, what, available, total);
    fail(EXIT_NO_MEMORY, "%zu bytes for %s were refused; " MEMORY_ADVICE, bytes, what);
}

void *device_alloc(Device *device, size_t bytes, const char *what)
{
    expect_free(device, what);
    void *p = device->backend->alloc(device, bytes ? bytes : 1);
    device->allocations++;
    device->held += bytes;
    if (p == NULL) refuse_memory(device, bytes, what);
    return p;
}

void device_release(Device *device, void *p, size_t bytes)
{
    if (p == NULL) return;
    expect_free(device, "release");
    device->backend->release(device, p, bytes ? bytes : 1);
    device->held -= bytes;
}

void device_copy(Device *device, Tensor dst, Tensor src)
{
    CHECK(dst.dtype == src.dtype && tensor_same_shape(dst, src), "copy of %s %lld to %s %lld",
          dtype_name(src.dtype), (long long)tensor_count(src), dtype_name(dst.dtype),
          (long long)tensor_count(dst));
    int64_t noted = 0;
    if (device->recorder) recorder_copy(device, src);
    if (device->flight) noted = flight_copy(device, src);
    device->backend->copy(device, device->compute, dst, src);
    flight_end(device->flight, noted);
}

void device_copy_words(Device *device, void *dst, const void *src, size_t bytes)
{
    int64_t words = (int64_t)(bytes / sizeof(int64_t));
    CHECK(bytes % sizeof(int64_t) == 0, "%zu bytes are no whole words", bytes);
    device_copy(device, tensor_1d(dst, I64, words), tensor_1d((void *)(uintptr_t)src, I64, words));
}

void device_synchronize(Device *device)
{
    int64_t noted = 0;
    expect_no_view(device, "synchronize");
    device->waits++;
    if (device->flight) noted = flight_host_wait(device, FLIGHT_WHOLE_DEVICE);
    device->backend->synchronize(device);
    flight_end(device->flight, noted);
}

void device_event_record(Device *device, Event *event)
{
    if (device->recorder) recorder_event(device, event);
    if (device->flight) flight_event(device, event);
    device->backend->event_record(device, event, device->compute);
}

void device_event_record_timed(Device *device, Event *event)
{
    CHECK(event->timed || event->impl == NULL, "an event without times becomes one with times");
    event->timed = true;
    if (device->recorder) recorder_event(device, event);
    if (device->flight) flight_event(device, event);
    device->backend->event_record(device, event, device->compute);
}

void device_event_wait(Device *device, Event *event)
{
    if (device->recorder) recorder_wait(device, event);
    if (device->flight) flight_stream_wait(device, event);
    device->backend->event_wait(device, event, device->compute);
}

bool device_event_reached(Device *device, Event *event)
{
    return device->backend->event_reached(device, event);
}

void device_event_synchronize(Device *device, Event *event)
{
    expect_no_view(device, "a wait for an event");
    int64_t noted = 0;
    if (device_event_reached(device, event)) return;
    device->waits++;
    if (device->flight) noted = flight_host_wait(device, event->stream);
    device->backend->event_synchronize(device, event);
    flight_end(device->flight, noted);
}

double device_event_seconds(Device *device, Event *from, Event *to)
{
    CHECK(from->timed && to->timed, "the time between events without times");
    device_event_synchronize(device, to);
    return device->backend->event_seconds(device, from, to);
}

void device_event_destroy(Device *device, Event *event)
{
    device->backend->event_destroy(device, event);
    *event = (Event){0};
}

static void refuse_host_memory(const Device *device, size_t bytes, const char *what)
{
    if (device->backend->place == PLACE_HOST)
        fail(EXIT_NO_MEMORY, "%zu bytes of host memory for %s were refused", bytes, what);
    /* The failed request may be a small part of all memory, so the message also says how much is
     * already held. */
    fail(EXIT_NO_MEMORY,
         "the driver refused %s of page-locked host memory for %s, after %s, although %s are free "
         "(WSL2 and some containers limit it)",
         figure_bytes((double)bytes).text, what,
         figure_bytes((double)(device->host_held - bytes)).text,
         figure_bytes((double)memory_available()).text);
}

void *device_host_alloc(Device *device, size_t bytes, const char *what)
{
    expect_free(device, what);
    void *p = device->backend->host_alloc(device, bytes ? bytes : 1);
    device->allocations++;
    device->host_held += bytes;
    if (p == NULL) refuse_host_memory(device, bytes, what);
    return p;
}

void device_host_release(Device *device, void *p, size_t bytes)
{
    if (p == NULL) return;
    expect_free(device, "release");
    device->backend->host_release(device, p);
    device->host_held -= bytes;
}

bool device_memory(Device *device, size_t *available, size_t *total)
{
    if (device->backend->memory == NULL) return false;
    device->backend->memory(device, available, total);
    return true;
}

const char *device_describe(const Device *device, char *buf, size_t n)
{
    return device->backend->describe(device, buf, n);
}

int device_count(const Device *device)
{
    return device->backend->count ? device->backend->count() : 1;
}

const char *device_bus_id(const Device *device, char *buf, size_t n)
{
    if (n > 0) buf[0] = '\0';
    return device->backend->bus_id ? device->backend->bus_id(device->index, buf, n) : buf;
}

void device_enter(const Device *device)
{
    if (device->backend->enter) device->backend->enter(device);
}
