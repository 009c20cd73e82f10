/* relay.c -- see relay.h. */
#include "parallel/comm/socket/relay.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/service.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For how many seconds a rank waits at most, at the end of the program, until its children have
 * ended. */
static const double PART_SECONDS = 1;

void socket_relay_plant(SocketService *service, int parent, int children, const int *rank,
                        const int *fd)
{
    SocketRelay *relay = &service->relay;
    relay->parent.fd = parent;
    relay->children = children;
    relay->rank = must_calloc((size_t)children + 1, sizeof *relay->rank);
    relay->child = must_calloc((size_t)children + 1, sizeof *relay->child);
    relay->told = must_calloc((size_t)children + 1, sizeof *relay->told);
    relay->fd = must_calloc((size_t)children + SERVICE_FDS, sizeof *relay->fd);
    for (int k = 0; k < children; k++) {
        relay->rank[k] = rank[k];
        relay->child[k].fd = fd[k];
    }
    atomic_store(&relay->planted, true);
    socket_service_wake(service);
}

void socket_relay_stands(SocketService *service)
{
    atomic_store(&service->relay.stands, true);
    socket_service_wake(service);
}

void socket_relay_close(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    if (!atomic_load(&relay->planted)) return;
    if (relay->parent.fd >= 0) close(relay->parent.fd);
    for (int k = 0; k < relay->children; k++)
        close(relay->child[k].fd);
    free(relay->rank);
    free(relay->child);
    free(relay->told);
    free(relay->fd);
}

/* Returns the number of children that the service thread may use. */
static int children_of(const SocketRelay *relay)
{
    return atomic_load(&relay->planted) ? relay->children : 0;
}

/* ---- upwards --------------------------------------------------------------------------------- */

/* Returns the connection on which this rank sends towards rank 0; NULL: none at the moment. */
static SocketStream *way_up(SocketService *service)
{
    switch (service->relay.up) {
    case UP_STAR: return &service->zero;
    case UP_LEAVES: return NULL;
    case UP_TREE: break;
    }
    return &service->relay.parent;
}

bool socket_relay_put(SocketService *service, const void *packet)
{
    pthread_mutex_lock(&service->sends);
    SocketStream *up = way_up(service);
    bool sent = up != NULL && socket_stream_put(up, packet);
    pthread_mutex_unlock(&service->sends);
    return sent;
}

void socket_relay_claim(SocketService *service, const SocketWord *claim)
{
    if (!mutex_lock_within(&service->sends, DEADLINE_LOCK)) return;
    SocketStream *up = way_up(service);
    socket_stream_put(up ? up : &service->relay.parent, claim);
    pthread_mutex_unlock(&service->sends);
}

bool socket_relay_flush(SocketService *service)
{
    pthread_mutex_lock(&service->sends);
    socket_stream_flush(&service->zero);
    if (atomic_load(&service->relay.planted)) socket_stream_flush(&service->relay.parent);
    bool left = service->zero.left > 0 || service->relay.parent.left > 0;
    pthread_mutex_unlock(&service->sends);
    return left;
}

bool socket_relay_up_is_lost(const SocketService *service)
{
    const SocketRelay *relay = &service->relay;
    return relay->up == UP_STAR ? service->zero.lost : relay->up == UP_TREE && relay->parent.lost;
}

bool socket_relay_up_is_shut(const SocketService *service)
{
    const SocketRelay *relay = &service->relay;
    return relay->up == UP_STAR ? service->zero.shut : relay->up == UP_TREE && relay->parent.shut;
}

/* Returns whether there is room to forward the next packet of a child. */
static bool has_room(SocketService *service)
{
    pthread_mutex_lock(&service->sends);
    SocketStream *up = way_up(service);
    if (up) socket_stream_flush(up);
    bool room = up != NULL && up->left == 0 && !up->shut;
    pthread_mutex_unlock(&service->sends);
    return room;
}

static SocketWord own_word(const SocketService *service, SocketPacketKind kind)
{
    SocketWord word = socket_word(kind);
    word.head.rank = service->rank;
    return word;
}

/* Forwards what the child and the ranks below it have sent. A child that sends a packet of a rank
 * that is not below it counts as lost. */
static void serve_child(SocketService *service, int k)
{
    SocketRelay *relay = &service->relay;
    SocketStream *child = &relay->child[k];
    int rank = relay->rank[k];
    while (has_room(service) && socket_stream_take(child, &relay->packet)) {
        int from = relay->packet.head.rank;
        bool below = from == rank || (from > rank && from < service->links->ranks &&
                                      socket_links_towards(service->links, rank, from) >= 0);
        if (!below)
            child->lost = true;
        else
            socket_relay_put(service, &relay->packet);
    }
    if (!child->lost || relay->told[k] || service->farewell) return;
    SocketWord lost = own_word(service, PACKET_LOST);
    lost.rank = rank;
    lost.code = EXIT_PEER_LOST;
    relay->told[k] = socket_relay_put(service, &lost);
}

/* Continues to switch from the star to the tree. */
static void move_to_the_tree(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    SocketWord last = own_word(service, PACKET_TREE);
    if (relay->parent.fd < 0 || !atomic_load(&relay->stands)) return;
    pthread_mutex_lock(&service->sends);
    if (relay->up == UP_STAR && socket_stream_put(&service->zero, &last)) relay->up = UP_LEAVES;
    if (relay->up == UP_LEAVES && service->zero.lost) { /* rank 0 has closed it */
        relay->up = UP_TREE;
        close(service->zero.fd);
        service->zero = (SocketStream){.fd = -1};
        service->links->star[1][service->rank] = -1;
    }
    pthread_mutex_unlock(&service->sends);
}

