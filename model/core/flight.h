/* flight.h -- the flight recorder: it keeps the calls and tasks that a rank has issued most
 * recently, and which of them have finished, to show where and why a run hangs.
 *
 * Each rank has one Flight. Only the rank's own thread writes it. The device calls, the op_
 * functions and the communicators record what they are given. The trainer records its step, its
 * micro-batch, its action (the part of the step), the unit of parameters in use (for example those
 * of one block: model/param/param.h), and other tasks such as a save. The last FLIGHT_ENTRIES
 * entries are kept in a ring buffer that is allocated once. Recording never waits, and no result of
 * training depends on it.
 *
 * Any other thread may read a Flight at any time, also while the rank hangs (flight_snapshot). An
 * entry that the rank overwrites meanwhile is left out.
 *
 * On a device whose calls are complete when they return, such as the CPU, an entry is finished when
 * its call returns. On other devices each stream writes a progress word to page-locked host memory
 * at the end of each action (Backend.mark): the number of the last entry that has finished.
 *
 * Codes of ops and of calls of communicators are plain numbers here, because the layers that define
 * them (ops.h, comm.h) are above this one. */
#ifndef MODEL_CORE_FLIGHT_H
#define MODEL_CORE_FLIGHT_H

#include "model/core/device.h"
#include "model/core/graph.h"

typedef struct Flight Flight;

/* FLIGHT_ENTRIES: entries of the ring, a power of two. FLIGHT_OPEN: how deep tasks (FLIGHT_WORK)
 * may be nested; a task that is still running is kept even after the ring has overwritten its
 * entry. FLIGHT_SNAPSHOT: largest number of entries in a snapshot. FLIGHT_GROUPS: number of groups
 * of ranks that entries can refer to. */
enum {
    FLIGHT_ENTRIES = 4096,
    FLIGHT_OPEN = 8,
    FLIGHT_SNAPSHOT = FLIGHT_ENTRIES + FLIGHT_OPEN,
    FLIGHT_GROUPS = 32
};

typedef enum {
    FLIGHT_OP,         /* one call of an op_ function */
    FLIGHT_COPY,       /* a copy on the device, or between device and host */
    FLIGHT_COLLECTIVE, /* a collective of a group, a barrier or a split */
    FLIGHT_EXCHANGE,   /* one message to or from another rank */
    FLIGHT_WAIT,       /* the host or a stream waits for a stream; never on the CPU */
    FLIGHT_WORK,       /* a task: the rank's thread does something else that may take long */
    FLIGHT_KINDS
} FlightKind;
extern const char *const flight_kind_name[FLIGHT_KINDS];

/* Tasks (FLIGHT_WORK) of the rank's thread: work between steps, and waits within steps. */
typedef enum {
    FLIGHT_DATA,       /* waits for the data loader */
    FLIGHT_SAVE,       /* saves a checkpoint */
    FLIGHT_EVALUATION, /* evaluates */
    FLIGHT_SAMPLE,     /* draws a sample of text */
    FLIGHT_CONSOLE,    /* writes to the terminal or to the log */
    FLIGHT_DISK,       /* writes, synchronizes or reads a file */
    FLIGHT_WORKS
} FlightWork;
extern const char *const flight_work_name[FLIGHT_WORKS];

/* The part of a step that issues an entry. */
typedef enum {
    FLIGHT_BETWEEN,   /* between two steps */
    FLIGHT_BEGIN,     /* the start of a step, before its first action */
    FLIGHT_FORWARD,   /* a forward pass of some layers, an action of the schedule */
    FLIGHT_BACKWARD,  /* a backward pass of some layers, also an action */
    FLIGHT_EVALUATE,  /* a forward pass in an evaluation, also an action */
    FLIGHT_TRANSFERS, /* an exchange with other pipeline stages, also an action */
    FLIGHT_GRADIENTS, /* from the end of the last action until all gradients are final */
    FLIGHT_DECIDE,    /* computes the gradient norm and decides whether to update */
    FLIGHT_UPDATE,    /* the optimizer's update */
    FLIGHT_ACTIONS
} FlightAction;
extern const char *const flight_action_name[FLIGHT_ACTIONS];

