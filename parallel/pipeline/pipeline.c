/* pipeline.c -- see pipeline.h. Actions run on the compute stream, exchanges on the p2p stream.
 * Each buffer has two events, by which one stream waits until the other has finished with it. */
#include "parallel/pipeline/pipeline.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    Tensor x;
    Event ready; /* x has been written and may be sent or read */
    Event free;  /* x has been sent or read and may be written */
    bool holds;  /* x has been written, but not yet sent or read */
} Buffer;

struct Pipeline {
    Device *dev;
    Device p2p; /* dev on its p2p stream */
    Comm *pp;
    Buffer *buffer;
    int n;
    void *memory;
    size_t bytes;
};

static void lay_out(Arena *arena, Buffer *buffer, int n, DType dtype, int64_t rows, int64_t cols)
{
    for (int i = 0; i < n; i++) {
        Tensor x = arena_tensor(arena, dtype, 2, rows, cols, 0);
        if (buffer) buffer[i].x = x;
    }
}

size_t pipeline_bytes(int buffers, DType dtype, int64_t rows, int64_t cols)
{
    /* Runs the same layout code over an arena that only measures, so the plan equals the
     * allocation. */
    Arena arena = arena_measuring();
    lay_out(&arena, NULL, buffers, dtype, rows, cols);
    return arena.peak;
}

Pipeline *pipeline_create(Device *dev, Comm *pp, int buffers, DType dtype, int64_t rows,
                          int64_t cols)
{
    if (buffers == 0) return NULL;
    Pipeline *p = must_calloc(1, sizeof *p);
    *p = (Pipeline){.dev = dev, .p2p = device_on(dev, dev->p2p), .pp = pp, .n = buffers};
    p->buffer = must_calloc((size_t)buffers, sizeof *p->buffer);
    p->bytes = pipeline_bytes(buffers, dtype, rows, cols);
    p->memory = device_alloc(dev, p->bytes, "tensors on their way between stages");
    Arena arena = device_arena(dev, p->memory, p->bytes);
    lay_out(&arena, p->buffer, buffers, dtype, rows, cols);
    /* The first record creates an event. This happens here so that it does not happen in a step. */
    for (int i = 0; i < buffers; i++) {
        device_event_record(dev, &p->buffer[i].ready);
        device_event_record(dev, &p->buffer[i].free);
    }
    return p;
}

void pipeline_destroy(Pipeline *p)
{
    if (p == NULL) return;
    for (int i = 0; i < p->n; i++) {
        device_event_destroy(p->dev, &p->buffer[i].ready);
        device_event_destroy(p->dev, &p->buffer[i].free);
    }
    device_release(p->dev, p->memory, p->bytes);
    free(p->buffer);
    free(p);
}

/* Makes a stream wait until it may read or write the buffer. Returns the buffer's tensor. */
static Tensor open_buffer(const Pipeline *p, Device *on, Buffer *b, bool reads)
{
    /* The host's order of calls must be right, too: an event only shows that a buffer was written
     * at some time, not that it was written after it was last read. */
    CHECK(b->holds == reads, "a buffer is %s %s", reads ? "read" : "written",
          reads ? "before it is written" : "before it was read");
    comm_await(p->pp, on, reads ? &b->ready : &b->free);
    return b->x;
}

/* Records that the stream has read or written the buffer. */
static void close_buffer(Device *on, Buffer *b, bool reads)
{
    device_event_record(on, reads ? &b->free : &b->ready);
    b->holds = !reads;
}

static Buffer *buffer_at(Pipeline *p, int i)
{
    CHECK(p && i < p->n, "buffer %d of %d", i, p ? p->n : 0);
    return &p->buffer[i];
}

static void run_action(Pipeline *p, const Stage *stage, const Action *action)
{
    Buffer *in = p && action->in >= 0 ? buffer_at(p, action->in) : NULL,
           *out = p && action->out >= 0 ? buffer_at(p, action->out) : NULL;
    Tensor x = in ? open_buffer(p, p->dev, in, true) : NO_TENSOR,
           y = out ? open_buffer(p, p->dev, out, false) : NO_TENSOR;
    switch (action->kind) {
    case ACT_FORWARD: stage->forward(stage->self, action, x, y); break;
    case ACT_BACKWARD: stage->backward(stage->self, action, x, y); break;
    case ACT_EVALUATE: stage->evaluate(stage->self, action, x, y); break;
    case ACT_EXCHANGE: break;
    }
    /* The buffers are released after the whole action, because only the layers know which of their
     * kernels is the last one to use x or y. */
    if (in) close_buffer(p->dev, in, true);
    if (out) close_buffer(p->dev, out, false);
}

/* Exchanges a fused group: all transfers are queued before the first one starts. */
static void exchange(Pipeline *p, const Transfer *transfer, int n)
{
    /* Sends and receives are in one group. Otherwise two stages that both send first would wait for
     * each other forever. */
    comm_group_begin(p->pp);
    for (int i = 0; i < n; i++) {
        const Transfer *t = &transfer[i];
        Tensor x = open_buffer(p, &p->p2p, buffer_at(p, t->buffer), t->send);
        if (t->send)
            comm_send(p->pp, &p->p2p, x, t->peer);
        else
            comm_receive(p->pp, &p->p2p, x, t->peer);
    }
    comm_group_end(p->pp);
    /* The buffers are released only now. Before the end of the group its transfers are not on the
     * stream, and an event recorded earlier would release the buffers before they have been sent.
     */
    for (int i = 0; i < n; i++)
        close_buffer(&p->p2p, buffer_at(p, transfer[i].buffer), transfer[i].send);
}

void pipeline_run(Pipeline *p, const Stage *stage, const Action *actions, int64_t n,
                  const Transfer *transfers)
{
    for (int64_t i = 0; i < n; i++) {
        if (actions[i].kind != ACT_EXCHANGE) {
            run_action(p, stage, &actions[i]);
            continue;
        }
        CHECK(p, "an exchange in a schedule without buffers (action %lld)", (long long)i);
        exchange(p, &transfers[actions[i].transfer], actions[i].n_transfers);
    }
}

void pipeline_poison(Pipeline *p)
{
    for (int i = 0; p && i < p->n; i++) {
        Buffer *b = &p->buffer[i];
        if (b->holds) continue;
        /* The event `free` is recorded after the buffer's last read or send. Until then its old
         * contents are still needed. */
        device_event_wait(p->dev, &b->free);
        op_fill(p->dev, b->x, NAN);
        device_event_record(p->dev, &b->free);
    }
}
