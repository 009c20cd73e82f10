/* world.c -- groups of process ranks: joining the world, splitting and closing. */
#include "parallel/comm/socket/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Initial room for one member's messages between group_begin and group_end. A pipeline schedule
 * uses three at most, so no training step allocates. */
enum { MESSAGES_AT_ONCE = 8 };

static SocketGroup *group_create(SocketWorld *world, uint64_t id, const char *name, int size)
{
    SocketGroup *group = must_calloc(1, sizeof *group);
    group->world = world;
    group->share.id = id;
    group->share.size = size;
    snprintf(group->share.name, sizeof group->share.name, "%s", name);
    group->contribution = must_calloc(1, MEETING_BYTES);
    group->note = must_calloc(MESSAGES_AT_ONCE, sizeof *group->note);
    group->room = MESSAGES_AT_ONCE;
    group->next = world->groups;
    world->groups = group;
    return group;
}

/* Frees what only this thread uses of the group, and hands the rest to the service thread. */
static void group_close(SocketGroup *group)
{
    SocketGroup **at = &group->world->groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    free(group->contribution);
    free(group->note);
    if (group->share.id != 0) socket_service_closes(&group->world->service, &group->share);
}

static void socket_barrier(Comm *comm)
{
    Tensor none = {0};
    SocketFrame call = socket_call(comm, CALL_BARRIER, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    socket_meet(comm, call, NULL, 0);
}

static void socket_wait_without_limit(Comm *comm)
{
    socket_group(comm)->unlimited = true;
}

static Comm socket_split(Comm *comm, const char *name, int color, int key);
static void socket_close(Comm *comm);

/* Returns the communicator of this process, which has that rank in the group. */
static Comm comm_create(SocketGroup *group, int rank)
{
    static const CommOps table = {.name = "socket",
                                  .all_reduce = socket_all_reduce,
                                  .reduce_scatter = socket_reduce_scatter,
                                  .all_gather = socket_all_gather,
                                  .broadcast = socket_broadcast,
                                  .send = socket_send,
                                  .receive = socket_receive_message,
                                  .group_begin = socket_group_begin,
                                  .group_end = socket_group_end,
                                  .barrier = socket_barrier,
                                  .split = socket_split,
                                  .wait_without_limit = socket_wait_without_limit,
                                  .close = socket_close};
    group->rank = rank;
    Comm comm = {.rank = rank,
                 .size = group->share.size,
                 .ops = &table,
                 .impl = group,
                 .counts = must_calloc(1, sizeof *comm.counts)};
    memcpy(comm.name, group->share.name, sizeof comm.name);
    return comm;
}

/* What each member contributes to a split. */
typedef struct {
    int32_t color, key;
    uint64_t splits; /* number of splits that it has taken part in */
} Wish;

_Static_assert(sizeof(Wish) * SOCKET_MAX_RANKS <= MEETING_BYTES, "a meeting carries all wishes");

static Comm socket_split(Comm *comm, const char *name, int color, int key)
{
    SocketGroup *group = socket_group(comm);
    SocketWorld *world = group->world;
    Wish wish[SOCKET_MAX_RANKS], own = {color, key, world->splits++};
    int old_rank[SOCKET_MAX_RANKS] = {0}, size = 0, rank = 0;
    Tensor none = {0};
    SocketFrame call = socket_call(comm, CALL_SPLIT, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    snprintf(call.made, sizeof call.made, "%s", name);
    socket_meet(comm, call, &own, sizeof own);
    memcpy(wish, group->contribution, (size_t)comm->size * sizeof *wish);
    /* Insertion sort by key, then by rank: each rank is placed before the first larger key. */
    for (int i = 0; i < comm->size; i++) {
        if (wish[i].color != color) continue;
        int at = size++;
        for (; at > 0 && wish[old_rank[at - 1]].key > wish[i].key; at--)
            old_rank[at] = old_rank[at - 1];
        old_rank[at] = i;
    }
    while (old_rank[rank] != comm->rank)
        rank++;
    if (size == 1) return comm_self(name);
    /* The id is made of the first member's world rank and the number of its splits, so no other
     * group of the world has it. The world's is 0. */
    int first = old_rank[0];
    uint64_t id = ((uint64_t)group->share.member[first] + 1) << 48 | wish[first].splits;
    SocketGroup *made = group_create(world, id, name, size);
    for (int i = 0; i < size; i++)
        made->share.member[i] = group->share.member[old_rank[i]];
    socket_service_opens(&world->service, &made->share);
    return comm_create(made, rank);
}

Comm socket_world_join(SocketLinks *links, int rank, double timeout)
{
    CHECK(rank >= 0 && rank < links->ranks && timeout >= 0, "rank %d of %d, %g s", rank,
          links->ranks, timeout);
    SocketWorld *world = must_calloc(1, sizeof *world);
    socket_links_keep(links, rank);
    world->links = links;
    world->rank = rank;
    world->ranks = links->ranks;
    world->dropped = must_alloc(MEETING_BYTES);
    for (int i = 0; i < links->ranks; i++)
        world->peer[i].fd = -1;
    SocketGroup *all = group_create(world, 0, "world", links->ranks);
    for (int i = 0; i < links->ranks; i++)
        all->share.member[i] = i;
    Comm comm = comm_create(all, rank);
    socket_service_start(&world->service, links, rank, timeout);
    socket_service_opens(&world->service, &all->share);
    return comm;
}

/* Leaving the world also leaves all groups that are not closed yet. */
static void leave_world(SocketWorld *world)
{
    while (world->groups)
        group_close(world->groups);
    /* The goodbye comes before the connections are closed, so no rank takes them for lost. */
    socket_service_stop(&world->service);
    socket_disconnect(world);
    socket_links_destroy(world->links);
    free(world->staging);
    free(world->dropped);
    free(world);
}

static void socket_close(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    SocketWorld *world = group->world;
    if (group->share.id == 0)
        leave_world(world);
    else
        group_close(group);
    comm->impl = NULL;
}
