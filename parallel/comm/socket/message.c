/* message.c -- messages between process ranks. A sender offers its messages, and sends the data of
 * each when the receiver has accepted it. So a connection never carries data that its receiver
 * cannot take, and no order of calls inside a group can deadlock the ranks. */
#include "parallel/comm/socket/world.h"

#include <string.h>

static SocketFrame frame_of(SocketGroup *group, const SocketMessage *m)
{
    return (SocketFrame){.group = group->share.id,
                         .call = m->sends ? COMM_SEND : COMM_RECEIVE,
                         .count = tensor_count(m->x),
                         .dtype = (int32_t)m->x.dtype,
                         .root = socket_world_rank(group, m->peer),
                         .device = m->device};
}

/* Returns the first message to or from that member that is not matched yet, or NULL. */
static SocketMessage *unmatched(SocketGroup *group, int member, bool sends)
{
    for (int i = 0; i < group->notes; i++) {
        SocketMessage *m = &group->note[i];
        if (m->peer == member && m->sends == sends && !m->matched) return m;
    }
    return NULL;
}

/* Ends the program unless the offered message has the dtype, the size and the place (host or
 * device) that the receive expects. */
static void check_message(SocketGroup *group, const SocketFrame *sent, const SocketMessage *m)
{
    CHECK(sent->dtype == (int32_t)m->x.dtype && sent->count == tensor_count(m->x) &&
              sent->device == m->device,
          "group %s: rank %d sends %lld %s%s, rank %d receives %lld %s%s", group->share.name,
          socket_world_rank(group, m->peer), (long long)sent->count, dtype_name((DType)sent->dtype),
          sent->device ? "" : " in host memory", group->world->rank, (long long)tensor_count(m->x),
          dtype_name(m->x.dtype), m->device ? "" : " in host memory");
}

/* Takes the peer's oldest offer to this group from its queue. Returns false if there is none. */
static bool take_offer(SocketPeer *peer, uint64_t group, SocketFrame *offer)
{
    for (int i = peer->offers.first; i < peer->offers.end; i++) {
        if (peer->offers.item[i].group != group) continue;
        *offer = peer->offers.item[i];
        memmove(&peer->offers.item[peer->offers.first + 1], &peer->offers.item[peer->offers.first],
                (size_t)(i - peer->offers.first) * sizeof *offer);
        queue_drop(&peer->offers);
        return true;
    }
    return false;
}

/* Accepts those offers of the member for which receives have been called. */
static void accept_offers(SocketGroup *group, int member)
{
    SocketPeer *peer = socket_peer(group, member);
    SocketMessage *m;
    SocketFrame offer;
    while ((m = unmatched(group, member, false)) && take_offer(peer, group->share.id, &offer)) {
        check_message(group, &offer, m);
        m->matched = true;
        offer.kind = FRAME_ACCEPT;
        socket_expect_data(group, member, m->x);
        socket_put(peer, offer, NULL);
    }
}

void socket_offered(SocketWorld *world, int rank, const SocketFrame *frame)
{
    *queue_add(&socket_peer_of(world, rank)->offers) = *frame;
    if (world->messages && world->messages->share.id == frame->group)
        accept_offers(world->messages, socket_member(world->messages, rank));
}

void socket_accepted(SocketWorld *world, int rank, const SocketFrame *frame)
{
    SocketGroup *group = world->messages;
    CHECK(group && group->share.id == frame->group, "rank %d accepts what rank %d has not offered",
          rank, world->rank);
    int member = socket_member(group, rank);
    SocketMessage *m = unmatched(group, member, true);
    CHECK(m != NULL, "rank %d accepts more than rank %d has offered", rank, world->rank);
    m->matched = true;
    socket_put_data(group, member, m->x);
}

static bool expects(SocketGroup *group, int member)
{
    return unmatched(group, member, false) || unmatched(group, member, true) ||
           !queue_is_empty(&socket_peer(group, member)->in);
}

int socket_awaited_message(SocketGroup *group, SocketFrame *call)
{
    const SocketMessage *first = NULL;
    /* First choose a receive without an offer, then a send that was not accepted, then a message
     * whose data are being transferred. */
    for (int pass = 0; pass < 3 && first == NULL; pass++)
        for (int i = 0; i < group->notes && first == NULL; i++) {
            const SocketMessage *m = &group->note[i];
            SocketPeer *peer = socket_peer(group, m->peer);
            bool moves = !queue_is_empty(&peer->in) || !queue_is_empty(&peer->out);
            if (pass == 2 ? moves : !m->matched && m->sends == (pass == 1)) first = m;
        }
    if (first == NULL) first = &group->note[0];
    *call = frame_of(group, first);
    return socket_world_rank(group, first->peer);
}

static void run(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    group->share.calls++;
    group->world->messages = group;
    for (int i = 0; i < group->notes; i++) {
        SocketMessage *m = &group->note[i];
        SocketFrame offer = frame_of(group, m);
        offer.kind = FRAME_OFFER;
        if (m->sends) socket_put(socket_peer(group, m->peer), offer, NULL);
    }
    for (int i = 0; i < group->notes; i++)
        if (!group->note[i].sends) accept_offers(group, group->note[i].peer);
    socket_drive(comm, socket_size(group), expects);
    group->world->messages = NULL;
    group->notes = 0;
}

static void note(Comm *comm, Device *on, SocketMessage message)
{
    SocketGroup *group = socket_group(comm);
    CHECK(message.peer != comm->rank, "a message of rank %d to itself", comm->rank);
    socket_call(comm, message.sends ? COMM_SEND : COMM_RECEIVE, on, message.x, REDUCE_SUM, -1);
    if (group->notes == group->room) {
        group->room *= 2;
        group->note = must_realloc(group->note, (size_t)group->room * sizeof *group->note);
    }
    message.device = on != NULL;
    group->note[group->notes++] = message;
    if (!group->noting) run(comm);
}

void socket_send(Comm *comm, Device *on, Tensor x, int to)
{
    note(comm, on, (SocketMessage){.x = x, .peer = to, .sends = true});
}

void socket_receive_message(Comm *comm, Device *on, Tensor x, int from)
{
    note(comm, on, (SocketMessage){.x = x, .peer = from});
}

void socket_group_begin(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    CHECK(!group->noting, "group_begin inside a group of %d messages", group->notes);
    group->noting = true;
}

void socket_group_end(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    CHECK(group->noting, "group_end without group_begin, %d messages", group->notes);
    group->noting = false;
    if (group->notes > 0) run(comm);
}