/* ---- downwards ------------------------------------------------------------------------------- */

/* Returns whether the packet is of a kind that comes from above: from rank 0, or from a rank that
 * has lost rank 0. */
static bool passes_down(const SocketWord *word)
{
    switch ((SocketPacketKind)word->head.kind) {
    case PACKET_ASK:
    case PACKET_GRANT:
    case PACKET_VERDICT:
    case PACKET_FAREWELL:
    case PACKET_DUMP:
    case PACKET_LOST: return true;
    default: return false;
    }
}

void socket_relay_down(SocketService *service, const SocketWord *word)
{
    SocketRelay *relay = &service->relay;
    int to = word->head.rank, n = children_of(relay);
    if (n == 0 || to == service->rank || to >= service->links->ranks || !passes_down(word)) return;
    int towards = to < 0 ? -1 : socket_links_towards(service->links, service->rank, to);
    if ((to >= 0 && towards < 0) || !mutex_lock_within(&service->sends, DEADLINE_LOCK)) return;
    for (int k = 0; k < n; k++) {
        bool often = word->head.kind == PACKET_ASK || word->head.kind == PACKET_DUMP,
             room = !often || relay->child[k].left == 0;
        if (room && (to < 0 || relay->rank[k] == towards))
            socket_stream_put(&relay->child[k], word);
    }
    pthread_mutex_unlock(&service->sends);
}

void socket_relay_finish(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    int n = children_of(relay);
    if (n > 0) socket_streams_finish(relay->child, n, &service->sends);
}

void socket_relay_end(SocketService *service, SocketPacketKind kind, int code)
{
    SocketWord word = socket_word(kind);
    word.head.rank = word.rank = -1;
    word.code = code;
    socket_relay_down(service, &word);
    socket_relay_finish(service);
}

int socket_relay_suspect(const SocketService *service)
{
    const SocketRelay *relay = &service->relay;
    int parent = socket_links_parent(service->links, service->rank);
    if (parent == 0 || relay->up != UP_TREE) return 0;
    return service->timeout > 0 && relay->quiet >= service->timeout ? parent : relay->suspect;
}

/* Sends the children a sign of life, even if nothing comes from rank 0. If this rank has left and
 * therefore sends no more reports, sends rank 0 a sign of life, too. */
static void show_life(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    SocketWord alive = own_word(service, PACKET_ALIVE);
    double now = seconds_now();
    if (now - relay->alive < socket_heartbeat(service->links, service->timeout)) return;
    relay->alive = now;
    if (relay->left) socket_relay_put(service, &alive);
    bool silent = service->timeout > 0 && service->silent >= service->timeout;
    alive.rank = silent ? socket_relay_suspect(service) : -1;
    pthread_mutex_lock(&service->sends);
    for (int k = 0; k < relay->children; k++) {
        alive.head.rank = relay->rank[k];
        if (relay->child[k].left == 0) socket_stream_put(&relay->child[k], &alive);
    }
    pthread_mutex_unlock(&service->sends);
}

/* ---- both directions ------------------------------------------------------------------------- */

void socket_relay_serve(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    if (!atomic_load(&relay->planted)) return;
    move_to_the_tree(service);
    for (int k = 0; k < relay->children; k++)
        serve_child(service, k);
    if (relay->children > 0) show_life(service);
}

/* Sends as much of the stream's queue as possible. Returns the stream's descriptor with the events
 * to wait for. */
static struct pollfd poll_of(SocketStream *stream)
{
    socket_stream_flush(stream);
    return (struct pollfd){.fd = stream->lost ? -1 : stream->fd,
                           .events = (short)(POLLIN | (stream->left > 0 ? POLLOUT : 0))};
}

struct pollfd *socket_relay_poll(SocketService *service, struct pollfd fd[SERVICE_FDS], int *n)
{
    SocketRelay *relay = &service->relay;
    bool planted = atomic_load(&relay->planted), room = planted && has_room(service);
    *n = SERVICE_FDS;
    pthread_mutex_lock(&service->sends);
    fd[1] = poll_of(&service->zero);
    fd[2] = planted ? poll_of(&relay->parent) : (struct pollfd){.fd = -1};
    for (int k = 0; planted && k < relay->children; k++) {
        relay->fd[*n] = poll_of(&relay->child[k]);
        /* While there is no room, children are neither read nor polled: poll would return at once
         * if one of them has closed its connection. */
        if (!room) relay->fd[*n].fd = -1;
        (*n)++;
    }
    pthread_mutex_unlock(&service->sends);
    if (!planted) return fd;
    memcpy(relay->fd, fd, SERVICE_FDS * sizeof *fd);
    return relay->fd;
}

/* Sends what is left to be sent to the child, and discards what the child has sent. */
static void drain(SocketService *service, int k)
{
    SocketRelay *relay = &service->relay;
    pthread_mutex_lock(&service->sends);
    socket_stream_flush(&relay->child[k]);
    pthread_mutex_unlock(&service->sends);
    while (socket_stream_take(&relay->child[k], &relay->packet))
        continue;
}

void socket_relay_part(SocketService *service)
{
    const useconds_t pause = 1000;
    SocketRelay *relay = &service->relay;
    int n = children_of(relay), ended = 0;
    double end = seconds_now() + PART_SECONDS;
    while (ended < n && seconds_now() < end) {
        ended = 0;
        for (int k = 0; k < n; k++) {
            drain(service, k);
            ended += relay->child[k].lost;
        }
        if (ended < n) usleep(pause);
    }
}
