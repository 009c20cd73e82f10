/* device.h -- the interface of a compute device: memory, copies, streams and events. Each backend
 * (CPU, CUDA) implements it with a table of functions.
 *
 * A program need not contain every backend: backend.c finds those that are linked by weak symbols.
 * Code above this interface does not depend on which backend runs. On the CPU, device memory is
 * host memory, every call finishes before it returns, and events only record the time.
 *
 * Each rank has its own Device, which only the thread that opened it may use; ranks may share one
 * GPU. Work on one stream runs in order. Work on different streams, of one rank or of several, is
 * ordered only by events. */
#ifndef MODEL_CORE_DEVICE_H
#define MODEL_CORE_DEVICE_H

#include "model/core/arena.h"
#include "model/core/device_facts.h"
#include "model/core/kinds.h"
#include "model/core/pool.h"
#include "model/core/tensor.h"

/* The advice that ends an error message about a device whose memory is full. */
#define MEMORY_ADVICE "lower train_micro_batch_size_per_gpu or the model's size"

struct OpTable;  /* defined in model/kernels/ops.h */
struct Profile;  /* defined in model/kernels/ops.h */
struct Flight;   /* defined in model/core/flight.h */
struct Recorder; /* defined in model/core/recorder.h */
typedef struct Device Device;

/* An ordered queue of work. On the CPU `impl` is NULL, because each call finishes before it
 * returns. */
typedef struct {
    void *impl;
} Stream;

/* A point in a stream's work that another stream or the host can wait for. Initialise it with {0};
 * the first device_event_record creates it. */
typedef struct {
    void *impl;
    double seconds; /* CPU only: the time at which it was recorded */
    bool timed;     /* it was created by device_event_record_timed */
    /* With a recorder or a flight recorder: the stream on which the event was recorded
     * (GRAPH_COMPUTE ...). With a recorder also: how many nodes had been put on that stream by then
     * (Recorder.issued). */
    int stream;
    int64_t point;
} Event;

typedef struct {
    int threads;     /* size of the thread pool; 0: cores of the process divided by local_ranks */
    int local_ranks; /* number of ranks on this machine that share its cores */
    int index; /* index of this rank among the local ranks; CUDA uses GPU (index mod GPU count) */
    CpuLevel level;
    BlasChoice blas;
    bool tf32; /* CUDA: f32 matrix products may round their inputs to TF32 */
    /* CUDA: attention uses the kernels for Hopper wherever they support the operands. With this
     * option the device opens only on a GPU of compute capability 9.0, in a program that has these
     * kernels. */
    bool hopper_attention;
    size_t scratch; /* CUDA: bytes of scratch for one op; larger ops work in chunks. 0: default */
} DeviceOptions;

typedef struct Backend {
    const char *name; /* for example "cpu" */
    Place place;      /* where device memory is: PLACE_HOST if it is host memory */
    /* Returns whether the device and everything that `open` needs are present. Takes no device
     * memory and starts nothing on the device. Returns false and writes an error message to err, as
     * `open` does. NULL: always usable. */
    bool (*usable)(Device *device, char *err, size_t n);
    /* Returns how many devices of this kind the process can see; 0 if none. NULL: one. */
    int (*count)(void);
    /* Returns the properties of the device with this index; all 0 if the driver does not answer.
     * Takes no device memory and starts nothing on the device. NULL: device memory is host
     * memory. */
    DeviceFacts (*facts)(int index);
    /* Opens the device. Returns false and sets err if it cannot (for example a missing library or
     * CPU level). If the device exists but cannot be used, the message is in device->trouble as
     * well. */
    bool (*open)(Device *device, const DeviceOptions *options, char *err, size_t n);
    void (*close)(Device *device);
    void *(*alloc)(Device *device, size_t bytes); /* returns zeroed memory; NULL on failure */
    void (*release)(Device *device, void *p, size_t bytes);
    /* Copies src to dst, which have the same shape and dtype. Each may be on the host or the
     * device. */
    void (*copy)(Device *device, Stream stream, Tensor dst, Tensor src);
    void (*event_record)(Device *device, Event *event, Stream stream);
    /* Makes work that is queued on the stream from now on wait for the event's latest record. The
     * host does not wait. Another device of this backend may have recorded the event. */
    void (*event_wait)(Device *device, Event *event, Stream stream);
    bool (*event_reached)(Device *device, Event *event); /* returns at once */
    void (*event_synchronize)(Device *device, Event *event);
    double (*event_seconds)(Device *device, Event *from, Event *to);
    void (*event_destroy)(Device *device, Event *event);
    /* Stores `value` in *word, which is page-locked host memory, when the stream has finished the
     * work that is queued on it. The host does not wait. NULL: calls are complete when they
     * return. */
    void (*mark)(Device *device, Stream stream, int64_t *word, int64_t value);
    /* Begin and end a named range on the host's time line in a profiler; called around every op.
     * NULL: no profiler is supported. */
    void (*range_begin)(const char *name);
    void (*range_end)(void);
    /* Returns page-locked memory that is not initialised; NULL on failure. */
    void *(*host_alloc)(Device *device, size_t bytes);
    void (*host_release)(Device *device, void *p);
    void (*synchronize)(Device *device);
    /* Reports free and total bytes of device memory. NULL if device memory is host memory. */
    void (*memory)(Device *device, size_t *available, size_t *total);
    /* For tests: returns the number of matrix product kinds (shape, layout, types, epilogue,
     * alignment) whose chosen algorithm is cached. A full cache is emptied. NULL: nothing is
     * cached. */
    int64_t (*plans)(const Device *device);
    const char *(*describe)(const Device *device, char *buf,
                            size_t n); /* for example "avx512, OpenBLAS 0.3.21, 2 threads" */
    /* Writes the bus address of the device with this index, such as "0000:17:00.0", to buf and
     * returns buf. No two devices have the same address. NULL: no bus address. */
    const char *(*bus_id)(int index, char *buf, size_t n);
    /* Returns whether device `index` can access the memory of device `peer` directly (peer to
     * peer). NULL: there are no peers. */
    bool (*sees)(int index, int peer);
    /* Makes this device the current one for the calling thread, as cudaSetDevice does. Needed in
     * threads that did not open the device. NULL: nothing to select. */
    void (*enter)(const Device *device);
} Backend;

