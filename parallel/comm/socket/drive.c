/* drive.c -- sends and receives on all connections at once until a call has what it expects, so no
 * order of sends and receives can deadlock the ranks. */
#include "model/core/clock.h"
#include "model/core/min_max.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Times in milliseconds. SHORT_WAIT: a wait that lasts longer is reported to rank 0; for a shorter
 * one no message is sent. LOOK_AGAIN: longest time between two checks of a reported wait.
 * STRANGERS_AGAIN: longest time between two checks whether there is room for another stranger. */
enum { SHORT_WAIT = 20, LOOK_AGAIN = 1000, STRANGERS_AGAIN = 50 };

/* After a connection was lost, a rank waits this long for rank 0 to end the program, which should
 * happen sooner. */
static const double LOST_SECONDS = 10;

/* Purposes of descriptors that do not belong to a member: accepting connections; a question of rank
 * 0; a connection of the control tree that is being established. */
enum { ACCEPTS = -1, NUDGE = -2, CONNECTS = -3 };

static void add(SocketPass *pass, int fd, short events, int member)
{
    if (pass->n == pass->room) {
        pass->room = pass->room ? 2 * pass->room : 16;
        pass->fd = must_realloc(pass->fd, (size_t)pass->room * sizeof *pass->fd);
        pass->member = must_realloc(pass->member, (size_t)pass->room * sizeof *pass->member);
    }
    pass->fd[pass->n] = (struct pollfd){.fd = fd, .events = events};
    pass->member[pass->n++] = member;
}

/* Makes the rank check again after at most this many milliseconds. */
static void look_after(SocketPass *pass, int milliseconds)
{
    if (milliseconds < 1) milliseconds = 1;
    if (pass->again == 0 || milliseconds < pass->again) pass->again = milliseconds;
}

/* Adds the rank to the wait's list. The list begins with the ranks that this rank waits for; those
 * that have closed their connection (`gone`) come after them. */
static void name_rank(SocketWait *wait, int rank, bool gone)
{
    if (!gone && wait->whos < SOCKET_NAMED) {
        memmove(&wait->rank[wait->whos + 1], &wait->rank[wait->whos],
                (size_t)wait->gones * sizeof wait->rank[0]);
        wait->rank[wait->whos++] = rank;
    } else if (gone && wait->gones < SOCKET_NAMED) {
        wait->rank[wait->whos + wait->gones++] = rank;
    }
}

/* Adds what poll must wait for in order to continue a connection to a lower rank that is not
 * established yet. `member`: the peer's index in the group, or CONNECTS. */
static void pass_connecting(SocketPass *pass, const SocketPeer *peer, int member)
{
    if (peer->state == PEER_CONNECTS)
        add(pass, peer->fd, POLLOUT, member);
    else if (peer->state == PEER_PROVES)
        add(pass, peer->fd, handshake_sends(&peer->handshake) ? POLLOUT : POLLIN, member);
    else
        look_after(pass, (int)ceil(1e3 * (peer->again - seconds_now())));
}

static void pass_plant(SocketPass *pass, SocketWorld *world, bool *accepts)
{
    SocketPlant *plant = world->plant;
    SocketPeer *parent = &plant->parent;
    socket_connect(world, parent);
    if (parent->rank > 0 && parent->state != PEER_CONNECTED) {
        pass->pending = true;
        name_rank(&pass->wait, parent->rank, false);
        if (parent->gone)
            name_rank(&pass->wait, parent->rank, true);
        else
            pass_connecting(pass, parent, CONNECTS);
    }
    for (int k = 0; k < plant->children; k++) {
        if (plant->fd[k] >= 0) continue;
        pass->pending = *accepts = true;
        name_rank(&pass->wait, plant->rank[k], false);
    }
}

static void pass_member(SocketPass *pass, SocketGroup *group, int member, bool expects,
                        bool *accepts)
{
    SocketWorld *world = group->world;
    int rank = socket_world_rank(group, member);
    SocketPeer *peer = world->peer[rank];
    if (!expects && (peer == NULL || queue_is_empty(&peer->out))) return;
    peer = socket_peer_of(world, rank);
    socket_connect(world, peer);
    socket_flush(peer);
    bool sends = !queue_is_empty(&peer->out);
    if (!expects && !sends) return;
    pass->pending = true;
    name_rank(&pass->wait, rank, false);
    if (peer->gone)
        name_rank(&pass->wait, rank, true);
    else if (peer->state == PEER_CONNECTED)
        add(pass, peer->fd, (short)((expects ? POLLIN : 0) | (sends ? POLLOUT : 0)), member);
    else if (rank > world->rank)
        *accepts = true;
    else
        pass_connecting(pass, peer, member);
}

static void add_accepting(SocketPass *pass, SocketWorld *world)
{
    /* Without room for another stranger the listener is not polled: poll would return at once,
     * again and again. */
    if (world->strangers < STRANGERS)
        add(pass, world->links->listener[world->rank], POLLIN, ACCEPTS);
    else
        look_after(pass, STRANGERS_AGAIN);
    for (int i = 0; i < world->strangers; i++) {
        bool sends = handshake_sends(&world->stranger[i].handshake);
        add(pass, world->stranger[i].fd, sends ? POLLOUT : POLLIN, ACCEPTS);
    }
}

