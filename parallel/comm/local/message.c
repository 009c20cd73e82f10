/* message.c -- messages between thread ranks. All sends are posted first. Each receive then takes
 * the peer's next posted message. Therefore no order of calls inside a group can deadlock the
 * ranks. */
#include "model/core/check.h"
#include "parallel/comm/local/group.h"

#include <string.h>

/* Returns whether the member, which is asleep in a receive, waits for this peer. Returns false if
 * the message has already arrived: then the member only has to wake up, and the peer may be waiting
 * for the member. */
static bool has_not_sent(const LocalGroup *group, int rank, int peer)
{
    const LocalPair *pair = &group->pair[peer * group->size + rank];
    return group->member[rank].call.root == peer &&
           atomic_load(&pair->sent) <= atomic_load(&pair->taken);
}

/* Returns whether the member, which is asleep in a send, waits for this peer. Returns false if the
 * peer has already taken all messages: then the member only has to wake up. */
static bool has_not_taken(const LocalGroup *group, int rank, int peer)
{
    const LocalPair *pair = &group->pair[rank * group->size + peer];
    return group->member[rank].call.root == peer &&
           atomic_load(&pair->taken) < atomic_load(&pair->sent);
}

/* Stores the call that the member waits in, for error messages. */
static void waits_in(LocalMember *self, const LocalMessage *m)
{
    self->call = (LocalCall){.name = comm_verb_name[m->sends ? COMM_SEND : COMM_RECEIVE],
                             .count = tensor_count(m->x),
                             .dtype = m->x.dtype,
                             .root = m->peer,
                             .backend = m->on ? m->on->backend : NULL};
}

/* Makes all sends of this group of calls visible to the peers. The events are recorded first,
 * because a peer's stream may wait for them at once. */
static void post(Comm *comm)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    int64_t sent[LOCAL_MAX_RANKS] = {0};
    for (int i = 0; i < self->notes; i++) {
        LocalMessage *m = &self->note[i];
        if (!m->sends) continue;
        LocalPair *pair = local_pair(group, comm->rank, m->peer);
        if (sent[m->peer]++ == 0) {
            local_record(comm, m->on, &pair->before);
            pair->first = m;
        } else {
            pair->last->next = m;
        }
        pair->last = m;
    }
    /* Increment the counter last: from then on the peer reads the list, without a mutex. */
    for (int peer = 0; peer < comm->size; peer++) {
        if (sent[peer] == 0) continue;
        atomic_fetch_add(&local_pair(group, comm->rank, peer)->sent, sent[peer]);
        local_wake(group, &group->member[peer]);
    }
}

/* Ends the program unless the peer's next message has the dtype, the size and the place (host or
 * device) that the receive expects. */
static void check_message(const Comm *comm, const LocalPair *pair, const LocalMessage *m)
{
    const LocalGroup *group = local_group(comm);
    const LocalMessage *sent = pair->first;
    CHECK(sent->x.dtype == m->x.dtype && tensor_count(sent->x) == tensor_count(m->x) &&
              (sent->on == NULL) == (m->on == NULL),
          "group %s: rank %d sends %lld %s%s, rank %d receives %lld %s%s", group->name,
          group->member[m->peer].world_rank, (long long)tensor_count(sent->x),
          dtype_name(sent->x.dtype), sent->on ? "" : " in host memory",
          group->member[comm->rank].world_rank, (long long)tensor_count(m->x),
          dtype_name(m->x.dtype), m->on ? "" : " in host memory");
    /* One event, `after`, covers all messages of a group of calls. If they were received on two
     * streams, the sender would wait only for the stream that recorded the event last. */
    CHECK(pair->seen == pair->taken || (m->on ? m->on->compute.impl : NULL) == pair->reader,
          "group %s: rank %d receives on two streams what rank %d sends in one group", group->name,
          group->member[comm->rank].world_rank, group->member[m->peer].world_rank);
}

static void take(Comm *comm, const LocalMessage *m)
{
    LocalGroup *group = local_group(comm);
    LocalPair *pair = local_pair(group, m->peer, comm->rank);
    waits_in(local_member(comm), m);
    local_await(comm, &pair->sent, pair->taken + 1, has_not_sent);
    check_message(comm, pair, m);
    pair->reader = m->on ? m->on->compute.impl : NULL;
    /* one wait covers all messages of the peer's group of calls */
    if (pair->seen == pair->taken) local_wait(m->on, &pair->before);
    local_copy(m->on, m->x, pair->first->x);
    local_record(comm, m->on, &pair->after);
    pair->first = pair->first->next;
    /* Increment the counter last: then the sender may start a new list and overwrite the
     * message. */
    atomic_fetch_add(&pair->taken, 1);
    local_wake(group, &group->member[m->peer]);
}

/* Waits until the peers have taken all sends, and makes this member's stream wait until the peers'
 * streams have copied them. After that the stream may overwrite the tensors. */
static void wait_taken(Comm *comm)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    for (int i = 0; i < self->notes; i++) {
        LocalMessage *m = &self->note[i];
        LocalPair *pair = local_pair(group, comm->rank, m->peer);
        if (!m->sends || pair->seen == pair->sent) continue;
        waits_in(self, m);
        local_await(comm, &pair->taken, pair->sent, has_not_taken);
        local_wait(m->on, &pair->after);
        atomic_store(&pair->seen, pair->sent);
    }
}

static void run(Comm *comm)
{
    LocalMember *self = local_member(comm);
    self->calls++;
    /* All sends are visible before this member waits for anything, so no order of calls can
     * deadlock. */
    post(comm);
    for (int i = 0; i < self->notes; i++)
        if (!self->note[i].sends) take(comm, &self->note[i]);
    wait_taken(comm);
    self->notes = 0;
}

static void note(Comm *comm, LocalMessage message)
{
    LocalMember *self = local_member(comm);
    CHECK(message.peer != comm->rank, "a message of rank %d to itself", comm->rank);
    /* One event covers all messages between two ranks, so they must use one stream. */
    CHECK(self->notes == 0 || (self->note[0].on == NULL) == (message.on == NULL) ||
              self->note[0].on->compute.impl == message.on->compute.impl,
          "messages of one group on two streams, to or from ranks %d and %d", self->note[0].peer,
          message.peer);
    if (self->notes == self->room) {
        self->room *= 2;
        self->note = must_realloc(self->note, (size_t)self->room * sizeof *self->note);
    }
    self->note[self->notes++] = message;
    if (!self->noting) run(comm);
}

void local_send(Comm *comm, Device *on, Tensor x, int to)
{
    note(comm, (LocalMessage){.x = x, .on = on, .peer = to, .sends = true});
}

void local_receive(Comm *comm, Device *on, Tensor x, int from)
{
    note(comm, (LocalMessage){.x = x, .on = on, .peer = from});
}

void local_group_begin(Comm *comm)
{
    LocalMember *self = local_member(comm);
    CHECK(!self->noting, "group_begin inside a group of %d messages", self->notes);
    self->noting = true;
}

void local_group_end(Comm *comm)
{
    LocalMember *self = local_member(comm);
    CHECK(self->noting, "group_end without group_begin, %d messages", self->notes);
    self->noting = false;
    if (self->notes > 0) run(comm);
}