/* Values of FlightEntry.stream: a stream of the device (GRAPH_COMPUTE ...), or FLIGHT_HOST for
 * tasks and for calls on host memory, which are complete when they return. */
enum { FLIGHT_HOST = GRAPH_STREAMS, FLIGHT_STREAMS };
extern const char *const flight_stream_name[FLIGHT_STREAMS];

/* Values of FlightEntry.code for FLIGHT_WAIT: the stream that is waited for (GRAPH_COMPUTE ...), or
 * the whole device. */
enum { FLIGHT_WHOLE_DEVICE = GRAPH_STREAMS, FLIGHT_WAITS };
extern const char *const flight_wait_name[FLIGHT_WAITS];

/* FlightEntry.dtype of entries without elements. */
enum { FLIGHT_NO_DTYPE = DTYPE_COUNT };

/* One call or task that a rank has issued. Fields that its kind does not use are -1; `elements` is
 * then 0. */
typedef struct {
    int64_t n; /* its number, from 1 on, in the order of issue */
    /* Collective: its number among the collectives of its group, which is the same on all ranks if
     * they make the same calls. Exchange: its number among the messages that this rank has sent to
     * `peer` in this group, or received from it; the peer gives the message the same number.
     * Numbers begin with 1. -1: unknown, because this rank exchanges messages with too many other
     * ranks. */
    int64_t call;
    /* Number of elements. Op: elements of the tensor that it writes. Copy, exchange: elements that
     * are moved. Collective: elements of the whole tensor. */
    int64_t elements;
    double issued; /* seconds_now() when it was issued; an exchange in a group of calls: when it was
                    * added to the group */
    /* seconds_now() when it had finished; 0: not finished. Equal to `issued` if it has finished but
     * the time is unknown, as on a GPU. */
    double finished;
    int32_t step;        /* number of the step under way, or else of the last step; from 1 on */
    int32_t micro_batch; /* its number in the step or evaluation, from 0 on */
    int32_t peer;        /* exchange: rank in the group; broadcast: the root */
    int16_t unit;        /* number of the unit of parameters that is in use (ParamTable) */
    int8_t group;        /* index in the array that flight_groups writes */
    uint8_t kind;        /* FlightKind */
    uint8_t code;        /* op: OpId; collective, exchange: CommVerb, COMM_BARRIER or COMM_SPLIT;
                          * wait: the stream, or FLIGHT_WHOLE_DEVICE; work: FlightWork; copy: 0 */
    uint8_t dtype;       /* DType, or FLIGHT_NO_DTYPE */
    uint8_t stream;      /* GRAPH_COMPUTE ... or FLIGHT_HOST */
    uint8_t action;      /* FlightAction */
} FlightEntry;

/* The point that a rank has reached in training. */
typedef struct {
    int64_t step;        /* as in FlightEntry; 0 before the first step */
    int64_t micro_batch; /* -1: none */
    FlightAction action;
} FlightPlace;

/* ---- reading, from any thread ---------------------------------------------------------------- */

/* Copies the entries that are still stored to `out`, which has room for FLIGHT_SNAPSHOT entries,
 * and returns their number. They are in ascending order of their numbers: first the running tasks
 * whose entries the ring has overwritten, then the entries of the ring. An entry that is
 * overwritten during the copy is left out. Allocates nothing, takes no lock and makes no system
 * call. */
int flight_snapshot(const Flight *flight, FlightEntry *out);
/* Returns how many entries have been issued so far: the number of the last one. */
int64_t flight_issued(const Flight *flight);
/* Returns the point that the rank has reached in training. */
FlightPlace flight_place(const Flight *flight);
/* Writes the groups that entries refer to (FlightEntry.group is the index) to `out`, which has room
 * for FLIGHT_GROUPS. Returns their number. A group has its name, its members as ranks of the world
 * (first + i * stride), and this rank's index in it. `stride` is 0 if the members are not equally
 * spaced; they are then not recorded. */
