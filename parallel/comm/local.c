/* local.c -- groups of thread ranks: how they are made, how members meet and how they leave. What
 * moves data stands in local_collective.c and local_message.c. */
#include "parallel/comm/local.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/local_group.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct LocalWorld {
    double timeout; /* seconds; 0: none */
    int yields;     /* how often a member looks again before it sleeps */
    pthread_mutex_t mutex;
    LocalGroup *all;    /* the group of all ranks */
    LocalGroup *groups; /* all but that which somebody has open, guarded by the mutex */
};

/* ---- the life of a group --------------------------------------------------------------------- */

static LocalGroup *group_create(LocalWorld *world, const char *name, int size)
{
    LocalGroup *group = must_calloc(1, sizeof *group);
    pthread_condattr_t clock;
    *group = (LocalGroup){.world = world, .size = size, .open = size};
    snprintf(group->name, sizeof group->name, "%s", name);
    group->member = must_calloc((size_t)size, sizeof *group->member);
    group->pair = must_calloc((size_t)size * (size_t)size, sizeof *group->pair);
    pthread_mutex_init(&group->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    for (int i = 0; i < size; i++) {
        pthread_cond_init(&group->member[i].woken, &clock);
        group->member[i].world_rank = i;
    }
    pthread_condattr_destroy(&clock);
    return group;
}

static void group_free(LocalGroup *group)
{
    for (int i = 0; i < group->size; i++) {
        pthread_cond_destroy(&group->member[i].woken);
        free(group->member[i].note);
    }
    pthread_mutex_destroy(&group->mutex);
    free(group->member);
    free(group->pair);
    free(group);
}

/* From here on those who leave the world leave this group, too. */
static void open_group(LocalGroup *group)
{
    LocalWorld *world = group->world;
    pthread_mutex_lock(&world->mutex);
    group->next = world->groups;
    world->groups = group;
    pthread_mutex_unlock(&world->mutex);
}

LocalWorld *local_world_create(int size, double timeout)
{
    CHECK(size >= 1 && size <= LOCAL_MAX_RANKS && timeout >= 0, "%d ranks, %g s", size, timeout);
    LocalWorld *world = must_calloc(1, sizeof *world);
    world->timeout = timeout;
    /* Where each rank has a core of its own a peer often comes within the time that falling asleep
     * and waking up would take. */
    world->yields = size <= pool_allowed_cores() ? 64 : 0;
    pthread_mutex_init(&world->mutex, NULL);
    world->all = group_create(world, "world", size);
    return world;
}

void local_world_destroy(LocalWorld *world)
{
    group_free(world->all);
    while (world->groups) { /* of ranks that ended before their time */
        LocalGroup *group = world->groups;
        world->groups = group->next;
        group_free(group);
    }
    pthread_mutex_destroy(&world->mutex);
    free(world);
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* "all-reduce of 12 f32", "receive of 3 f64 of the host from rank 2", "barrier". */
static const char *describe(const LocalGroup *group, const LocalCall *call, char *buf, size_t n)
{
    FILE *to = fmemopen(buf, n, "w");
    CHECK(to != NULL, "no stream over %zu bytes", n);
    fputs(call->name, to);
    if (call->made) fprintf(to, " into %s", call->made);
    if (call->count >= 0)
        fprintf(to, " of %lld %s%s", (long long)call->count, dtype_name(call->dtype),
                call->backend ? "" : " of the host");
    if (call->op == REDUCE_MAX) fputs(", the largest", to);
    if (call->root >= 0)
        fprintf(to, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from",
                group->member[call->root].world_rank);
    fclose(to);
    return buf;
}

static bool same_call(const LocalCall *a, const LocalCall *b)
{
    return strcmp(a->name, b->name) == 0 && a->count == b->count && a->dtype == b->dtype &&
           a->op == b->op && a->root == b->root && a->backend == b->backend &&
           (a->made == NULL || strcmp(a->made, b->made) == 0);
}

/* Of the last who comes: all calls are there to be read. */
static void check_calls(const LocalGroup *group)
{
    const LocalMember *first = &group->member[0];
    for (int i = 1; i < group->size; i++) {
        const LocalMember *other = &group->member[i];
        char a[128], b[128];
        CHECK(same_call(&first->call, &other->call),
              "call %lld of group %s: rank %d makes %s, rank %d %s", (long long)first->calls,
              group->name, first->world_rank, describe(group, &first->call, a, sizeof a),
              other->world_rank, describe(group, &other->call, b, sizeof b));
    }
}

double local_deadline(const Comm *comm)
{
    double timeout = local_group(comm)->world->timeout;
    return timeout > 0 ? seconds_now() + timeout : 0;
}

/* Ends the program: this member waits in vain, for those of whom `waiting_for` and `lost` (they
 * have left) are true. */
static void end_waiting(Comm *comm, bool lost,
                        bool (*waiting_for)(const LocalGroup *, int rank, int peer))
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    char call[128], who[512] = "";
    int waited = 0;
    for (int i = 0; i < group->size; i++) {
        if (!waiting_for(group, comm->rank, i) || (lost && !group->member[i].closed)) continue;
        size_t used = strlen(who);
        snprintf(who + used, sizeof who - used, "%s%d", waited++ ? ", " : "",
                 group->member[i].world_rank);
    }
    describe(group, &self->call, call, sizeof call);
    pthread_mutex_unlock(&group->mutex);
    const char *s = waited > 1 ? "s" : "", *have = waited > 1 ? "have" : "has";
    if (lost)
        fail(EXIT_PEER_LOST,
             "group %s, call %lld, %s: rank %d waits for rank%s %s, which %s left the group",
             group->name, (long long)self->calls, call, self->world_rank, s, who, have);
    fail(EXIT_HANG,
         "group %s, call %lld, %s: rank %d has waited %g s (parallel.timeout) for rank%s %s, which "
         "%s not arrived",
         group->name, (long long)self->calls, call, self->world_rank, group->world->timeout, s, who,
         have);
}

void local_sleep(Comm *comm, double deadline,
                 bool (*waiting_for)(const LocalGroup *, int rank, int peer))
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    for (int i = 0; i < group->size; i++)
        if (group->member[i].closed && waiting_for(group, comm->rank, i))
            end_waiting(comm, true, waiting_for);
    if (deadline > 0 && seconds_now() >= deadline) end_waiting(comm, false, waiting_for);
    self->asleep = true;
    if (deadline > 0) {
        struct timespec until = {.tv_sec = (time_t)deadline};
        until.tv_nsec = (long)((deadline - (double)until.tv_sec) * 1e9);
        pthread_cond_timedwait(&self->woken, &group->mutex, &until);
    } else {
        pthread_cond_wait(&self->woken, &group->mutex);
    }
    self->asleep = false;
}

