/* device.h -- where a rank computes: memory, copies and ordering, behind a table of functions per
 * backend.
 *
 * A backend that is not linked does not exist (backend.c finds the others by weak symbols); nothing
 * above this file asks which one runs. On the CPU device memory is host memory, streams are
 * immediate and events are nothing.
 *
 * A rank has a Device of its own, and only the thread that opened it uses it; ranks may share one
 * GPU. Work of one stream is done in order; between streams, and between the streams of several
 * ranks, only events order it. */
#ifndef MODEL_CORE_DEVICE_H
#define MODEL_CORE_DEVICE_H

#include "model/core/arena.h"
#include "model/core/kinds.h"
#include "model/core/pool.h"
#include "model/core/tensor.h"

/* What to do about a device whose memory is full: the end of a sentence. */
#define MEMORY_ADVICE "lower train_micro_batch_size_per_gpu or the model's size"

struct OpTable; /* model/kernels/ops.h */
struct Profile; /* model/kernels/ops.h */
typedef struct Device Device;

/* An ordered queue of work. The CPU finishes each call before it returns, so `impl` is NULL there.
 */
typedef struct {
    void *impl;
} Stream;

/* A point in a stream's work, which another may wait for. Begins as {0}; the first
 * device_event_record makes it. */
typedef struct {
    void *impl;
    double seconds; /* on the CPU, whose calls finish before they return: when it was recorded */
} Event;

typedef struct {
    int threads;     /* of the pool; 0: the cores this process may use / local_ranks */
    int local_ranks; /* ranks on this machine that share its cores */
    int index;       /* this one's number among them; cuda: it computes on the GPU of this number
                        modulo how many there are */
    CpuLevel level;
    BlasChoice blas;
    bool tf32;      /* cuda: products of f32 may round their factors to tf32 */
    size_t scratch; /* cuda: bytes of scratch that an op may use; an op that needs more works in
                       portions. 0: the backend's own choice */
} DeviceOptions;

typedef struct Backend {
    const char *name; /* "cpu" */
    Place place;      /* of device memory: PLACE_HOST where it is the host's own */
    /* Whether the device is there, with everything that `open` will look for. Takes none of its
     * memory and starts nothing on it. False with a sentence, as `open`. NULL: always there. */
    bool (*usable)(Device *device, char *err, size_t n);
    /* How many of these devices the process sees: 0 where there is none. NULL: one. */
    int (*count)(void);
    /* Opens the device; false with a sentence when it cannot (no such level, no library). If the
     * device is there but cannot be used, the sentence is in device->trouble as well. */
    bool (*open)(Device *device, const DeviceOptions *options, char *err, size_t n);
    void (*close)(Device *device);
    void *(*alloc)(Device *device, size_t bytes); /* zeroed; NULL when refused */
    void (*release)(Device *device, void *p, size_t bytes);
    void (*copy)(Device *device, Stream stream, Tensor dst,
                 Tensor src); /* equal shapes and dtypes, any places */
    void (*event_record)(Device *device, Event *event, Stream stream);
    /* Work given to the stream from here on begins once the event, as it was last recorded, is
     * reached; the host goes on. Another device of this backend may have recorded it. */
    void (*event_wait)(Device *device, Event *event, Stream stream);
    bool (*event_reached)(Device *device, Event *event); /* never waits */
    void (*event_synchronize)(Device *device, Event *event);
    double (*event_seconds)(Device *device, Event *from, Event *to);
    void (*event_destroy)(Device *device, Event *event);
    /* A named range of the host's time line for a profiler, around every op; NULL without one. */
    void (*range_begin)(const char *name);
    void (*range_end)(void);
    void *(*host_alloc)(Device *device, size_t bytes); /* page-locked; NULL when refused */
    void (*host_release)(Device *device, void *p);
    void (*synchronize)(Device *device);
    /* Bytes of device memory, free and in all; NULL where it is the host's own. */
    void (*memory)(Device *device, size_t *available, size_t *total);
    /* For tests: for how many kinds of matrix product (shape, layout, types, epilogue, alignment)
     * an algorithm is remembered; a full table is emptied and begins anew. NULL: none ever is. */
    int64_t (*plans)(const Device *device);
    const char *(*describe)(const Device *device, char *buf,
                            size_t n); /* "avx512, OpenBLAS 0.3.21, 2 threads" */
    /* Where the device of this number sits on the machine's bus, "0000:17:00.0": no two have one
     * place. Returns buf. NULL: nowhere. */
    const char *(*bus_id)(int index, char *buf, size_t n);
    /* Whether that device reaches the memory of another on a way of their own. NULL: there is no
     * other. */
    bool (*sees)(int index, int peer);
    /* What the calling thread asks of the device's libraries from here on is asked of this one: for
     * a thread that did not open it. NULL: there is nothing to choose. */
    void (*enter)(const Device *device);
} Backend;