int flight_groups(const Flight *flight, GraphGroup *out);
/* Returns the name of what the entry records: "linear_forward", "all-reduce", "copy", "save" ... */
const char *flight_entry_name(const FlightEntry *entry, GraphNames names);
/* Returns the name of the entry's dtype; "" if it has none. */
const char *flight_dtype_name(const FlightEntry *entry);

/* ---- writing, by the rank's thread; if the flight is NULL, nothing is recorded --------------- */

/* Allocates an empty flight. */
Flight *flight_create(void);
/* Frees the flight. No other thread may be reading it. */
void flight_free(Flight *flight);
/* Begins to record what the device is given. The device must have just been opened and have no
 * views yet. Allocates the progress words, unless the device's calls are complete when they
 * return. */
void flight_attach(Flight *flight, Device *device);
/* Ends the recording and frees the progress words. All work of the device must have finished. */
void flight_detach(Flight *flight, Device *device);

/* Sets the rank's current step, micro-batch and action. Also makes streams write their progress
 * words as soon as they have finished the work issued so far; streams that have got no work since
 * they were last asked are left out. */
void flight_at(Flight *flight, int64_t step, int64_t micro_batch, FlightAction action);
/* Sets the micro-batch and the action, like flight_at, and keeps the current step. */
void flight_action(Flight *flight, int64_t micro_batch, FlightAction action);
/* Sets the unit of parameters that is in use; -1: none. Returns the previous one. */
int flight_unit(Flight *flight, int unit);
/* Records that the rank's thread begins a task. Returns the entry's number. Tasks may be nested. */
int64_t flight_work_begin(Flight *flight, FlightWork work);
/* Records that the task with the entry number `n` has ended. */
void flight_work_end(Flight *flight, int64_t n);

/* ---- for the device calls, ops and communicators --------------------------------------------- */

/* Adds an entry with its number, time, step, micro-batch and action; `what` has the other fields:
 * kind, code, dtype, elements, group, call, peer. `on` is the device, or a view of it, on whose
 * compute stream the call is issued; NULL: the host. Returns the entry's number, or 0 if nothing is
 * recorded; flight_end ignores 0. */
int64_t flight_begin(Flight *flight, const Device *on, const FlightEntry *what);
/* Adds an op. In this and the next three functions the device must have a flight. */
int64_t flight_op(const Device *device, int op, DType dtype, int64_t elements);
/* Adds a copy of x. */
int64_t flight_copy(const Device *device, Tensor x);
/* Adds a wait of the device's compute stream for the stream of the event, unless both are the same
 * stream or the event was never recorded. */
void flight_stream_wait(const Device *device, const Event *event);
/* Adds a wait of the host for `what`, a stream or FLIGHT_WHOLE_DEVICE. Adds nothing, and returns 0,
 * on a device whose calls are complete when they return. */
int64_t flight_host_wait(const Device *device, int what);
/* Records that the call with the entry number `n` has returned. The entry is then finished, unless
 * it is on a stream of a device that works on after a call has returned. */
void flight_end(Flight *flight, int64_t n);
/* Does the same as flight_end for all entries of `kind` from number `first` on. */
void flight_end_from(Flight *flight, int64_t first, FlightKind kind);
/* Between flight_hide and flight_show nothing is recorded. They enclose the copies, sums and waits
 * with which a transport carries out a call that is already recorded. */
void flight_hide(Flight *flight);
void flight_show(Flight *flight);
/* Returns the index of the group, which is added if it is new; -1 if there is no room. */
int flight_group(Flight *flight, const GraphGroup *group);
/* Counts one more message to rank `peer` of the group (`send`) or from it, and returns its number;
 * -1 if there is no free counter. */
int64_t flight_message(Flight *flight, int group, int peer, bool send);
/* Stores in the event the number of the stream on which it is recorded, the device's compute
 * stream. */
void flight_event(const Device *device, Event *event);

#endif
