/* wire.c -- sends and receives frames on the connection between two ranks. Nothing here blocks. */
#include "parallel/comm/socket/world.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

void *socket_queue_room(void *item, int *first, int *end, int *room, size_t size)
{
    /* Move the items to the front if that makes enough room; otherwise double the memory. */
    int used = *end - *first;
    if (used > 0) memmove(item, (char *)item + (size_t)*first * size, (size_t)used * size);
    *first = 0;
    *end = used;
    if (2 * used < *room) return item;
    *room = *room ? 2 * *room : 16;
    return must_realloc(item, (size_t)*room * size);
}

/* ---- sending --------------------------------------------------------------------------------- */

void socket_put(SocketPeer *peer, SocketFrame frame, const void *data)
{
    *queue_add(&peer->out) = (SocketOut){frame, data};
}

void socket_put_data(SocketGroup *group, int member, Tensor x)
{
    SocketFrame frame = {
        .kind = FRAME_DATA, .group = group->share.id, .bytes = (int64_t)tensor_bytes(x)};
    if (frame.bytes > 0) socket_put(socket_peer(group, member), frame, x.data);
}

static bool is_usable(const SocketPeer *peer)
{
    return peer->state == PEER_CONNECTED && !peer->gone;
}

void socket_flush(SocketPeer *peer)
{
    while (is_usable(peer) && !peer->blocked && !queue_is_empty(&peer->out)) {
        SocketOut *out = queue_first(&peer->out);
        size_t head = sizeof out->frame, all = head + (size_t)out->frame.bytes;
        struct iovec part[2];
        int parts = 0;
        if (peer->sent < head)
            part[parts++] = (struct iovec){(char *)&out->frame + peer->sent, head - peer->sent};
        size_t data_sent = peer->sent > head ? peer->sent - head : 0;
        if (out->frame.bytes > 0)
            part[parts++] = (struct iovec){(char *)(uintptr_t)out->data + data_sent,
                                           (size_t)out->frame.bytes - data_sent};
        struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};
        ssize_t sent = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) peer->blocked = true;
        if (sent < 0 && !peer->blocked) peer->gone = true;
        if (sent < 0) return;
        peer->sent += (size_t)sent;
        if (peer->sent < all) continue;
        peer->sent = 0;
        queue_drop(&peer->out);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

void socket_expect_data(SocketGroup *group, int member, Tensor x)
{
    int64_t bytes = (int64_t)tensor_bytes(x);
    if (bytes > 0) *queue_add(&socket_peer(group, member)->in) = (SocketIn){x.data, bytes};
}

static SocketGroup *find_group(SocketWorld *world, uint64_t id)
{
    for (SocketGroup *group = world->groups; group; group = group->next)
        if (group->share.id == id) return group;
    return NULL;
}

/* Chooses where to store the data of the frame. Called when the frame has been received and its
 * data follow. */
static void prepare_data(SocketWorld *world, SocketPeer *peer)
{
    const SocketFrame *frame = &peer->frame;
    SocketGroup *group = find_group(world, frame->group);
    if (frame->kind == FRAME_DATA) {
        CHECK(!queue_is_empty(&peer->in) && queue_first(&peer->in)->bytes == frame->bytes,
              "rank %d sends %lld bytes, rank %d expects %lld", peer->rank, (long long)frame->bytes,
              world->rank,
              queue_is_empty(&peer->in) ? -1LL : (long long)queue_first(&peer->in)->bytes);
        peer->into = queue_first(&peer->in)->data;
        return;
    }
    bool arrives = frame->kind == FRAME_ARRIVE, met = frame->kind == FRAME_MET;
    CHECK(frame->bytes >= 0 && frame->bytes <= (arrives || met ? LARGE_MEETING_BYTES : 0),
          "rank %d sends %lld bytes", peer->rank, (long long)frame->bytes);
    /* If the group is not found, this rank has left it. */
    peer->into = group ? group->contribution : world->dropped;
    if (group == NULL || !(arrives || met)) return;
    int member = socket_member(group, peer->rank);
    if (arrives) peer->into = socket_room_for(group, member, frame);
    CHECK(arrives ||
              (member == group->place.parent && frame->bytes <= (int64_t)group->meeting_bytes),
          "rank %d as member %d answers with %lld bytes", peer->rank, member,
          (long long)frame->bytes);
}

/* Handles a frame whose data are complete. */
static void handle(SocketWorld *world, SocketPeer *peer)
{
    const SocketFrame *frame = &peer->frame;
    SocketGroup *group = find_group(world, frame->group);
    switch ((SocketFrameKind)frame->kind) {
    case FRAME_ARRIVE:
        if (group) socket_has_arrived(group, socket_member(group, peer->rank), frame);
        break;
    case FRAME_ODD:
        if (group) socket_is_odd(group, frame);
        break;
    case FRAME_MET:
        if (group == NULL) break;
        group->met = true;
        group->answer_bytes = (size_t)frame->bytes;
        break;
    case FRAME_OFFER: socket_offered(world, peer->rank, frame); break;
    case FRAME_ACCEPT: socket_accepted(world, peer->rank, frame); break;
    case FRAME_DATA: queue_drop(&peer->in); break;
    }
}

bool socket_receive(SocketWorld *world, SocketPeer *peer)
{
    const size_t head = sizeof peer->frame;
    bool in_head = peer->got < head;
    char *to = in_head ? (char *)&peer->frame + peer->got : (char *)peer->into + (peer->got - head);
    size_t most = in_head ? head - peer->got : (size_t)peer->frame.bytes - (peer->got - head);
    if (!is_usable(peer)) return false;
    ssize_t got = recv(peer->fd, to, most, 0);
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
        peer->gone = true;
        return false;
    }
    peer->got += (size_t)got;
    if (in_head && peer->got == head) prepare_data(world, peer);
    if (peer->got < head || peer->got - head < (size_t)peer->frame.bytes) return true;
    peer->got = 0;
    handle(world, peer);
    return true;
}
