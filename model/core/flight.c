/* flight.c -- the functions by which a rank's own thread writes its flight recorder; see
 * flight.h. */
#include "model/core/flight_inside.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- slots ----------------------------------------------------------------------------------- */

static Slot *slot_of(Flight *f, int64_t n)
{
    return &f->slot[n & (FLIGHT_ENTRIES - 1)];
}

static void slot_finish(Slot *slot, double at)
{
    uint64_t word;
    memcpy(&word, &at, sizeof word);
    atomic_store_explicit(&slot->word[FINISHED], word, memory_order_release);
}

/* ---- the device ------------------------------------------------------------------------------ */

Flight *flight_create(void)
{
    Flight *f = must_calloc(1, sizeof *f);
    f->unit = -1;
    atomic_store(&f->micro_batch, -1);
    return f;
}

void flight_free(Flight *f)
{
    free(f);
}

/* Makes stream s write the number of its last entry to its progress word as soon as it has finished
 * that entry. */
static void mark(Flight *f, int s)
{
    int64_t *progress = atomic_load_explicit(&f->progress, memory_order_relaxed);
    Stream stream = {(void *)(uintptr_t)f->stream[s]};
    f->device.backend->mark(&f->device, stream, &progress[s], f->last[s]);
    f->marked[s] = f->last[s];
}

void flight_attach(Flight *f, Device *device)
{
    CHECK(!device->view && device->flight == NULL, "a flight of a view, or a second one (%d)",
          device->view);
    const Stream of[GRAPH_STREAMS] = {device->compute, device->copy, device->comm,
                                      device->p2p,     device->tp,   device->update};
    f->asynchronous = device->backend->mark != NULL;
    for (int s = 0; s < GRAPH_STREAMS; s++)
        f->stream[s] = of[s].impl;
    if (f->asynchronous) {
        size_t bytes = GRAPH_STREAMS * sizeof(int64_t);
        /* These few bytes, like the device's own state, are not in the memory plan. */
        int64_t *progress = device->backend->host_alloc(device, bytes);
        if (progress == NULL)
            fail(EXIT_NO_MEMORY, "%zu bytes of page-locked host memory were refused", bytes);
        memset(progress, 0, bytes);
        atomic_store(&f->progress, progress);
        f->device = *device;
        f->device.view = true;
    }
    device->flight = f;
}

void flight_detach(Flight *f, Device *device)
{
    if (f == NULL) return;
    int64_t *progress = atomic_load(&f->progress);
    for (int s = 0; s < GRAPH_STREAMS; s++)
        atomic_store(&f->ended[s], f->last[s]);
    atomic_store(&f->progress, NULL);
    device->flight = NULL;
    f->asynchronous = false;
    if (progress) device->backend->host_release(device, progress);
}

static void mark_streams(Flight *f)
{
    if (!f->asynchronous) return;
    for (int s = 0; s < GRAPH_STREAMS; s++)
        if (f->last[s] > f->marked[s]) mark(f, s);
}

/* Returns the number of the stream on which work is issued through `on`; FLIGHT_HOST if that is
 * NULL. If all streams are the same one, as on the CPU, returns the first number. */
static int stream_of(const Flight *f, const Device *on)
{
    if (on == NULL) return FLIGHT_HOST;
    int s = 0;
    while (s < GRAPH_STREAMS && f->stream[s] != on->compute.impl)
        s++;
    CHECK(s < GRAPH_STREAMS, "a stream that the device had not when the flight was attached (%p)",
          on->compute.impl);
    return s;
}

void flight_event(const Device *device, Event *event)
{
    event->stream = stream_of(device->flight, device);
}

/* ---- writing --------------------------------------------------------------------------------- */

void flight_at(Flight *f, int64_t step, int64_t micro_batch, FlightAction action)
{
    if (f == NULL) return;
    mark_streams(f);
    atomic_store_explicit(&f->step, step, memory_order_relaxed);
    atomic_store_explicit(&f->micro_batch, micro_batch, memory_order_relaxed);
    atomic_store_explicit(&f->action, (int)action, memory_order_relaxed);
}

void flight_action(Flight *f, int64_t micro_batch, FlightAction action)
{
    if (f) flight_at(f, flight_place(f).step, micro_batch, action);
}

int flight_unit(Flight *f, int unit)
{
    if (f == NULL) return -1;
    int before = f->unit;
    f->unit = unit;
    return before;
}

int64_t flight_begin(Flight *f, const Device *on, const FlightEntry *what)
{
    if (f == NULL || f->hidden > 0) return 0;
    FlightPlace place = flight_place(f);
    FlightEntry e = *what;
    e.n = atomic_load_explicit(&f->issued, memory_order_relaxed) + 1;
    e.issued = seconds_now();
    e.finished = 0;
    e.step = (int32_t)place.step;
    e.micro_batch = (int32_t)place.micro_batch;
    e.action = (uint8_t)place.action;
    e.unit = (int16_t)f->unit;
    e.stream = (uint8_t)stream_of(f, on);
    slot_store(slot_of(f, e.n), &e);
    if (on) f->last[e.stream] = e.n;
    atomic_store_explicit(&f->issued, e.n, memory_order_release);
    return e.n;
}

