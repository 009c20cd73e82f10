/* relay.c -- receives the table of members from the parent and sends it to the children. See
 * relay.h. */
#include "parallel/meeting/relay.h"

#include "model/core/min_max.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* The pauses between attempts to connect to the parent grow from LEAST_PAUSE to MOST_PAUSE. */
static const double LEAST_PAUSE = 0.02, MOST_PAUSE = 1;

bool relay_begin(Relay *r, const MeetingOptions *o, const Answer *answer, int listener)
{
    int first = table_first_child(o->rank);
    *r = (Relay){.o = o, .answer = *answer, .parent.fd = -1, .pause = LEAST_PAUSE};
    r->children = (int)max_i64(0, min_i64(TABLE_CHILDREN, o->size - first));
    for (int i = 0; i < TABLE_CHILDREN; i++)
        r->child[i].fd = -1;
    if (r->children == 0) return true;
    r->door = door_open(answer->secret, meeting_tag(o), o->rank, 0);
    if (r->door) door_listen(r->door, listener, true);
    return r->door != NULL;
}

void relay_end(Relay *r)
{
    channel_close(&r->parent);
    for (int i = 0; i < TABLE_CHILDREN; i++)
        channel_close(&r->child[i]);
    door_close(r->door);
    bytes_free(&r->table);
    r->door = NULL;
}

/* ---- to the parent --------------------------------------------------------------------------- */

void relay_give(Relay *r, const unsigned char *body, size_t n)
{
    r->has_table = true;
    bytes_put(&r->table, body, n);
}

static void connect_parent(Relay *r, double now)
{
    Address own;
    bool bound = r->o->interface && r->door && network_name(r->door->listener[0], &own) &&
                 own.family == r->answer.reach.family;
    r->began = now;
    r->next = now + r->pause;
    r->pause = fmin(2 * r->pause, MOST_PAUSE);
    r->asked = false;
    channel_open(&r->parent, network_connect(&r->answer.reach, bound ? &own : NULL));
    handshake_begin(&r->hand, r->answer.secret, false, r->o->rank);
    handshake_name(&r->hand, meeting_tag(r->o));
}

static void ask_parent(Relay *r, double now)
{
    const unsigned char *body;
    size_t n;
    int kind;
    if (r->has_table || r->answer.parent == 0) return;
    if (r->parent.fd < 0 && now >= r->next) connect_parent(r, now);
    if (r->parent.fd < 0) return;
    HandshakeState state = handshake_move(&r->hand, r->parent.fd);
    if (state == HANDSHAKE_PROVEN && !r->asked) {
        r->asked = true;
        channel_put(&r->parent, MESSAGE_ASK, NULL);
    }
    if (state == HANDSHAKE_PROVEN && channel_flush(&r->parent) &&
        channel_take(&r->parent, table_most_bytes(r->o->size), &kind, &body, &n) &&
        kind == MESSAGE_TABLE)
        relay_give(r, body, n);
    /* An attempt is repeated if it fails, or if the parent does not prove in time that it knows the
     * secret. */
    bool late = state == HANDSHAKE_GOES_ON && now >= r->began + MEETING_PENDING_SECONDS;
    if (r->has_table || r->parent.gone || late || state == HANDSHAKE_REFUSED ||
        state == HANDSHAKE_LOST)
        channel_close(&r->parent);
}

/* ---- from the children ----------------------------------------------------------------------- */

static bool receive(void *context, const Caller *caller)
{
    Relay *r = context;
    int child = caller->rank - table_first_child(r->o->rank);
    if (caller->kind != MESSAGE_ASK || caller->n != 0 || child < 0 || child >= r->children)
        return false;
    /* A child that connects again has lost its first connection. */
    channel_close(&r->child[child]);
    r->child[child] = *caller->channel;
    *caller->channel = (Channel){.fd = -1};
    return true;
}

static void serve_children(Relay *r, double now)
{
    if (r->door) door_serve(r->door, now, receive, r);
    for (int i = 0; i < r->children && r->has_table; i++) {
        Channel *c = &r->child[i];
        if (c->fd < 0) continue;
        if (c->out.used == 0) channel_put(c, MESSAGE_TABLE, &r->table);
        bool sent = channel_flush(c);
        if (sent && !c->gone) r->served++;
        if (sent) channel_close(c);
    }
    /* All children have the table, so the door is closed. The listening socket stays open, because
     * ranks that have already left the meeting may connect to it to exchange data; an open door
     * would accept these connections. */
    if (r->door && r->served == r->children) {
        door_close(r->door);
        r->door = NULL;
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

int relay_polls(const Relay *r, struct pollfd wait[RELAY_POLLS])
{
    int n = 0;
    if (r->parent.fd >= 0)
        wait[n++] = (struct pollfd){.fd = r->parent.fd,
                                    .events = handshake_sends(&r->hand) ? POLLOUT : POLLIN};
    if (r->door) wait[n++] = (struct pollfd){.fd = r->door->epoll, .events = POLLIN};
    for (int i = 0; i < r->children; i++)
        if (r->child[i].fd >= 0 && r->has_table)
            wait[n++] = (struct pollfd){.fd = r->child[i].fd, .events = POLLOUT};
    return n;
}

double relay_move(Relay *r, double now)
{
    ask_parent(r, now);
    serve_children(r, now);
    double next = r->door ? door_expires(r->door) : INFINITY;
    if (!r->has_table && r->answer.parent != 0)
        next = fmin(next, r->parent.fd < 0 ? r->next : r->began + MEETING_PENDING_SECONDS);
    return next;
}

bool relay_done(const Relay *r)
{
    return r->has_table && r->served == r->children;
}
