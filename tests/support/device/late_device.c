/* late_device.c -- the backend of the late device, which delays its work to reveal missing waits.
 * Each stream's work is queued. A thread that waits does it, including the work of other streams
 * that it depends on.
 *
 * One lock is held while work is done. Work only ever waits for work that was queued before it,
 * because ranks wait for each other on the host; so holding the lock cannot cause a deadlock. */
#include "tests/support/device/late_inside.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const Backend backend_cpu;
static const Backend backend_late;

LateAll late_all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The point of a stream at which the event was last recorded. */
typedef struct {
    LatePoint at;
} LateEvent;

static LateDevice *late_of(const Device *device)
{
    return device->impl;
}

static void lock(void)
{
    pthread_mutex_lock(&late_all.mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&late_all.mutex);
}

/* ---- work ------------------------------------------------------------------------------------ */

LateWork *late_work(LateWork work, const void *arguments, size_t bytes)
{
    LateWork *made = must_alloc(sizeof *made);
    *made = work;
    if (bytes > 0) made->arguments = memcpy(must_alloc(bytes), arguments, bytes);
    late_touch(arguments, bytes);
    return made;
}

void late_keep(LateWork *work, void *at, size_t bytes)
{
    void *kept, *from;
    int i = 0;
    memcpy(&from, at, sizeof from);
    if (from == NULL || bytes == 0) return;
    kept = memcpy(must_alloc(bytes), from, bytes);
    memcpy(at, &kept, sizeof kept);
    late_touch(kept, bytes);
    while (i < LATE_KEPT && work->kept[i])
        i++;
    CHECK(i < LATE_KEPT, "%s has more than %d things to keep", work->name, LATE_KEPT);
    work->kept[i] = kept;
}

void late_free(LateWork *work)
{
    for (int i = 0; i < LATE_KEPT; i++)
        free(work->kept[i]);
    free(work->arguments);
    free(work);
}

void late_do(const LateStream *stream, LateWork *work)
{
    Device *cpu = &stream->device->cpu;
    if (work->run) work->run(cpu, work->wide ? cpu->ops_f64 : cpu->ops, work->arguments);
}

static void issue(LateStream *s, LateWork *work)
{
    if (s->issued == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->work = must_realloc(s->work, (size_t)s->capacity * sizeof *s->work);
        s->ended = must_realloc(s->ended, (size_t)(s->capacity + 1) * sizeof *s->ended);
        for (int64_t i = s->issued + (s->issued > 0); i <= s->capacity; i++)
            s->ended[i] = 0;
    }
    if (late_all.note) late_all.note(work->note);
    for (int i = 0; i < LATE_STREAMS; i++)
        work->sent[i] = s->device->stream[i].issued;
    s->work[s->issued++] = work;
}

void late_issue(Stream stream, LateWork *work)
{
    lock();
    issue(stream.impl, work);
    unlock();
}

/* Does the stream's work up to the point, and the work of other streams that it waits for. */
static void advance(LatePoint to)
{
    LateStream *s = to.stream;
    CHECK(s->done >= to.point || !late_all.burst, "rank %d waits for its %s stream inside a burst",
          s->device->index, s->name);
    while (s->done < to.point) {
        LateWork *work = s->work[s->done];
        if (work->run == NULL) advance(work->wait);
        late_do(s, work);
        late_tick(s, work);
        s->work[s->done++] = NULL;
        late_free(work);
    }
}

static void advance_device(LateDevice *late)
{
    for (int i = 0; i < LATE_STREAMS; i++)
        advance((LatePoint){&late->stream[i], late->stream[i].issued});
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *late_alloc(Device *device, size_t bytes)
{
    return late_remember(backend_cpu.alloc(&late_of(device)->cpu, bytes), bytes, false);
}

/* Waits for all devices first, as CUDA does. */
static void late_release(Device *device, void *p, size_t bytes)
{
    lock();
    for (LateDevice *d = late_all.devices; d != NULL; d = d->next)
        advance_device(d);
    unlock();
    late_forget(p);
    backend_cpu.release(&late_of(device)->cpu, p, bytes);
}

static void *late_host_alloc(Device *device, size_t bytes)
{
    return late_remember(backend_cpu.host_alloc(&late_of(device)->cpu, bytes), bytes, true);
}

static void late_host_release(Device *device, void *p)
{
    late_forget(p);
    backend_cpu.host_release(&late_of(device)->cpu, p);
}

/* ---- copies and events ----------------------------------------------------------------------- */

typedef struct {
    Tensor dst, src;
} LateCopy;

static void run_copy(Device *cpu, const OpTable *table, void *arguments)
{
    const LateCopy *copy = arguments;
    (void)table;
    backend_cpu.copy(cpu, cpu->compute, copy->dst, copy->src);
}

/* Returns the bytes from the first element to the last. */
static size_t span(Tensor t)
{
    return (size_t)((tensor_rows(t) - 1) * t.ld + tensor_cols(t)) * dtype_size(t.dtype);
}

/* Pageable host memory is read, and is written, before the call returns. */
static void late_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    LateCopy copy = {dst, src};
    LateStream *s = stream.impl;
    (void)device;
    if (tensor_count(src) == 0) return;
    LateWork *work = late_work((LateWork){.name = "copy", .run = run_copy}, &copy, sizeof copy);
    if (!late_is_remembered(src.data))
        late_keep(work, &((LateCopy *)work->arguments)->src.data, span(src));
    lock();
    issue(s, work);
    unlock();
    if (late_is_remembered(dst.data)) return;
    lock();
    advance((LatePoint){s, s->issued});
    unlock();
}