struct Device {
    const Backend *backend;
    const struct OpTable *ops,
        /* Ops that compute f64 in double; NULL if the backend has none. */
        *ops_f64;
    Pool *pool; /* threads for CPU ops; on a GPU the data loader's host threads */
    /* Ops, copies and events of a Device run on `compute`. device_on returns a view that uses one
     * of the other streams: `copy` for copies that overlap with the step, `comm` for collectives on
     * whole weights and gradients, `p2p` for sends between pipeline stages, `tp`, which has the
     * highest priority, for sums inside a layer, and `update` for updates of optimizer states in
     * host memory. */
    Stream compute, copy, comm, p2p, tp, update;
    bool view; /* true if device_on made it */
    /* Set while other ranks' communication may be under way. Allocating or releasing memory could
     * then wait for a rank that waits for this one, so an attempt ends the program with a failed
     * CHECK. */
    bool fixed;
    /* Messages that device_warn prints; "" if there is nothing to print. */
    char trouble[512];         /* why "auto" could not use a better device */
    char lacking[384];         /* a missing library and its effect, for example OpenBLAS */
    struct Profile *profile;   /* seconds and calls per op while profiling, else NULL */
    struct Recorder *recorder; /* receives every op, copy, event and transfer; NULL: none */
    struct Flight *flight; /* flight recorder, which keeps the most recent of them; NULL: none */
    void *impl;
    int index; /* number of the GPU */
    /* True: op_attention_backward also computes the gradients of the biases of q, k and v, while it
     * has dq, dk and dv in registers. False: the linear layer computes them more cheaply, together
     * with its weight gradient. Set by the backend. */
    bool attention_sums_biases;
    /* How often the host has waited for the device, and how often it has allocated device memory,
     * since the device was opened. A training step does neither; tests compare the counts before
     * and after a step. Waiting for an event that is already reached is not counted. */
    int64_t waits, allocations;
    size_t held;      /* bytes from device_alloc that are not yet released */
    size_t host_held; /* bytes from device_host_alloc that are not yet released */
};

/* Opens the backend called `name` ("cpu", "cuda"; "auto": the best one that is linked and usable).
 * With "auto", device->trouble names a better device that is present but unusable, and the reason.
 * Returns false and sets err; the same message is in device->trouble, unless the device is simply
 * not there. */
bool device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                 size_t n);
/* Returns the backend that device_open(name) would try first, or NULL if none is usable. Opens
 * nothing. device_open may still choose another one with "auto", if the first fails to open. */
const Backend *device_choice(const char *name);
/* The result of device_survey. */
typedef struct {
    const Backend *choice; /* what device_choice returns; NULL: no backend is usable */
    int count;             /* devices of that backend that the process can see */
} DeviceSurvey;
/* Returns the result of device_choice(name) and the number of devices. A child process that ends at
 * once finds out both, so that the calling process does not use the device's library: a process
 * that has used CUDA cannot fork children that use it.
 *
 * The first result for a name is kept. The result for "auto" also serves for the name of the
 * backend that "auto" has chosen. The program ends if the child cannot be started, ends without an
 * answer, or does not answer within two minutes. */
