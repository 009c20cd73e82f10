/* recorder.c -- see recorder.h. Every node passes through add(). */
#include "model/core/recorder.h"

#include "model/core/check.h"

void recorder_attach(Recorder *r, Device *device)
{
    CHECK(!device->view && device->recorder == NULL, "a recorder of a view, or a second one (%d)",
          device->view);
    *r = (Recorder){.stream = {device->compute.impl, device->copy.impl, device->comm.impl,
                               device->p2p.impl, device->tp.impl, device->update.impl},
                    .action = -1};
    device->recorder = r;
}

void recorder_start(Recorder *r, Graph *graph)
{
    CHECK(r->graph == NULL, "a graph of %lld nodes is being recorded", (long long)r->graph->issued);
    CHECK(graph->issued == 0, "a graph of %lld nodes is recorded again", (long long)graph->issued);
    r->graph = graph;
    r->action = -1;
    for (int s = 0; s < GRAPH_STREAMS; s++)
        r->before[s] = r->issued[s];
}

void recorder_stop(Recorder *r)
{
    r->graph = NULL;
}

/* Returns the number of the stream. If all streams are the same one, as on the CPU, returns the
 * first number. */
static int stream_of(const Recorder *r, Stream stream)
{
    int s = 0;
    while (s < GRAPH_STREAMS && r->stream[s] != stream.impl)
        s++;
    CHECK(s < GRAPH_STREAMS, "a stream that the device had not when the recorder was attached (%p)",
          stream.impl);
    return s;
}

/* Returns a node on the device's compute stream, with the fields that all kinds of nodes have. */
static GraphNode node_on(const Device *on, NodeKind kind)
{
    const Recorder *r = on->recorder;
    return (GraphNode){.kind = kind,
                       .stream = stream_of(r, on->compute),
                       .wait_stream = -1,
                       .group = -1,
                       .action = r->action};
}

static void add(Recorder *r, const GraphNode *node)
{
    graph_add(r->graph, node);
    r->issued[node->stream]++;
}

void recorder_op(Device *device, const GraphNode *op)
{
    if (!recorder_is_on(device->recorder)) return;
    GraphNode node = node_on(device, NODE_OP);
    node.code = op->code;
    node.dtype = op->dtype;
    node.m = op->m;
    node.n = op->n;
    node.k = op->k;
    node.flops = op->flops;
    node.bytes = op->bytes;
    node.host_bytes = op->host_bytes;
    add(device->recorder, &node);
}

void recorder_copy(Device *device, Tensor x)
{
    if (!recorder_is_on(device->recorder)) return;
    GraphNode node = node_on(device, NODE_COPY);
    node.dtype = x.dtype;
    node.bytes = 2 * (int64_t)tensor_bytes(x);
    add(device->recorder, &node);
}

void recorder_event(Device *device, Event *event)
{
    const Recorder *r = device->recorder;
    event->stream = stream_of(r, device->compute);
    event->point = r->issued[event->stream];
}

void recorder_wait(Device *device, const Event *event)
{
    Recorder *r = device->recorder;
    if (!recorder_is_on(r)) return;
    GraphNode node = node_on(device, NODE_WAIT);
    node.wait_stream = event->stream;
    node.wait_point = event->point - r->before[event->stream];
    /* A wait adds no node if it is for a point before the graph began, or for a point of its own
     * stream, which runs in order anyway. */
    if (node.wait_point > 0 && node.wait_stream != node.stream) add(r, &node);
}

/* ---- communicators --------------------------------------------------------------------------- */

void recorder_collective(RecordedCalls *calls, Device *on, const GraphGroup *group, int verb,
                         Tensor x)
{
    if (on == NULL || !recorder_is_on(on->recorder)) return;
    GraphNode node = node_on(on, NODE_COLLECTIVE);
    node.code = verb;
    node.dtype = x.dtype;
    node.bytes = (int64_t)tensor_bytes(x);
    node.group = graph_group(on->recorder->graph, group);
    node.joined = calls->open && calls->collectives > 0;
    calls->recorder = on->recorder;
    calls->collectives++;
    add(on->recorder, &node);
}

static void add_messages(RecordedCalls *calls)
{
    Graph *graph = calls->recorder->graph;
    calls->node.messages = calls->messages;
    calls->node.message = graph_add_messages(graph, calls->message, calls->messages);
    add(calls->recorder, &calls->node);
    calls->messages = 0;
}

void recorder_message(RecordedCalls *calls, Device *on, const GraphGroup *group, bool send,
                      int peer, Tensor x)
{
    if (on == NULL || !recorder_is_on(on->recorder)) return;
    int64_t bytes = (int64_t)tensor_bytes(x);
    CHECK(calls->messages < RECORDED_MESSAGES, "more than %d messages in a group of calls",
          RECORDED_MESSAGES);
    calls->recorder = on->recorder;
    if (calls->messages == 0) {
        calls->node = node_on(on, NODE_MESSAGES);
        calls->node.dtype = x.dtype;
        calls->node.group = graph_group(on->recorder->graph, group);
    }
    CHECK(calls->node.stream == stream_of(on->recorder, on->compute),
          "messages of group %s on the streams %s and %s", group->name,
          graph_stream_name[calls->node.stream],
          graph_stream_name[stream_of(on->recorder, on->compute)]);
    calls->message[calls->messages++] =
        (GraphMessage){.peer = peer, .send = send, .dtype = x.dtype, .bytes = bytes};
    calls->node.bytes += bytes;
    if (!calls->open) add_messages(calls);
}

void recorder_group_begin(RecordedCalls *calls)
{
    *calls = (RecordedCalls){.open = true};
}

void recorder_group_end(RecordedCalls *calls)
{
    if (calls->messages > 0) add_messages(calls);
    calls->open = false;
}
