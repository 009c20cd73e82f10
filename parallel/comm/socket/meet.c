/* meet.c -- meetings of a group of process ranks. All members send their call and their
 * contribution to member 0, which compares the calls and sends an answer to all. In large groups
 * both are sent over a tree, in which each member compares the calls of the members below it and
 * forwards their contributions. */
#include "parallel/comm/socket/world.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(int call)
{
    static const char *const own[] = {"barrier", "split", "tree of control"};
    return call < COMM_VERBS ? comm_verb_name[call] : own[call - COMM_VERBS];
}

CommCall socket_seen(const SocketFrame *frame)
{
    return (CommCall){.name = name_of(frame->call),
                      .made = frame->call == CALL_SPLIT ? frame->made : NULL,
                      .count = frame->count,
                      .dtype = (DType)frame->dtype,
                      .op = (ReduceOp)frame->op,
                      .root = frame->root,
                      .device = frame->device};
}

SocketFrame socket_call(Comm *comm, int call, const Device *on, Tensor x, ReduceOp op, int root)
{
    SocketGroup *group = socket_group(comm);
    if (on && on->backend->place != PLACE_HOST)
        fail(EXIT_CONFIG,
             "group %s: %s of tensors in the memory of %s: ranks that are processes exchange these "
             "through NCCL only, with a GPU each",
             group->share.name, name_of(call), on->backend->name);
    return (SocketFrame){.group = group->share.id,
                         .call = call,
                         .count = tensor_count(x),
                         .dtype = (int32_t)x.dtype,
                         .op = (int32_t)op,
                         .root = root < 0 ? -1 : socket_world_rank(group, root),
                         .device = on != NULL};
}

static bool same_call(const SocketFrame *a, const SocketFrame *b)
{
    CommCall one = socket_seen(a), other = socket_seen(b);
    return comm_call_same(&one, &other);
}

/* Returns the first member below this one whose call differs from this member's, and writes that
 * call to *odd; -1: no call differs. A child's range begins with the child, so if a child's own
 * call differs, the members below it need not be checked. */
static int find_odd(const SocketGroup *group, SocketFrame *odd)
{
    const TreePlace *place = &group->place;
    int found = group->odd_member;
    *odd = group->odd;
    for (int k = 0; k < place->children; k++) {
        int child = socket_tree_child(place, k);
        if (found >= 0 && found < child) break;
        if (same_call(&group->call, &group->came[k])) continue;
        *odd = group->came[k];
        return child;
    }
    return found;
}

/* Ends the program if the members' calls differ. */
static void check_calls(const SocketGroup *group)
{
    SocketFrame odd;
    int member = find_odd(group, &odd);
    if (member < 0) return;
    CommCall one = socket_seen(&group->call), other = socket_seen(&odd);
    char a[128], b[128];
    CHECK(comm_call_same(&one, &other), "call %lld of group %s: rank %d makes %s, rank %d %s",
          (long long)group->share.calls, group->share.name, socket_world_rank(group, 0),
          comm_call_text(&one, a, sizeof a), socket_world_rank(group, member),
          comm_call_text(&other, b, sizeof b));
}

static bool has_not_come(SocketGroup *group, int member)
{
    int k = socket_tree_which_child(&group->place, member);
    return k >= 0 && group->arrived[k] < group->share.meetings;
}

static bool waits_for_answer(SocketGroup *group, int member)
{
    return member == group->place.parent && !group->met;
}

static bool expects_nothing(SocketGroup *group, int member)
{
    (void)group, (void)member;
    return false;
}

unsigned char *socket_room_for(SocketGroup *group, int member, const SocketFrame *frame)
{
    const TreePlace *place = &group->place;
    int k = socket_tree_which_child(place, member), range = 1, first = member;
    CHECK(k >= 0, "rank %d as member %d of group %s arrives at member %d",
          socket_world_rank(group, member), member, group->share.name, place->member);
    int members = socket_tree_child_range(place, k);
    if (frame->call != COMM_BROADCAST)
        range = members;
    else if (frame->bytes > 0) /* the root's contribution is the only one */
        first = socket_member(group, frame->root);
    int64_t each = frame->bytes / range, room = (int64_t)group->meeting_bytes / socket_size(group);
    CHECK(each <= room && each * range == frame->bytes && first >= member &&
              first < member + members,
          "rank %d as member %d sends %lld bytes, more than %lld", socket_world_rank(group, member),
          member, (long long)frame->bytes, (long long)room);
    return group->contribution + (first - place->member) * each;
}