DeviceSurvey device_survey(const char *name);
/* For tests: sets the child's time limit in seconds. */
void device_survey_set_limit(double seconds);
/* Returns what holds for each device of device_choice(name) that `ranks` ranks will open: the
 * smallest capability and the smallest memory among them. The same child process finds it out. If
 * there are more ranks than devices, the ranks share them, and `bytes` is the share of one rank.
 * Returns all 0 if device memory is host memory, or if no device is usable. */
DeviceFacts device_survey_facts(const char *name, int64_t ranks);
/* Logs device->trouble and device->lacking as warnings if they are not empty. */
void device_warn(const Device *device);
void device_close(Device *device);
/* Returns a view of the device in which `stream` is the compute stream: ops, copies and events
 * given to the view run there. The view is valid while the device is open. It can only queue work
 * and query events. The host must wait and allocate through the device itself, which counts both.
 * Scratch memory belongs to the device's own compute stream. On other streams only op_fill,
 * op_copy, op_add, op_sum, op_maximum, op_adamw and op_sgd may run, because they need no scratch.
 * (op_sum and op_maximum need it for more than 64 tensors, and then may not run there.) Ops on
 * other streams are not profiled, because the profile's seconds must add up to the compute stream's
 * time. */
static inline Device device_on(const Device *device, Stream stream)
{
    Device view = *device;
    view.view = true;
    view.compute = stream;
    if (stream.impl != device->compute.impl) view.profile = NULL;
    return view;
}
/* Allocates zeroed device memory for an arena. If that fails, ends the program with EXIT_NO_MEMORY
 * and names `what` in the message. Never called inside a training step. */
void *device_alloc(Device *device, size_t bytes, const char *what);
void device_release(Device *device, void *p, size_t bytes);
/* Returns an arena over device memory. Its tensors carry the device's place. */
static inline Arena device_arena(const Device *device, void *base, size_t size)
{
    Arena arena = arena_over(base, size);
    arena.place = device->backend->place;
    return arena;
}
/* Copies src to dst on the compute stream. Each may be on the host or the device. After a copy to
 * the host the caller must synchronise before it reads dst. */
void device_copy(Device *device, Tensor dst, Tensor src);
/* Copies a struct of 64-bit fields, `bytes` bytes in all, from src to dst on the compute stream. */
void device_copy_words(Device *device, void *dst, const void *src, size_t bytes);
void device_synchronize(Device *device);

/* Records the event at the end of the work that is now queued on the compute stream. */
void device_event_record(Device *device, Event *event);
/* Like device_event_record, but for an event whose time device_event_seconds will read. On GPUs a
 * time stamp keeps the work before it from overlapping with the work after it, so this is used only
 * to measure times. The first record of an event decides whether the event has times. */
void device_event_record_timed(Device *device, Event *event);
/* Makes work that is queued on the compute stream from now on wait for the event's latest record.
 * The host does not wait. An event that was never recorded is ignored. Another rank's device of the
 * same backend may have recorded the event; the caller must ensure that the record is made
 * first. */
void device_event_wait(Device *device, Event *event);
/* Returns whether the device has finished all work before the event; true if the event was never
 * recorded. Never waits. */
bool device_event_reached(Device *device, Event *event);
/* Makes the host wait until the device has finished all work before the event. Returns at once if
 * the event was never recorded. */
void device_event_synchronize(Device *device, Event *event);
/* Returns the device time between two events in seconds, both recorded by
 * device_event_record_timed. The host waits for the later one. */
double device_event_seconds(Device *device, Event *from, Event *to);
void device_event_destroy(Device *device, Event *event);

/* Allocates page-locked host memory, which the device copies to and from while the host continues,
 * and which is not initialised. If that fails, ends the program with EXIT_NO_MEMORY and names
 * `what` in the message. The source of a copy must not be changed until the stream has finished the
 * copy. */
void *device_host_alloc(Device *device, size_t bytes, const char *what);
void device_host_release(Device *device, void *p, size_t bytes);
/* Reports free and total bytes of device memory. Returns false if device memory is host memory. */
bool device_memory(Device *device, size_t *available, size_t *total);
const char *device_describe(const Device *device, char *buf, size_t n);

/* Returns how many devices of this backend the process can see. */
int device_count(const Device *device);
/* Calls Backend.bus_id; writes "" if the device has no bus address. Returns buf. */
const char *device_bus_id(const Device *device, char *buf, size_t n);
/* Calls Backend.enter, which makes the device current for the calling thread. */
void device_enter(const Device *device);

/* Returns the i-th linked backend, best first, or NULL past the last. */
const Backend *backend_linked(int i);

#endif
