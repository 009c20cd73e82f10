/* meet.c -- meetings of a group of process ranks. All members send their call and what they
 * contribute to member 0, which compares the calls and sends an answer to everyone. */
#include "parallel/comm/socket/world.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(int call)
{
    return call == CALL_BARRIER ? "barrier" : call == CALL_SPLIT ? "split" : comm_verb_name[call];
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

/* Ends the program if the members' calls differ. */
static void check_calls(const SocketGroup *group)
{
    const SocketFrame *first = &group->call;
    for (int i = 1; i < socket_size(group); i++) {
        CommCall one = socket_seen(first), other = socket_seen(&group->came[i]);
        char a[128], b[128];
        CHECK(comm_call_same(&one, &other), "call %lld of group %s: rank %d makes %s, rank %d %s",
              (long long)group->share.calls, group->share.name, socket_world_rank(group, 0),
              comm_call_text(&one, a, sizeof a), socket_world_rank(group, i),
              comm_call_text(&other, b, sizeof b));
    }
}

static bool has_not_come(SocketGroup *group, int member)
{
    return member > 0 && group->arrived[member] < group->share.meetings;
}

static bool waits_for_answer(SocketGroup *group, int member)
{
    return member == 0 && !group->met;
}

static bool expects_nothing(SocketGroup *group, int member)
{
    (void)group, (void)member;
    return false;
}

void socket_has_arrived(SocketGroup *group, int member, const SocketFrame *frame)
{
    group->came[member] = *frame;
    group->arrived[member] = frame->number;
}

void socket_arrive(Comm *comm, SocketFrame call, const void *contribution, size_t bytes, bool first)
{
    SocketGroup *group = socket_group(comm);
    CHECK(group->notes == 0, "%s in a group of %d messages", name_of(call.call), group->notes);
    CHECK(bytes <= group->meeting_bytes / (size_t)comm->size, "a contribution of %zu bytes", bytes);
    if (first) group->share.calls++;
    call.number = ++group->share.meetings;
    call.kind = FRAME_ARRIVE;
    call.bytes = contribution ? (int64_t)bytes : 0;
    group->call = call;
    group->meeting = true;
    group->met = false;
    if (comm->rank > 0) {
        socket_put(socket_peer(group, 0), call, contribution);
        return;
    }
    socket_drive(comm, comm->size, has_not_come);
    check_calls(group);
    if (call.bytes > 0) memcpy(group->contribution, contribution, bytes);
}

void socket_answer(SocketGroup *group, int member, const void *answer, size_t bytes)
{
    SocketFrame frame = group->call;
    frame.kind = FRAME_MET;
    frame.bytes = (int64_t)bytes;
    socket_put(socket_peer(group, member), frame, answer);
}

void socket_part(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    if (comm->rank == 0)
        socket_drive(comm, comm->size, expects_nothing);
    else
        socket_drive(comm, 1, waits_for_answer);
    group->meeting = false;
}

void socket_meet(Comm *comm, SocketFrame call)
{
    socket_arrive(comm, call, NULL, 0, true);
    for (int i = 1; comm->rank == 0 && i < comm->size; i++)
        socket_answer(socket_group(comm), i, NULL, 0);
    socket_part(comm);
}