void local_wake(LocalMember *member)
{
    if (member->asleep) pthread_cond_signal(&member->woken);
}

static void wake_all(LocalGroup *group)
{
    for (int i = 0; i < group->size; i++)
        local_wake(&group->member[i]);
}

static bool has_not_come(const LocalGroup *group, int rank, int peer)
{
    return group->member[peer].arrived < group->member[rank].arrived;
}

void local_begin(Comm *comm, LocalCall call)
{
    LocalMember *self = local_member(comm);
    CHECK(self->notes == 0, "%s in a group of %d messages", call.name, self->notes);
    call.backend = call.on ? call.on->backend : NULL;
    self->call = call;
    self->calls++;
}

void local_meet(Comm *comm)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    pthread_mutex_lock(&group->mutex);
    int64_t meeting = self->arrived++;
    if (++group->here == group->size) {
        check_calls(group);
        group->here = 0;
        atomic_store_explicit(&group->meetings, meeting + 1, memory_order_release);
        wake_all(group);
        pthread_mutex_unlock(&group->mutex);
        return;
    }
    pthread_mutex_unlock(&group->mutex);
    for (int i = 0; i < group->world->yields; i++) {
        if (atomic_load_explicit(&group->meetings, memory_order_acquire) > meeting) return;
        sched_yield();
    }
    pthread_mutex_lock(&group->mutex);
    double deadline = local_deadline(comm);
    while (atomic_load_explicit(&group->meetings, memory_order_acquire) == meeting)
        local_sleep(comm, deadline, has_not_come);
    pthread_mutex_unlock(&group->mutex);
}

/* ---- streams --------------------------------------------------------------------------------- */

void local_record(Comm *comm, Device *on, Event *event)
{
    if (on == NULL) return;
    LocalMember *self = local_member(comm);
    if (self->device.backend == NULL) self->device = *on;
    device_event_record(on, event);
}

void local_wait(Device *on, Event *event)
{
    if (on) device_event_wait(on, event);
}

void local_copy(Device *on, Tensor dst, Tensor src)
{
    if (dst.data == src.data || tensor_count(src) == 0) return;
    if (on == NULL)
        memmove(dst.data, src.data, tensor_bytes(src));
    else
        device_copy(on, tensor_flat(dst), tensor_flat(src));
}

/* ---- joining, splitting, leaving ------------------------------------------------------------- */

