/* first.cc -- the first use of a verb, or of a peer, makes connections in the real library: the
 * host waits in the call until its peers are in theirs. Of a verb that has an algorithm for little
 * and one for much, each has its first use. A byte of the control connection says that a rank has
 * come, and to what. */
#include "tests/emu/nccl/inside.h"

#include <poll.h>
#include <sys/socket.h>

enum { LITTLE = 4096 /* bytes that a rank sends or receives */ };

static size_t most_bytes(const Call *call)
{
    return call->send_bytes > call->recv_bytes ? call->send_bytes : call->recv_bytes;
}

/* What the call makes connections for. */
static unsigned char kind_of(const Call *call)
{
    bool much = call->recv != NULL && call->verb < BROADCAST && most_bytes(call) > LITTLE;
    return (unsigned char)(call->verb + (much ? VERBS : 0));
}

static bool token_send(const ncclComm *comm, int peer, unsigned char kind)
{
    return net_write(comm->link[peer].control, &kind, 1);
}

/* Keeps the next token that comes from the peer. */
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

/* The peer's first use of a collective comes when it is this rank's. */
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

/* Once: then the peer has this direction, too. */
static bool meet_in_message(ncclComm *comm, int peer, const bool *came)
{
    while (!*came)
        if (!token_hear(comm, peer)) return false;
    return true;
}

/* Whether this call is the first of its kind; it is not any more. */
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

static bool come(ncclComm *comm, const Call *call)
{
    bool well = true;
    if (call->verb == SEND || call->verb == RECEIVE)
        return token_send(comm, call->peer, kind_of(call));
    for (int r = 0; r < comm->ranks; r++)
        if (r != comm->rank) well = token_send(comm, r, kind_of(call)) && well;
    return well;
}

static bool meet(ncclComm *comm, const Call *call)
{
    bool well = true;
    Link *link = &comm->link[call->peer < 0 ? 0 : call->peer];
    if (call->verb == SEND) return meet_in_message(comm, call->peer, &link->came_receive);
    if (call->verb == RECEIVE) return meet_in_message(comm, call->peer, &link->came_send);
    for (int r = 0; r < comm->ranks && well; r++)
        if (r != comm->rank) well = meet_in_collective(comm, r, kind_of(call));
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
