/* relay.c -- see relay.h. Tensors are sent on the p2p stream, as in training: after the earlier
 * work of the compute stream and before its later work. */
#include "parallel/pipeline/relay.h"

#include "model/core/check.h"

/* Returns the device on its p2p stream, which waits for all work issued to the compute stream. */
static Device begin(StageRelay *r)
{
    Device p2p = device_on(r->dev, r->dev->p2p);
    device_event_record(r->dev, &r->made);
    device_event_wait(&p2p, &r->made);
    return p2p;
}

/* Makes the compute stream wait for the transfer. */
static void end(StageRelay *r, Device *p2p)
{
    device_event_record(p2p, &r->moved);
    device_event_wait(r->dev, &r->moved);
}

static void receive(void *self, int chunk, Tensor x)
{
    StageRelay *r = self;
    int p = r->pp->size, run = chunk * p + r->pp->rank;
    /* The embedding computes the first range's input itself, from the token. */
    if (p == 1 || run == 0) return;
    Device p2p = begin(r);
    comm_receive(r->pp, &p2p, x, (run - 1) % p);
    end(r, &p2p);
}

static void send(void *self, int chunk, Tensor x)
{
    StageRelay *r = self;
    int p = r->pp->size, run = chunk * p + r->pp->rank;
    if (p == 1 || run == p * r->chunks - 1) return;
    Device p2p = begin(r);
    comm_send(r->pp, &p2p, x, (run + 1) % p);
    /* end() is not called, so that the compute stream continues while x is sent. That stream writes
     * to x only after the next receive or share, which waits for the p2p stream and so for this
     * send. */
}

static void share(void *self, Tensor logits)
{
    StageRelay *r = self;
    if (r->pp->size == 1) return;
    /* The last stage sends its logits to all stages; it always has the last range, whatever the
     * number of chunks. All stages choose the next token themselves from the same logits and the
     * same random numbers, so the token need not be sent. */
    Device p2p = begin(r);
    comm_broadcast(r->pp, &p2p, logits, r->pp->size - 1);
    end(r, &p2p);
}

void relay_open(StageRelay *r, Device *dev, Comm *pp, int chunks)
{
    CHECK(chunks > 0, "a stage of %d chunks", chunks);
    *r = (StageRelay){.dev = dev, .pp = pp, .chunks = chunks};
}

Relay relay_of(StageRelay *r)
{
    return (Relay){.receive = receive, .send = send, .share = share, .self = r};
}

void relay_close(StageRelay *r)
{
    if (r->dev == NULL) return;
    device_event_destroy(r->dev, &r->made);
    device_event_destroy(r->dev, &r->moved);
    *r = (StageRelay){0};
}