/* Returns an entry of a kind that has no group, call or peer. */
static FlightEntry plain(FlightKind kind, int code, int dtype, int64_t elements)
{
    return (FlightEntry){.kind = (uint8_t)kind,
                         .code = (uint8_t)code,
                         .dtype = (uint8_t)dtype,
                         .elements = elements,
                         .group = -1,
                         .peer = -1,
                         .call = -1};
}

int64_t flight_op(const Device *device, int op, DType dtype, int64_t elements)
{
    FlightEntry e = plain(FLIGHT_OP, op, dtype, elements);
    return flight_begin(device->flight, device, &e);
}

int64_t flight_copy(const Device *device, Tensor x)
{
    FlightEntry e = plain(FLIGHT_COPY, 0, x.dtype, tensor_count(x));
    return flight_begin(device->flight, device, &e);
}

void flight_stream_wait(const Device *device, const Event *event)
{
    FlightEntry e = plain(FLIGHT_WAIT, event->stream, FLIGHT_NO_DTYPE, 0);
    if (event->impl && event->stream != stream_of(device->flight, device))
        flight_begin(device->flight, device, &e);
}

int64_t flight_host_wait(const Device *device, int what)
{
    FlightEntry e = plain(FLIGHT_WAIT, what, FLIGHT_NO_DTYPE, 0);
    if (!device->flight->asynchronous) return 0;
    mark_streams(device->flight);
    return flight_begin(device->flight, NULL, &e);
}

/* Loads the entry with this number. Returns whether the ring still contains the entry, and the
 * entry is not known to have finished. */
static bool unfinished(Flight *f, int64_t n, FlightEntry *entry)
{
    return slot_load(slot_of(f, n), entry) && entry->n == n && entry->finished == 0;
}

static void finish(Flight *f, const FlightEntry *e, double now)
{
    if (f->asynchronous && e->stream != FLIGHT_HOST) return;
    slot_finish(slot_of(f, e->n), now);
}

void flight_end(Flight *f, int64_t n)
{
    FlightEntry e;
    if (n > 0 && unfinished(f, n, &e)) finish(f, &e, seconds_now());
}

void flight_end_from(Flight *f, int64_t first, FlightKind kind)
{
    if (f == NULL || first <= 0) return;
    double now = seconds_now();
    int64_t last = atomic_load_explicit(&f->issued, memory_order_relaxed);
    int64_t kept = last - FLIGHT_ENTRIES + 1;
    FlightEntry e;
    for (int64_t n = first > kept ? first : kept; n <= last; n++)
        if (unfinished(f, n, &e) && e.kind == kind) finish(f, &e, now);
}

int64_t flight_work_begin(Flight *f, FlightWork work)
{
    FlightEntry e;
    FlightEntry what = plain(FLIGHT_WORK, work, FLIGHT_NO_DTYPE, 0);
    int64_t n = flight_begin(f, NULL, &what);
    if (n == 0) return 0;
    CHECK(f->works < FLIGHT_OPEN, "%d works inside each other", f->works);
    if (unfinished(f, n, &e)) slot_store(&f->work[f->works], &e);
    f->works++;
    return n;
}

void flight_work_end(Flight *f, int64_t n)
{
    if (n == 0) return;
    f->works--;
    atomic_store_explicit(&f->work[f->works].word[0], 0, memory_order_release);
    flight_end(f, n);
}

void flight_hide(Flight *f)
{
    if (f) f->hidden++;
}

void flight_show(Flight *f)
{
    if (f) f->hidden--;
}

/* ---- groups and messages --------------------------------------------------------------------- */

static bool same_group(const GraphGroup *a, const GraphGroup *b)
{
    return a->size == b->size && a->rank == b->rank && a->first == b->first &&
           a->stride == b->stride && strcmp(a->name, b->name) == 0;
}

int flight_group(Flight *f, const GraphGroup *group)
{
    if (f == NULL) return -1;
    int n = atomic_load_explicit(&f->groups, memory_order_relaxed);
    for (int g = 0; g < n; g++)
        if (same_group(&f->group[g], group)) return g;
    if (n == FLIGHT_GROUPS) return -1;
    f->group[n] = *group;
    atomic_store_explicit(&f->groups, n + 1, memory_order_release);
    return n;
}

int64_t flight_message(Flight *f, int group, int peer, bool send)
{
    if (f == NULL || group < 0) return -1;
    int64_t key = 1 + ((((int64_t)group << 32) | peer) * 2 + send);
    uint64_t hash = ((uint64_t)key * 0x9E3779B97F4A7C15u) >> 32;
    for (uint64_t i = 0; i < PAIRS; i++) {
        Pair *pair = &f->pair[(hash + i) & (PAIRS - 1)];
        if (pair->key == 0) pair->key = key;
        if (pair->key == key) return ++pair->count;
    }
    return -1;
}
