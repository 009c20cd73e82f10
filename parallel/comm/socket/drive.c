/* drive.c -- sends and receives on all connections at once until a call has what it expects, so no
 * order of sends and receives can deadlock the ranks. */
#include "model/core/clock.h"
#include "parallel/comm/socket/world.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

/* A wait of this many milliseconds is reported to rank 0. Shorter ones cost nothing. After that the
 * rank looks again each second. */
enum { SHORT_WAIT = 20, LOOK_AGAIN = 1000, CONNECT_AGAIN = 2 };

/* Rank 0 ends the program sooner than this many seconds after a connection was lost. */
static const double LOST_SECONDS = 10;

enum { ACCEPTS = -1, NUDGE = -2, PLACES = SOCKET_MAX_RANKS + 2 };

/* What one pass over the members has found. */
typedef struct {
    struct pollfd fd[PLACES];
    int member[PLACES], n; /* member ACCEPTS: the socket that accepts connections; NUDGE: rank 0 has
                            * a question */
    bool pending;          /* something is still to be sent or received */
    bool refused;          /* a connection has to be tried again */
    uint64_t who, gone;    /* sets of world ranks: all that are pending; those that have closed */
} Pass;

static void add(Pass *pass, int fd, short events, int member)
{
    pass->fd[pass->n] = (struct pollfd){.fd = fd, .events = events};
    pass->member[pass->n++] = member;
}

static void pass_member(Pass *pass, SocketGroup *group, int member, bool expects, bool *accepts)
{
    SocketWorld *world = group->world;
    int rank = group->share.member[member];
    SocketPeer *peer = &world->peer[rank];
    if (!expects && queue_is_empty(&peer->out)) return;
    socket_connect(world, rank);
    socket_flush(peer);
    bool sends = !queue_is_empty(&peer->out);
    if (!expects && !sends) return;
    pass->pending = true;
    pass->who |= (uint64_t)1 << rank;
    if (peer->gone)
        pass->gone |= (uint64_t)1 << rank;
    else if (peer->fd >= 0)
        add(pass, peer->fd, (short)((expects ? POLLIN : 0) | (sends ? POLLOUT : 0)), member);
    else if (rank > world->rank)
        *accepts = true;
    else
        pass->refused = true;
}

static void add_accepting(Pass *pass, SocketWorld *world)
{
    /* Without room for another one, poll would return at once, again and again. */
    if (world->strangers < SOCKET_MAX_RANKS)
        add(pass, world->links->listener[world->rank], POLLIN, ACCEPTS);
    for (int i = 0; i < world->strangers && pass->n < PLACES - 1; i++)
        add(pass, world->stranger[i].fd, POLLIN, ACCEPTS);
}

static void pass_all(Pass *pass, SocketGroup *group, SocketExpects expects)
{
    SocketWorld *world = group->world;
    bool accepts = false;
    pass->n = 0;
    pass->pending = pass->refused = false;
    pass->who = pass->gone = 0;
    for (int i = 0; i < group->share.size; i++)
        if (i != group->rank) pass_member(pass, group, i, expects(group, i), &accepts);
    if (accepts) add_accepting(pass, world);
    add(pass, world->service.nudge, POLLIN, NUDGE);
}

/* Reports the wait to rank 0. */
static void report(SocketGroup *group, const Pass *pass, uint64_t number)
{
    SocketWorld *world = group->world;
    SocketFrame call = group->call;
    char text[128];
    SocketWait wait = {.waits = 1,
                       .unlimited = group->unlimited,
                       .meets = group->meeting,
                       .wait = number,
                       .group = group->share.id,
                       .who = pass->who,
                       .gone = pass->gone,
                       .confirmed = world->confirmed};
    if (world->messages) wait.who = (uint64_t)1 << socket_awaited_message(group, &call);
    CommCall seen = socket_seen(&call);
    snprintf(wait.call, sizeof wait.call, "group %s, call %lld, %s", group->share.name,
             (long long)group->share.calls, comm_call_text(&seen, text, sizeof text));
    socket_service_waits(&world->service, &wait);
}

/* Receives what the member has sent. Returns whether anything has moved. */
static bool take_from(SocketGroup *group, int member, bool writable, SocketExpects expects)
{
    SocketPeer *peer = socket_peer(group, member);
    bool moved = writable && peer->blocked;
    if (writable) peer->blocked = false;
    while (expects(group, member) && socket_receive(group->world, group->share.member[member]))
        moved = true;
    return moved;
}

/* Answers a question of rank 0: does this rank still wait? Looks at all connections, because the
 * answer must take into account all that was sent before the question. */
static bool look_again(SocketGroup *group, SocketExpects expects)
{
    SocketWorld *world = group->world;
    uint64_t times;
    bool moved = false;
    if (read(world->service.nudge, &times, sizeof times) < 0) return false;
    uint64_t question = atomic_load(&world->service.question);
    socket_accept(world);
    for (int i = 0; i < group->share.size; i++)
        if (i != group->rank) moved = take_from(group, i, false, expects) || moved;
    world->confirmed = question;
    return moved;
}

/* Acts on what poll has found. Returns whether anything has moved. */
static bool act(const Pass *pass, SocketGroup *group, SocketExpects expects)
{
    bool accepts = false, moved = false;
    for (int i = 0; i < pass->n; i++) {
        short found = pass->fd[i].revents;
        int member = pass->member[i];
        if (found == 0) continue;
        if (member == ACCEPTS) accepts = true;
        if (member >= 0)
            moved =
                take_from(group, member, found & (POLLOUT | POLLERR | POLLHUP), expects) || moved;
        if (member == NUDGE) moved = look_again(group, expects) || moved;
    }
    if (accepts) socket_accept(group->world);
    return moved;
}

void socket_drive(Comm *comm, SocketExpects expects)
{
    SocketGroup *group = socket_group(comm);
    SocketService *service = &group->world->service;
    Pass pass;
    double lost = 0, still = 0; /* seconds without a peer; since anything has moved */
    bool reported = false;
    uint64_t number = ++group->world->waits;
    for (pass_all(&pass, group, expects); pass.pending; pass_all(&pass, group, expects)) {
        int limit = pass.refused ? CONNECT_AGAIN : reported ? LOOK_AGAIN : SHORT_WAIT;
        double start = seconds_now();
        if (reported || pass.gone) report(group, &pass, number);
        reported = reported || pass.gone;
        int ready = poll(pass.fd, (nfds_t)pass.n, limit);
        double seconds = seconds_now() - start;
        comm->waited += seconds;
        /* After the process was stopped, at most one limit counts. */
        lost = pass.gone ? lost + fmin(seconds, 1e-3 * limit) : 0;
        if (lost > LOST_SECONDS)
            fail(EXIT_PEER_LOST, "group %s: rank %d has lost its connection to another rank",
                 group->share.name, group->world->rank);
        bool moved = ready > 0 && act(&pass, group, expects);
        still = moved ? 0 : still + seconds;
        /* A transfer that goes on begins a new wait. A meeting waits for the last rank, whoever
         * comes before. */
        if (moved && !group->meeting) {
            if (reported) socket_service_goes_on(service);
            reported = false;
            number = ++group->world->waits;
        }
        if (!reported && still >= 1e-3 * SHORT_WAIT) {
            report(group, &pass, number);
            reported = true;
        }
    }
    if (reported) socket_service_goes_on(service);
}