static void late_event_record(Device *device, Event *event, Stream stream)
{
    LateStream *s = stream.impl;
    (void)device;
    if (event->impl == NULL) event->impl = must_calloc(1, sizeof(LateEvent));
    lock();
    ((LateEvent *)event->impl)->at = (LatePoint){s, s->issued};
    unlock();
    event->seconds = seconds_now();
}

/* Returns the address from which device_event_wait was called. Some compilers end device_event_wait
 * with a jump, so it may be missing in the backtrace. */
static __attribute__((noinline)) const void *caller(void)
{
    enum { HERE, BACKEND, FRONT, CALLER, FRAMES };
    const size_t MOST_CODE = 512; /* more than the size of device_event_wait in bytes */
    void *frame[FRAMES] = {0};
    backtrace(frame, FRAMES);
    bool jumped = (size_t)((uintptr_t)frame[FRONT] - (uintptr_t)device_event_wait) > MOST_CODE;
    return frame[jumped ? FRONT : CALLER];
}

static void late_event_wait(Device *device, Event *event, Stream stream)
{
    (void)device;
    if (event->impl == NULL) return;
    LateWork *work = late_work((LateWork){.name = "wait"}, NULL, 0);
    work->site = caller();
    lock();
    work->wait = ((LateEvent *)event->impl)->at;
    issue(stream.impl, work);
    unlock();
}

static bool late_event_reached(Device *device, Event *event)
{
    bool reached = true;
    (void)device;
    if (event->impl == NULL) return true;
    lock();
    LatePoint at = ((LateEvent *)event->impl)->at;
    reached = at.stream->done >= at.point;
    unlock();
    return reached;
}

static void late_event_synchronize(Device *device, Event *event)
{
    (void)device;
    lock();
    advance(((LateEvent *)event->impl)->at);
    unlock();
}

static double late_event_seconds(Device *device, Event *from, Event *to)
{
    (void)device;
    if (late_all.seconds == NULL) return to->seconds - from->seconds;
    lock();
    double seconds = late_between(((LateEvent *)from->impl)->at, ((LateEvent *)to->impl)->at);
    unlock();
    return seconds;
}

static void late_event_destroy(Device *device, Event *event)
{
    (void)device;
    free(event->impl);
}

static void late_synchronize(Device *device)
{
    lock();
    advance_device(late_of(device));
    unlock();
}

/* ---- opening --------------------------------------------------------------------------------- */

static const char *late_describe(const Device *device, char *buf, size_t n)
{
    char cpu[256];
    snprintf(buf, n, "late %s", device_describe(&late_of(device)->cpu, cpu, sizeof cpu));
    return buf;
}

bool late_device_open(Device *device, const DeviceOptions *options, char *err, size_t n)
{
    static const char *const name[LATE_STREAMS] = {"compute", "copy", "comm",
                                                   "p2p",     "tp",   "update"};
    LateDevice *late = must_calloc(1, sizeof *late);
    late->cpu.backend = &backend_cpu;
    if (!backend_cpu.open(&late->cpu, options, err, n)) {
        free(late);
        return false;
    }
    *device = (Device){.backend = &backend_late,
                       .ops = &late_table_f32,
                       .ops_f64 = &late_table_f64,
                       .pool = late->cpu.pool,
                       .impl = late,
                       .index = options->index};
    Stream *const stream[LATE_STREAMS] = {&device->compute, &device->copy, &device->comm,
                                          &device->p2p,     &device->tp,   &device->update};
    late->index = options->index;
    for (int i = 0; i < LATE_STREAMS; i++) {
        late->stream[i] = (LateStream){.device = late, .name = name[i]};
        stream[i]->impl = &late->stream[i];
    }
    lock();
    CHECK(!late_all.burst, "rank %d opens a device inside a burst", late->index);
    late->next = late_all.devices;
    late_all.devices = late;
    unlock();
    return true;
}

/* Frees all devices once all are closed, because their streams may be referred to until then.
 * Called with the mutex held. */
static void free_closed(void)
{
    for (const LateDevice *d = late_all.devices; d != NULL; d = d->next)
        if (!d->closed) return;
    while (late_all.devices) {
        LateDevice *d = late_all.devices;
        late_all.devices = d->next;
        for (int i = 0; i < LATE_STREAMS; i++) {
            free(d->stream[i].ended);
            free(d->stream[i].work);
        }
        free(d);
    }
}

static void late_close(Device *device)
{
    LateDevice *late = late_of(device);
    lock();
    advance_device(late);
    backend_cpu.close(&late->cpu);
    late->closed = true;
    free_closed();
    unlock();
}

static const Backend backend_late = {
    .name = "late",
    .place = PLACE_DEVICE,
    .close = late_close,
    .alloc = late_alloc,
    .release = late_release,
    .copy = late_copy,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_reached = late_event_reached,
    .event_synchronize = late_event_synchronize,
    .event_seconds = late_event_seconds,
    .event_destroy = late_event_destroy,
    .host_alloc = late_host_alloc,
    .host_release = late_host_release,
    .synchronize = late_synchronize,
    .describe = late_describe,
};
