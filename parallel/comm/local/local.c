/* local.c -- groups of thread ranks: creating, splitting and closing them. Waiting is in meet.c,
 * and the transfers are in collective.c and message.c. */
#include "parallel/comm/local/local.h"

#include "model/core/check.h"
#include "parallel/comm/local/group.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- creating and freeing groups ------------------------------------------------------------- */

/* Initial room for one member's messages between group_begin and group_end. A pipeline schedule
 * uses three at most, so no training step allocates. */
enum { MESSAGES_AT_ONCE = 8 };

static LocalGroup *group_create(LocalWorld *world, const char *name, int size)
{
    LocalGroup *group = must_calloc(1, sizeof *group);
    pthread_condattr_t clock;
    *group = (LocalGroup){.world = world, .size = size, .open = size};
    snprintf(group->name, sizeof group->name, "%s", name);
    group->member = must_calloc((size_t)size, sizeof *group->member);
    group->pair = must_calloc((size_t)size * (size_t)size, sizeof *group->pair);
    pthread_mutex_init(&group->mutex, NULL);
    /* Use the monotonic clock: deadlines must not jump when somebody sets the system clock. */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    for (int i = 0; i < size; i++) {
        LocalMember *member = &group->member[i];
        pthread_cond_init(&member->woken, &clock);
        member->world_rank = i;
        member->note = must_calloc(MESSAGES_AT_ONCE, sizeof *member->note);
        member->room = MESSAGES_AT_ONCE;
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

/* Adds the group to the world's list, so that a rank that leaves the world also leaves this
 * group. */
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
    /* If each rank has its own core, a peer often arrives sooner than a thread could sleep and wake
     * up. If ranks share cores, a few yields let the peers on this core run and arrive, which costs
     * less than a sleep; more yields would take time from the peers. */
    world->yields = size <= pool_allowed_cores() ? 64 : 4;
    pthread_mutex_init(&world->mutex, NULL);
    world->room = blame_room_create(size);
    world->all = group_create(world, "world", size);
    if (timeout > 0) local_guard(world);
    return world;
}

void local_world_destroy(LocalWorld *world)
{
    if (world->watched) local_unguard(world);
    group_free(world->all);
    /* Free the groups that are still in the list: not all of their members have closed them, but
     * each has left them by leaving the world. */
    while (world->groups) {
        LocalGroup *group = world->groups;
        world->groups = group->next;
        group_free(group);
    }
    pthread_mutex_destroy(&world->mutex);
    blame_room_destroy(world->room);
    free(world);
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

/* ---- joining, splitting, closing ------------------------------------------------------------- */

static void local_barrier(Comm *comm)
{
    local_begin(comm, (LocalCall){.name = "barrier", .count = -1, .root = -1});
    local_meet(comm);
}

static void local_wait_without_limit(Comm *comm)
{
    local_member(comm)->unlimited = true;
}

static Comm local_split(Comm *comm, const char *name, int color, int key);
static void local_close(Comm *comm);

/* Returns the communicator of the member with that rank in the group. */
static Comm comm_create(LocalGroup *group, int rank)
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
                                  .wait_without_limit = local_wait_without_limit,
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
    return comm_create(group, rank);
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
    local_meet(comm); /* now all colors and keys can be read */
    /* Insertion sort by key, then by rank: each rank is placed before the first larger key. */
    for (int i = 0; i < group->size; i++) {
        if (group->member[i].call.color != color) continue;
        int at = size++;
        for (; at > 0 && group->member[old_rank[at - 1]].call.key > group->member[i].call.key; at--)
            old_rank[at] = old_rank[at - 1];
        old_rank[at] = i;
    }
    while (old_rank[rank] != comm->rank)
        rank++;
    /* The first member of each new group creates it. The others read the pointer after the second
     * meeting. A group of one rank needs no shared state. */
    if (rank == 0 && size > 1) {
        LocalGroup *made = group_create(group->world, name, size);
        for (int i = 0; i < size; i++)
            made->member[i].world_rank = group->member[old_rank[i]].world_rank;
        open_group(made);
        self->made = made;
    }
    local_meet(comm);
    return size == 1 ? comm_self(name) : comm_create(group->member[old_rank[0]].made, rank);
}

/* Waits until the other members no longer use the events of member `rank`, which is about to leave:
 * after the last meeting of a call they still enqueue waits for these events. They need no other
 * rank to do so, so this wait ends. */
static void wait_for_stragglers(LocalGroup *group, int rank)
{
    for (int i = 0; i < group->size;) {
        pthread_mutex_lock(&group->mutex);
        const LocalPair *pair = local_pair(group, i, rank);
        bool done = group->member[i].finished >= group->member[rank].finished &&
                    atomic_load(&pair->seen) == atomic_load(&pair->taken);
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

/* Marks the member with this world rank, if the group has one, as having left. */
static void leave(LocalGroup *group, int world_rank)
{
    pthread_mutex_lock(&group->mutex);
    for (int i = 0; i < group->size; i++)
        if (group->member[i].world_rank == world_rank) group->member[i].closed = true;
    pthread_mutex_unlock(&group->mutex);
    local_wake_all(group);
}

static void local_close(Comm *comm)
{
    LocalGroup *group = local_group(comm), **at;
    LocalWorld *world = group->world;
    LocalMember *self = local_member(comm);
    int rank = self->world_rank;
    /* Mark this member as having left before waiting for the members that still use its events. A
     * rank that waits for this member in another call then ends the program. Without the mark that
     * rank would wait on, one of those members might wait for that rank, and none of the three
     * would ever continue. */
    pthread_mutex_lock(&world->mutex);
    leave(group, rank);
    if (group == world->all) /* leaving the world also leaves all groups that are not closed yet */
        for (at = &world->groups; *at; at = &(*at)->next)
            leave(*at, rank);
    pthread_mutex_unlock(&world->mutex);
    wait_for_stragglers(group, comm->rank);
    destroy_event(self, &self->before);
    destroy_event(self, &self->after);
    for (int i = 0; i < group->size; i++) {
        destroy_event(self, &local_pair(group, comm->rank, i)->before);
        destroy_event(self, &local_pair(group, i, comm->rank)->after);
    }
    /* The last member to close a group frees it. The world's own group is freed by
     * local_world_destroy, because other ranks may still check in it which members have left. */
    pthread_mutex_lock(&world->mutex);
    if (group != world->all && --group->open == 0) {
        for (at = &world->groups; *at != group; at = &(*at)->next)
            continue;
        *at = group->next;
        group_free(group);
    }
    pthread_mutex_unlock(&world->mutex);
    comm->impl = NULL;
}