static void local_barrier(Comm *comm)
{
    local_begin(comm, (LocalCall){.name = "barrier", .count = -1, .root = -1});
    local_meet(comm);
}

static Comm local_split(Comm *comm, const char *name, int color, int key);
static void local_close(Comm *comm);

static Comm member_of(LocalGroup *group, int rank)
{
    static const CommOps local = {.name = "local",
                                  .all_reduce = local_all_reduce,
                                  .reduce_scatter = local_reduce_scatter,
                                  .all_gather = local_all_gather,
                                  .broadcast = local_broadcast,
                                  .send = local_send,
                                  .receive = local_receive,
                                  .group_begin = local_group_begin,
                                  .group_end = local_group_end,
                                  .barrier = local_barrier,
                                  .split = local_split,
                                  .close = local_close};
    Comm comm = {.rank = rank,
                 .size = group->size,
                 .ops = &local,
                 .impl = group,
                 .counts = must_calloc(1, sizeof *comm.counts)};
    memcpy(comm.name, group->name, sizeof comm.name);
    return comm;
}

Comm local_world_join(LocalWorld *world, int rank)
{
    LocalGroup *group = world->all;
    CHECK(rank >= 0 && rank < group->size, "rank %d of %d", rank, group->size);
    return member_of(group, rank);
}

static Comm local_split(Comm *comm, const char *name, int color, int key)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    int old_rank[LOCAL_MAX_RANKS] = {0}, size = 0, rank = 0;
    local_begin(
        comm,
        (LocalCall){
            .name = "split", .made = name, .count = -1, .root = -1, .color = color, .key = key});
    local_meet(comm);
    /* By key, then by rank: each goes in before the first of a larger key. */
    for (int i = 0; i < group->size; i++) {
        if (group->member[i].call.color != color) continue;
        int at = size++;
        for (; at > 0 && group->member[old_rank[at - 1]].call.key > group->member[i].call.key; at--)
            old_rank[at] = old_rank[at - 1];
        old_rank[at] = i;
    }
    while (old_rank[rank] != comm->rank)
        rank++;
    if (rank == 0 && size > 1) {
        LocalGroup *made = group_create(group->world, name, size);
        for (int i = 0; i < size; i++)
            made->member[i].world_rank = group->member[old_rank[i]].world_rank;
        open_group(made);
        self->made = made;
    }
    local_meet(comm);
    return size == 1 ? comm_self(name) : member_of(group->member[old_rank[0]].made, rank);
}

/* Behind the last meeting of a call members still tell their streams to wait for each other's
 * events: whoever leaves lets them finish. They wait for nobody there. */
static void wait_for_stragglers(LocalGroup *group, int rank)
{
    for (int i = 0; i < group->size;) {
        pthread_mutex_lock(&group->mutex);
        const LocalPair *pair = local_pair(group, i, rank);
        bool done =
            group->member[i].finished >= group->member[rank].finished && pair->seen == pair->taken;
        pthread_mutex_unlock(&group->mutex);
        if (done)
            i++;
        else
            sched_yield();
    }
}

static void destroy_event(LocalMember *self, Event *event)
{
    if (event->impl) device_event_destroy(&self->device, event);
}

/* The member with that rank of the world, if there is one, has left the group. */
static void leave(LocalGroup *group, int world_rank)
{
    pthread_mutex_lock(&group->mutex);
    for (int i = 0; i < group->size; i++)
        if (group->member[i].world_rank == world_rank) group->member[i].closed = true;
    wake_all(group);
    pthread_mutex_unlock(&group->mutex);
}

static void local_close(Comm *comm)
{
    LocalGroup *group = local_group(comm), **at;
    LocalWorld *world = group->world;
    LocalMember *self = local_member(comm);
    int rank = self->world_rank;
    wait_for_stragglers(group, comm->rank);
    destroy_event(self, &self->before);
    destroy_event(self, &self->after);
    for (int i = 0; i < group->size; i++) {
        destroy_event(self, &local_pair(group, comm->rank, i)->before);
        destroy_event(self, &local_pair(group, i, comm->rank)->after);
    }
    pthread_mutex_lock(&world->mutex);
    leave(group, rank);
    if (group == world->all) { /* and with it all that it has not closed */
        for (at = &world->groups; *at; at = &(*at)->next)
            leave(*at, rank);
    } else if (--group->open == 0) {
        for (at = &world->groups; *at != group; at = &(*at)->next)
            continue;
        *at = group->next;
        group_free(group);
    }
    pthread_mutex_unlock(&world->mutex);
    comm->impl = NULL;
}