static void pass_all(SocketGroup *group, int members, SocketExpects expects)
{
    SocketWorld *world = group->world;
    SocketPass *pass = &world->pass;
    bool accepts = false;
    pass->n = pass->again = 0;
    pass->pending = false;
    pass->wait = (SocketWait){0};
    for (int i = 0; i < members; i++)
        if (i != group->share.member) pass_member(pass, group, i, expects(group, i), &accepts);
    if (world->plant) pass_plant(pass, world, &accepts);
    if (!pass->pending) return;
    if (accepts) add_accepting(pass, world);
    add(pass, world->service.nudge, POLLIN, NUDGE);
}

/* Reports the wait to rank 0. */
static void report(SocketGroup *group, uint64_t number)
{
    SocketWorld *world = group->world;
    SocketFrame call = group->call;
    SocketWait *wait = &world->pass.wait;
    char text[128];
    wait->waits = 1;
    wait->unlimited = group->unlimited;
    wait->meets = group->meeting;
    wait->meeting = group->share.meetings;
    wait->wait = number;
    wait->group = group->share.id;
    wait->confirmed = world->confirmed;
    if (world->messages) {
        int awaited = socket_awaited_message(group, &call);
        memmove(&wait->rank[1], &wait->rank[wait->whos],
                (size_t)wait->gones * sizeof wait->rank[0]);
        wait->rank[0] = awaited;
        wait->whos = 1;
    }
    CommCall seen = socket_seen(&call);
    snprintf(wait->call, sizeof wait->call, "group %s, call %lld, %s", group->share.name,
             (long long)group->share.calls, comm_call_text(&seen, text, sizeof text));
    socket_service_waits(&world->service, wait);
}

/* Receives what the member has sent. Returns whether any byte was transferred. */
static bool take_from(SocketGroup *group, int member, bool writable, SocketExpects expects)
{
    SocketPeer *peer = socket_peer(group, member);
    bool moved = writable && peer->blocked;
    if (writable) peer->blocked = false;
    while (expects(group, member) && socket_receive(group->world, peer))
        moved = true;
    return moved;
}

/* Answers rank 0's question whether this rank still waits. Checks all connections first, because
 * the answer must take into account everything that was sent before the question. */
static bool look_again(SocketGroup *group, int members, SocketExpects expects)
{
    SocketWorld *world = group->world;
    uint64_t times;
    bool moved = false;
    if (read(world->service.nudge, &times, sizeof times) < 0) return false;
    uint64_t question = atomic_load(&world->service.question);
    socket_accept(world);
    for (int i = 0; i < members; i++)
        if (i != group->share.member && expects(group, i))
            moved = take_from(group, i, false, expects) || moved;
    world->confirmed = question;
    return moved;
}

/* Handles the events that poll has found. Returns whether any byte was transferred. */
static bool act(SocketGroup *group, int members, SocketExpects expects)
{
    const SocketPass *pass = &group->world->pass;
    bool accepts = false, moved = false;
    for (int i = 0; i < pass->n; i++) {
        short found = pass->fd[i].revents;
        int member = pass->member[i];
        if (found == 0) continue;
        if (member == ACCEPTS) accepts = true;
        if (member >= 0)
            moved =
                take_from(group, member, found & (POLLOUT | POLLERR | POLLHUP), expects) || moved;
        if (member == NUDGE) moved = look_again(group, members, expects) || moved;
    }
    if (accepts || pass->again || group->world->strangers > 0) socket_accept(group->world);
    return moved;
}

/* Returns how many milliseconds poll may wait. */
static int limit_of(const SocketPass *pass, bool reported)
{
    int limit = reported ? LOOK_AGAIN : SHORT_WAIT;
    return pass->again ? (int)min_i64(pass->again, limit) : limit;
}

void socket_drive(Comm *comm, int members, SocketExpects expects)
{
    SocketGroup *group = socket_group(comm);
    SocketService *service = &group->world->service;
    const SocketPass *pass = &group->world->pass;
    double lost = 0, still = 0; /* lost: seconds since a peer was lost; still: seconds since a byte
                                 * was transferred */
    bool reported = false;
    uint64_t number = ++group->world->waits;
    for (pass_all(group, members, expects); pass->pending; pass_all(group, members, expects)) {
        int limit = limit_of(pass, reported);
        bool gone = pass->wait.gones > 0;
        double start = seconds_now();
        if (reported || gone) report(group, number);
        reported = reported || gone;
        poll(pass->fd, (nfds_t)pass->n, limit);
        double seconds = seconds_now() - start;
        comm->waited += seconds;
        lost = gone ? lost + deadline_passed(start, 1e-3 * limit) : 0;
        if (lost > LOST_SECONDS)
            fail(EXIT_PEER_LOST, "group %s: rank %d has lost its connection to another rank",
                 group->share.name, group->world->rank);
        bool moved = act(group, members, expects);
        still = moved ? 0 : still + seconds;
        /* A transfer that makes progress begins a new wait. In a meeting (meet.c) it does not: the
         * rank waits for the last member, however many members arrive before. */
        if (moved && !group->meeting) {
            if (reported) socket_service_goes_on(service);
            reported = false;
            number = ++group->world->waits;
        }
        if (!reported && still >= 1e-3 * SHORT_WAIT) {
            report(group, number);
            reported = true;
        }
    }
    if (reported) socket_service_goes_on(service);
}