struct Device {
    const Backend *backend;
    const struct OpTable *ops,
        *ops_f64; /* f64 storage computes in double; NULL where a device has no double path */
    Pool *pool;   /* the CPU's threads; on a GPU those of the loader's host side */
    /* Ops, copies and events of a Device run on `compute`; device_on gives a view that runs them on
     * another: copies beside the step, collectives of whole weights and gradients, exchanges
     * between stages, and sums inside a layer, which go before all else. */
    Stream compute, copy, comm, p2p, tp;
    bool view; /* made by device_on */
    /* Sentences for device_warn; "" when there is nothing to say. */
    char trouble[512];       /* the better device that "auto" found and cannot use, and why */
    char lacking[384];       /* what this device does without, and why: no OpenBLAS, say */
    struct Profile *profile; /* seconds and calls per op when somebody measures; else NULL */
    void *impl;
    int index; /* of the GPU */
    /* How often the host has waited for the device, and asked for memory, since the device was
     * opened. A training step does neither, and tests compare the counts before and after one. A
     * call that found its event reached already did not wait. */
    int64_t waits, allocations;
    size_t held;      /* bytes of device_alloc that were not given back */
    size_t host_held; /* the same of device_host_alloc */
};

/* Opens the backend called `name` ("cpu", "cuda"; "auto": the best that is linked and present).
 * With "auto" device->trouble says which better device is there but cannot be used. False with a
 * sentence; device->trouble repeats it, unless the device is simply not there. */
bool device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                 size_t n);
/* The backend that device_open(name) would try first; NULL: none is usable. Opens nothing. If that
 * backend then fails to open (a library that does not start), "auto" goes on to the next. */
const Backend *device_choice(const char *name);
/* Warns of device->trouble and device->lacking, where there is any. */
void device_warn(const Device *device);
void device_close(Device *device);
/* The device with `stream` for its compute stream: ops, copies and events that are given to the
 * view run there. Valid as long as the device is open. A view serves for giving work and for asking
 * whether an event is reached; the host neither waits nor allocates through it, since the counts
 * below belong to the device. Streams do not share scratch: op_fill, op_copy, op_add, op_sum and
 * op_maximum need none and run anywhere, an op that needs scratch on the device's own compute
 * stream alone. Ops on another stream are in no profile, whose seconds add up to the compute
 * stream's. */
static inline Device device_on(const Device *device, Stream stream)
{
    Device view = *device;
    view.view = true;
    view.compute = stream;
    if (stream.impl != device->compute.impl) view.profile = NULL;
    return view;
}
/* Zeroed device memory for an arena; ends the run with EXIT_NO_MEMORY, naming `what`. Never called
 * inside a step. */
void *device_alloc(Device *device, size_t bytes, const char *what);
void device_release(Device *device, void *p, size_t bytes);
/* An arena over device memory, whose tensors say where they lie. */
static inline Arena device_arena(const Device *device, void *base, size_t size)
{
    Arena arena = arena_over(base, size);
    arena.place = device->backend->place;
    return arena;
}
/* Copies on the compute stream; host -> device, device -> host (the caller synchronises before
 * reading). */
void device_copy(Device *device, Tensor dst, Tensor src);
/* The same for a struct of 64-bit fields: `bytes` from src to dst. */
void device_copy_words(Device *device, void *dst, const void *src, size_t bytes);
void device_synchronize(Device *device);

/* Marks what the compute stream has been given so far. */
void device_event_record(Device *device, Event *event);
/* Work given to the compute stream from here on begins once the event, as it was last recorded, is
 * reached; the host goes on. An event never recorded holds up nobody. The event may be another
 * rank's, recorded by its device of the same backend; that the record comes first is for the caller
 * to see to. */
void device_event_wait(Device *device, Event *event);
/* Whether the device has done all work before the mark; true for an event never recorded. Never
 * waits. */
bool device_event_reached(Device *device, Event *event);
/* The host waits until the device has done all work before the mark; not at all for an event never
 * recorded. */
void device_event_synchronize(Device *device, Event *event);
/* Seconds of the device's time between two marks; the host waits for the later one. */
double device_event_seconds(Device *device, Event *from, Event *to);
void device_event_destroy(Device *device, Event *event);

/* Page-locked host memory, from which and to which the device copies while the host goes on; ends
 * the run with EXIT_NO_MEMORY, naming `what`. The source of a copy may be changed only once the
 * stream has done the copy. */
void *device_host_alloc(Device *device, size_t bytes, const char *what);
void device_host_release(Device *device, void *p, size_t bytes);
/* Bytes of device memory, free now and in all. False where it is the host's own. */
bool device_memory(Device *device, size_t *available, size_t *total);
const char *device_describe(const Device *device, char *buf, size_t n);

/* How many devices of the open one's kind the process sees. */
int device_count(const Device *device);
/* See Backend.bus_id: "" for a device that sits nowhere. Returns buf. */
const char *device_bus_id(const Device *device, char *buf, size_t n);
/* See Backend.enter. */
void device_enter(const Device *device);

/* The i-th linked backend, best first; NULL past the last. */
const Backend *backend_linked(int i);

#endif
