/* recorder.h -- records as a Graph (graph.h) what the host queues on the streams of its device.
 *
 * The device calls of this folder, the op_ functions and the communicators report here what they
 * are given, on every backend. So a real device, a counted device and an emulated device give the
 * same graph for the same calls. Without a recorder a call costs one test of a pointer. A recorder
 * belongs to one device, hence to one rank and its thread.
 *
 * Views of a device (device_on) keep the recorder that the device has when they are made. So it is
 * attached as soon as the device is open; recording may start and stop at any later time. */
#ifndef MODEL_CORE_RECORDER_H
#define MODEL_CORE_RECORDER_H

#include "model/core/device.h"
#include "model/core/graph.h"

typedef struct Recorder {
    Graph *graph;                      /* NULL: not recording */
    const void *stream[GRAPH_STREAMS]; /* Stream.impl of the device's streams */
    /* issued: number of nodes that have been put on each stream since the recorder was attached.
     * before: what `issued` was when `graph` was begun. Event.point stores `issued`, so a
     * comparison with `before` shows whether the event was recorded before the graph began. */
    int64_t issued[GRAPH_STREAMS], before[GRAPH_STREAMS];
    int64_t action; /* see GraphNode.action */
    int hidden; /* > 0: a communicator is carrying out a call, and its own work is not recorded */
} Recorder;

/* Attaches the recorder to a device that was just opened. The recorder must outlive the device's
 * use. */
void recorder_attach(Recorder *recorder, Device *device);
/* Begins to append nodes to the graph, which must be empty ({0} or cleared). A wait for an event
 * that was recorded before this call adds no node. recorder_stop ends the recording. */
void recorder_start(Recorder *recorder, Graph *graph);
void recorder_stop(Recorder *recorder);
/* Sets the action of the schedule that issues the following nodes; -1: none. */
static inline void recorder_action(const Device *device, int64_t action)
{
    if (device->recorder) device->recorder->action = action;
}

/* ---- for the device calls and ops; all require device->recorder ------------------------------ */

/* Returns whether calls are recorded now. */
static inline bool recorder_is_on(const Recorder *recorder)
{
    return recorder && recorder->graph && recorder->hidden == 0;
}
/* Adds an op: fills in the kind, the stream and the other fields that all nodes have. */
void recorder_op(Device *device, const GraphNode *op);
void recorder_copy(Device *device, Tensor x);
/* Stores in the event the stream on which it is recorded, and the point of that stream. */
void recorder_event(Device *device, Event *event);
void recorder_wait(Device *device, const Event *event);

/* ---- for comm.c ------------------------------------------------------------------------------ */

/* The calls between comm_group_begin and comm_group_end of one communicator; {0} before the first
 * group. The recorder is that of the device of the first call. */
enum { RECORDED_MESSAGES = 8 };
typedef struct {
    Recorder *recorder; /* NULL: no call of the group is recorded */
    bool open;          /* between comm_group_begin and comm_group_end */
    int collectives, messages;
    GraphNode node; /* the node of the messages */
    GraphMessage message[RECORDED_MESSAGES];
} RecordedCalls;

/* Adds a collective of `group` that runs on device `on`; x is the whole tensor. In a group of
 * calls, all collectives but the first are `joined`. Does nothing if `on` is NULL (a host call) or
 * has no recorder. */
void recorder_collective(RecordedCalls *calls, Device *on, const GraphGroup *group, int verb,
                         Tensor x);
/* Adds a message to or from rank `peer` of the group: a separate node or, in a group of calls, part
 * of the one node that recorder_group_end adds. All messages of a group of calls are on the same
 * stream. */
void recorder_message(RecordedCalls *calls, Device *on, const GraphGroup *group, bool send,
                      int peer, Tensor x);
void recorder_group_begin(RecordedCalls *calls);
void recorder_group_end(RecordedCalls *calls);

/* Between recorder_hide and recorder_show nothing is recorded. comm.c encloses every call of a
 * transport in them, because a transport may copy, sum and wait to carry out a call that is already
 * recorded. comm.c passes the recorder of `on` or, in comm_group_end, calls->recorder. NULL is
 * ignored. */
static inline void recorder_hide(Recorder *recorder)
{
    if (recorder) recorder->hidden++;
}
static inline void recorder_show(Recorder *recorder)
{
    if (recorder) recorder->hidden--;
}

#endif
