/* first.cc -- imitates the connections that the real library makes at the first use of an operation
 * or a peer: the host waits in the call until its peers are in theirs. Collectives use one
 * algorithm for little data and another for much, and each has its own first use. A byte on the
 * control connection tells the peer which call this rank has reached. With EMU_NCCL_CONNECT=ring,
 * the first collective connects a rank with its neighbours in the ring, and serves all others. */
#include "tests/emu/nccl/inside.h"

#include <poll.h>
#include <sys/socket.h>

enum {
    LITTLE =
        4096 /* largest number of bytes that a rank sends or receives with the first algorithm */
};

static size_t most_bytes(const Call *call)
{
    return call->send_bytes > call->recv_bytes ? call->send_bytes : call->recv_bytes;
}

/* Returns the kind of connections that the call needs. */
static unsigned char kind_of(const Call *call)
{
    if (call->comm->one_ring && call->verb <= BROADCAST) return ALL_REDUCE;
    bool much = call->recv != NULL && call->verb < BROADCAST && most_bytes(call) > LITTLE;
    return (unsigned char)(call->verb + (much ? VERBS : 0));
}

static bool token_send(const ncclComm *comm, int peer, unsigned char kind)
{
    return net_write(comm->link[peer].control, &kind, 1);
}

/* Receives the peer's next byte and stores what it announces. */
static bool token_hear(ncclComm *comm, int peer)
{
    Link *link = &comm->link[peer];
    unsigned char token;
    struct pollfd sockets[2] = {{link->control, POLLIN, 0}};
    if (!net_poll(comm, sockets, 1) || !net_read(link->control, &token, 1) || token >= KINDS)
        return false;
    if (token == SEND)
        link->came_send = true;
    else if (token == RECEIVE)
        link->came_receive = true;
    else if (link->n_came < KINDS)
        link->came[link->n_came++] = token;
    return true;
}

/* Waits for the peer's next first use of a collective. It must be of the same kind as this
 * rank's. */
static bool meet_in_collective(ncclComm *comm, int peer, unsigned char kind)
{
    Link *link = &comm->link[peer];
    char name[160];
    while (link->n_came == 0)
        if (!token_hear(comm, peer)) return false;
    if (link->came[0] != kind)
        emu_die("%s: rank %d calls %s of %s for the first time, but rank %d calls %s of %s",
                comm_describe(comm, name, sizeof name), comm->rank, verb_name(kind % VERBS),
                kind < VERBS ? "little" : "much", peer, verb_name(link->came[0] % VERBS),
                link->came[0] < VERBS ? "little" : "much");
    link->n_came--;
    for (int i = 0; i < link->n_came; i++)
        link->came[i] = link->came[i + 1];
    return true;
}

/* Waits until the peer has used the other direction of the message for the first time. */
static bool meet_in_message(ncclComm *comm, int peer, const bool *came)
{
    while (!*came)
        if (!token_hear(comm, peer)) return false;
    return true;
}

/* Returns whether this call is the first of its kind, and marks the kind as used. */
static bool is_first(ncclComm *comm, const Call *call)
{
    if (call->verb != SEND && call->verb != RECEIVE) {
        bool *used = &comm->used[kind_of(call)], first = !*used && comm->ranks > 1;
        *used = true;
        return first;
    }
    Link *link = &comm->link[call->peer];
    bool *used = call->verb == SEND ? &link->used_send : &link->used_receive;
    bool first = !*used && call->peer != comm->rank;
    *used = true;
    return first;
}

/* Returns whether the first use of a collective waits for this rank. */
static bool waits_for(const ncclComm *comm, int rank)
{
    int n = comm->ranks, next = comm->ring[(comm->position + 1) % n],
        before = comm->ring[(comm->position + n - 1) % n];
    return rank != comm->rank && (!comm->one_ring || rank == next || rank == before);
}

static bool come(ncclComm *comm, const Call *call)
{
    bool well = true;
    if (call->verb == SEND || call->verb == RECEIVE)
        return token_send(comm, call->peer, kind_of(call));
    for (int r = 0; r < comm->ranks; r++)
        if (waits_for(comm, r)) well = token_send(comm, r, kind_of(call)) && well;
    return well;
}

static bool meet(ncclComm *comm, const Call *call)
{
    bool well = true;
    Link *link = &comm->link[call->peer < 0 ? 0 : call->peer];
    if (call->verb == SEND) return meet_in_message(comm, call->peer, &link->came_receive);
    if (call->verb == RECEIVE) return meet_in_message(comm, call->peer, &link->came_send);
    for (int r = 0; r < comm->ranks && well; r++)
        if (waits_for(comm, r)) well = meet_in_collective(comm, r, kind_of(call));
    return well;
}

static ncclResult_t lost(const Call *call)
{
    call->comm->async = ncclRemoteError;
    return last_error(ncclRemoteError, "%s : connection closed by a remote peer",
                      verb_name(call->verb));
}

ncclResult_t first_use(Plan *const *plans, int n)
{
    ncclResult_t code = ncclSuccess;
    for (int p = 0; p < n; p++) {
        plans[p]->comm->inside++;
        for (int i = 0; i < plans[p]->n; i++) {
            Call *call = plans[p]->call[i];
            call->first = is_first(call->comm, call);
            if (call->first && !come(call->comm, call)) code = lost(call);
        }
    }
    for (int p = 0; p < n; p++) {
        for (int i = 0; i < plans[p]->n && code == ncclSuccess; i++) {
            Call *call = plans[p]->call[i];
            if (call->first && !meet(call->comm, call)) code = lost(call);
        }
        plans[p]->comm->inside--;
    }
    return code;
}
