/* meet.c -- meetings of a group of process ranks. All members send their call to member 0, which
 * compares the calls and sends all members' contributions to everyone. */
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
                         .root = root < 0 ? -1 : group->share.member[root],
                         .device = on != NULL};
}

/* Ends the program if the members' calls differ. */
static void check_calls(const SocketGroup *group)
{
    const SocketFrame *first = &group->call;
    for (int i = 1; i < group->share.size; i++) {
        CommCall one = socket_seen(first), other = socket_seen(&group->came[i]);
        char a[128], b[128];
        CHECK(comm_call_same(&one, &other), "call %lld of group %s: rank %d makes %s, rank %d %s",
              (long long)group->share.calls, group->share.name, group->share.member[0],
              comm_call_text(&one, a, sizeof a), group->share.member[i],
              comm_call_text(&other, b, sizeof b));
    }
}

static bool has_not_come(SocketGroup *group, int member)
{
    return group->arrived[member] < group->share.meetings;
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

bool socket_fits(const SocketGroup *group, size_t bytes)
{
    return bytes <= (size_t)(MEETING_BYTES / group->share.size);
}

/* Member 0's part of a meeting. */
static void hold_meeting(Comm *comm, SocketFrame call, const void *contribution, size_t bytes)
{
    SocketGroup *group = socket_group(comm);
    socket_drive(comm, has_not_come);
    check_calls(group);
    if (bytes > 0) memcpy(group->contribution, contribution, bytes);
    call.kind = FRAME_MET;
    call.bytes = (int64_t)bytes * group->share.size;
    for (int i = 1; i < group->share.size; i++)
        socket_put(socket_peer(group, i), call, group->contribution);
    socket_drive(comm, expects_nothing);
}

void socket_meet(Comm *comm, SocketFrame call, const void *contribution, size_t bytes)
{
    SocketGroup *group = socket_group(comm);
    CHECK(group->notes == 0, "%s in a group of %d messages", name_of(call.call), group->notes);
    group->share.calls++;
    call.number = ++group->share.meetings;
    call.kind = FRAME_ARRIVE;
    call.bytes = (int64_t)bytes;
    group->call = call;
    group->meeting = true;
    if (group->rank == 0) {
        hold_meeting(comm, call, contribution, bytes);
    } else {
        group->met = false;
        socket_put(socket_peer(group, 0), call, contribution);
        socket_drive(comm, waits_for_answer);
    }
    group->meeting = false;
}