void socket_has_arrived(SocketGroup *group, int member, const SocketFrame *frame)
{
    int k = socket_tree_which_child(&group->place, member);
    group->came[k] = *frame;
    group->arrived[k] = frame->number;
}

void socket_is_odd(SocketGroup *group, const SocketFrame *frame)
{
    int member = socket_member(group, (int)frame->number);
    if (group->odd_member >= 0 && group->odd_member < member) return;
    group->odd_member = member;
    group->odd = *frame;
}

/* Sends the contributions of this member and of all below it, `bytes` each, to the parent. If calls
 * differ, member 0 needs only the first different one. */
static void pass_up(SocketGroup *group, size_t bytes)
{
    const TreePlace *place = &group->place;
    SocketPeer *parent = socket_peer(group, place->parent);
    SocketFrame call = group->call, odd;
    const unsigned char *data = group->contribution;
    int member = find_odd(group, &odd);
    call.bytes = (int64_t)bytes * (place->end - place->member);
    if (call.call == COMM_BROADCAST) {
        int root = socket_member(group, call.root);
        bool below = root >= place->member && root < place->end;
        call.bytes = below ? (int64_t)bytes : 0;
        if (below) data += (size_t)(root - place->member) * bytes;
    }
    if (member >= 0) {
        odd.kind = FRAME_ODD;
        odd.number = socket_world_rank(group, member);
        odd.bytes = call.bytes = 0;
        socket_put(parent, odd, NULL);
    }
    socket_put(parent, call, data);
}

void socket_arrive(Comm *comm, SocketFrame call, const void *contribution, size_t bytes, bool first)
{
    SocketGroup *group = socket_group(comm);
    const TreePlace *place = &group->place;
    CHECK(group->notes == 0, "%s in a group of %d messages", name_of(call.call), group->notes);
    CHECK(bytes <= group->meeting_bytes / (size_t)comm->size, "a contribution of %zu bytes", bytes);
    if (first) group->share.calls++;
    call.number = ++group->share.meetings;
    call.kind = FRAME_ARRIVE;
    call.bytes = contribution ? (int64_t)bytes : 0;
    group->call = call;
    group->meeting = true;
    group->met = false;
    if (comm->rank > 0 && place->children == 0) {
        socket_put(socket_peer(group, place->parent), call, contribution);
        return;
    }
    socket_drive(comm, place->end, has_not_come);
    if (comm->rank == 0) check_calls(group);
    if (call.bytes > 0) memcpy(group->contribution, contribution, bytes);
    if (comm->rank > 0) pass_up(group, bytes);
}

void socket_answer(SocketGroup *group, int member, const void *answer, size_t bytes)
{
    SocketFrame frame = group->call;
    frame.kind = FRAME_MET;
    frame.bytes = (int64_t)bytes;
    socket_put(socket_peer(group, member), frame, answer);
}

void socket_answer_all(SocketGroup *group, const void *answer, size_t bytes)
{
    for (int k = 0; k < group->place.children; k++)
        socket_answer(group, socket_tree_child(&group->place, k), answer, bytes);
}

void socket_part(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    const TreePlace *place = &group->place;
    if (comm->rank > 0) {
        socket_drive(comm, place->parent + 1, waits_for_answer);
        socket_answer_all(group, group->contribution, group->answer_bytes);
    }
    if (place->children > 0) socket_drive(comm, place->end, expects_nothing);
    group->meeting = false;
}

void socket_meet(Comm *comm, SocketFrame call)
{
    socket_arrive(comm, call, NULL, 0, true);
    if (comm->rank == 0) socket_answer_all(socket_group(comm), NULL, 0);
    socket_part(comm);
}
