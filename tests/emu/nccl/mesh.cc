/* mesh.cc -- opens and closes the two connections between each pair of ranks of a communicator. */
#include "tests/emu/nccl/inside.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sent by the rank that connects: its communicator, its rank, and the purpose of the connection. */
typedef struct {
    uint64_t id;
    int32_t rank, control;
} Greeting;

static void link_set(ncclComm *comm, int rank, bool control, int s)
{
    if (control) {
        comm->link[rank].control = s;
    } else {
        net_nonblocking(s);
        comm->link[rank].data = s;
    }
}

static bool greet(ncclComm *comm, int rank, bool control, const Hello *all)
{
    Greeting greeting = {comm->id, comm->rank, control};
    int s = net_connect(&all[rank].address);
    if (s < 0) return false;
    link_set(comm, rank, control, s);
    return net_write(s, &greeting, sizeof greeting);
}

static bool be_greeted(ncclComm *comm, int listener)
{
    Greeting greeting;
    int on = 1;
    int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (s < 0) return false;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (net_read(s, &greeting, sizeof greeting) && greeting.id == comm->id &&
        greeting.rank > comm->rank && greeting.rank < comm->ranks) {
        link_set(comm, greeting.rank, greeting.control != 0, s);
        return true;
    }
    close(s); /* the connection is not from this communicator */
    return false;
}

bool mesh_open(ncclComm *comm, int listener, const Hello *all)
{
    for (int r = 0; r < comm->rank; r++)
        if (!greet(comm, r, false, all) || !greet(comm, r, true, all)) return false;
    for (int left = 2 * (comm->ranks - 1 - comm->rank); left > 0;) {
        struct pollfd sockets[2] = {{listener, POLLIN, 0}};
        if (!net_poll(comm, sockets, 1)) return false;
        left -= be_greeted(comm, listener);
    }
    return true;
}

bool mesh_meet(ncclComm *comm)
{
    char byte = 0;
    bool well = true;
    for (int r = 0; r < comm->ranks; r++)
        if (r != comm->rank) well = net_write(comm->link[r].control, &byte, 1) && well;
    for (int r = 0; r < comm->ranks && well; r++) {
        int from = comm->link[r].control;
        struct pollfd sockets[2] = {{from, POLLIN, 0}}; /* net_poll adds one */
        if (r != comm->rank) well = net_poll(comm, sockets, 1) && net_read(from, &byte, 1);
    }
    return well;
}

/* Reads until the peer closes its end. Closing the socket earlier would discard what the peer has
 * not read yet. */
static void drain(int s)
{
    char rest[4096];
    ssize_t n;
    do {
        struct pollfd readable = {s, POLLIN, 0};
        poll(&readable, 1, -1);
        n = recv(s, rest, sizeof rest, 0);
    } while (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
}

void mesh_close(ncclComm *comm)
{
    bool well = comm->async == ncclSuccess && !comm->aborted;
    for (int r = 0; r < comm->ranks; r++) {
        Link *link = &comm->link[r];
        Header bye;
        memset(&bye, 0, sizeof bye);
        bye.frame = FRAME_BYE;
        bye.rank = comm->rank;
        if (r == comm->rank || !well) continue;
        net_write(link->data, &bye, sizeof bye);
        shutdown(link->data, SHUT_WR);
        shutdown(link->control, SHUT_WR);
    }
    for (int r = 0; r < comm->ranks; r++) {
        Link *link = &comm->link[r];
        if (well && link->data >= 0) drain(link->data);
        if (well && link->control >= 0) drain(link->control);
        if (link->data >= 0) close(link->data);
        if (link->control >= 0) close(link->control);
        link->data = link->control = -1;
        free(link->sends.header);
        free(link->receives.header);
    }
}
