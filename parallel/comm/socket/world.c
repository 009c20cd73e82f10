/* world.c -- groups of process ranks: joining the world, splitting and closing. */
#include "parallel/comm/socket/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Initial room for one member's messages between group_begin and group_end. A pipeline schedule
 * uses three at most, so no training step allocates. */
enum { MESSAGES_AT_ONCE = 8 };

/* Makes a group of `size` members. The caller then sets their world ranks and calls group_open. */
static SocketGroup *group_create(SocketWorld *world, uint64_t id, const char *name, int size)
{
    SocketGroup *group = must_calloc(1, sizeof *group);
    group->world = world;
    group->share.id = id;
    snprintf(group->share.name, sizeof group->share.name, "%s", name);
    socket_members_create(&group->share.members, size);
    /* Unused pages of this buffer take no memory. */
    group->meeting_bytes = size > SMALL_GROUP ? LARGE_MEETING_BYTES : MEETING_BYTES;
    group->contribution = must_calloc(1, group->meeting_bytes);
    group->note = must_calloc(MESSAGES_AT_ONCE, sizeof *group->note);
    group->room = MESSAGES_AT_ONCE;
    return group;
}

/* Completes a group whose members are known. */
static void group_open(SocketGroup *group)
{
    SocketWorld *world = group->world;
    SocketMembers *members = &group->share.members;
    socket_members_index(members);
    group->share.member = socket_member(group, world->rank);
    group->place = socket_tree_place(members->size, group->share.member);
    group->odd_member = -1;
    if (group->place.children > 0) {
        size_t children = (size_t)group->place.children;
        group->arrived = must_calloc(children, sizeof *group->arrived);
        group->came = must_calloc(children, sizeof *group->came);
    }
    group->next = world->groups;
    world->groups = group;
}

/* Frees the parts of the group that only this thread uses, and hands the rest over to the service
 * thread. */
static void group_close(SocketGroup *group)
{
    SocketGroup **at = &group->world->groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    free(group->contribution);
    free(group->arrived);
    free(group->came);
    free(group->source);
    free(group->note);
    if (group->share.id != 0) socket_service_closes(&group->world->service, &group->share);
}

static void socket_barrier(Comm *comm)
{
    Tensor none = {0};
    SocketFrame call = socket_call(comm, CALL_BARRIER, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    socket_meet(comm, call);
}

static void socket_wait_without_limit(Comm *comm)
{
    socket_group(comm)->unlimited = true;
}

static Comm socket_split(Comm *comm, const char *name, int color, int key);
static void socket_close(Comm *comm);

/* Returns this rank's communicator of the group. */
static Comm comm_create(SocketGroup *group)
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
    Comm comm = {.rank = group->share.member,
                 .size = socket_size(group),
                 .ops = &table,
                 .impl = group,
                 .counts = must_calloc(1, sizeof *comm.counts)};
    memcpy(comm.name, group->share.name, sizeof comm.name);
    return comm;
}

/* The contribution of each member to a split. */
typedef struct {
    int32_t color, key;
    uint64_t splits; /* number of splits that it has taken part in */
} Wish;

_Static_assert(sizeof(Wish) * COMM_MAX_RANKS <= LARGE_MEETING_BYTES &&
                   sizeof(Wish) * SMALL_GROUP <= MEETING_BYTES,
               "a meeting carries all wishes");

/* The answer of member 0: a new group, followed by its members as runs. Any two ranks form a run,
 * so a group of n members has at most (n + 1) / 2 runs. Therefore the answer fits in a meeting, and
 * so do all groups of several members together. */
typedef struct {
    uint64_t id;
    int32_t size, runs;
    RankRun run[];
} Made;

/* Returns the distance, in bytes, from a group with this many runs to the next group in an
 * answer. */
static size_t made_bytes(int runs)
{
    return (sizeof(Made) + (size_t)runs * sizeof(RankRun) + 7) / 8 * 8;
}

_Static_assert(sizeof(Made) + sizeof(RankRun) <= 2 * sizeof(Wish) - 4 && sizeof(RankRun) <= 12,
               "the groups of all ranks fit where their wishes do");

static int by_wish(const void *a, const void *b, void *of)
{
    const Wish *wish = of;
    const int *x = a, *y = b;
    const Wish *p = &wish[*x], *q = &wish[*y];
    if (p->color != q->color) return p->color < q->color ? -1 : 1;
    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    return (*x > *y) - (*x < *y);
}

/* Writes the group of these members to *made, with their world ranks, and returns its size in
 * bytes. */
static size_t make_group(const SocketGroup *group, const int *member, int size, int *rank,
                         Made *made)
{
    const Wish *wish = (const Wish *)(const void *)group->contribution;
    for (int i = 0; i < size; i++)
        rank[i] = socket_world_rank(group, member[i]);
    /* The id is composed of the first member's world rank and the number of its splits, so it is
     * unique in the world. The id of the world's group is 0. */
    made->id = ((uint64_t)rank[0] + 1) << 40 | wish[member[0]].splits;
    made->size = size;
    made->runs = rank_runs(rank, size, made->run, size);
    return sizeof *made + (size_t)made->runs * sizeof made->run[0];
}

/* Returns the group with this rank among those that member 0 has made; NULL: none. */
static const Made *find_group(const unsigned char *at, size_t bytes, int rank)
{
    const Made *made;
    for (size_t next = 0; next < bytes; next += made_bytes(made->runs)) {
        made = (const Made *)(const void *)(at + next);
        for (int i = 0; i < made->runs; i++)
            for (int k = 0; k < made->run[i].count; k++)
                if (rank_run_at(&made->run[i], k) == rank) return made;
    }
    return NULL;
}

/* On member 0: makes the groups from all contributions, sends each member its group, and returns
 * member 0's own. Over a tree all members receive all groups of more than one member, and each
 * looks for its own. Returns NULL then if member 0's group has no other member. *memory holds the
 * data to be sent; the caller frees it after the meeting. */
static const Made *make_groups(SocketGroup *group, void **memory)
{
    int n = socket_size(group), size;
    const Wish *wish = (const Wish *)(const void *)group->contribution;
    bool deep = socket_tree_is_deep(n);
    /* One allocation for three arrays: member[n], the members sorted by group; rank[n], the world
     * ranks of the group that is being made; and `answer`, the new groups (a Made each) with their
     * runs. There are at most n groups, and a group of k members has at most (k + 1) / 2 runs, so
     * all groups together have at most n runs. */
    size_t bytes = (size_t)n * (2 * sizeof(int) + sizeof(Made) + 2 * sizeof(RankRun));
    int *member = *memory = must_alloc(bytes), *rank = member + n;
    unsigned char *answer = (unsigned char *)(rank + n), *at = answer;
    const Made *own = NULL;
    for (int i = 0; i < n; i++)
        member[i] = i;
    qsort_r(member, (size_t)n, sizeof *member, by_wish, group->contribution);
    for (int first = 0; first < n; first += size) {
        Made *made = (Made *)(void *)at;
        for (size = 1; first + size < n; size++)
            if (wish[member[first + size]].color != wish[member[first]].color) break;
        size_t used = make_group(group, member + first, size, rank, made);
        for (int i = first; i < first + size; i++) {
            if (member[i] == 0) own = made;
            if (!deep && member[i] > 0) socket_answer(group, member[i], made, used);
        }
        if (!deep || size > 1) at += made_bytes(made->runs);
    }
    if (!deep) return own;
    socket_answer_all(group, answer, (size_t)(at - answer));
    return find_group(answer, (size_t)(at - answer), group->world->rank);
}

static Comm socket_split(Comm *comm, const char *name, int color, int key)
{
    SocketGroup *group = socket_group(comm);
    SocketWorld *world = group->world;
    Wish own = {color, key, world->splits++};
    Tensor none = {0};
    void *memory = NULL;
    SocketFrame call = socket_call(comm, CALL_SPLIT, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    snprintf(call.made, sizeof call.made, "%s", name);
    socket_arrive(comm, call, &own, sizeof own, true);
    const Made *made = comm->rank == 0 ? make_groups(group, &memory)
                                       : (const Made *)(const void *)group->contribution;
    socket_part(comm);
    if (comm->rank > 0 && socket_tree_is_deep(comm->size))
        made = find_group(group->contribution, group->answer_bytes, world->rank);
    SocketGroup *new =
        made && made->size > 1 ? group_create(world, made->id, name, made->size) : NULL;
    if (new) {
        int n = socket_runs_expand(made->run, made->runs, new->share.members.rank, made->size,
                                   world->ranks);
        CHECK(n == made->size, "%d of %d members of group %s", n, made->size, name);
    }
    free(memory);
    if (new == NULL) return comm_self(name);
    group_open(new);
    socket_service_opens(&world->service, &new->share);
    return comm_create(new);
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
    world->peer = must_calloc((size_t)links->ranks, sizeof(SocketPeer *));
    world->stranger = must_calloc(STRANGERS, sizeof *world->stranger);
    SocketGroup *all = group_create(world, 0, "world", links->ranks);
    for (int i = 0; i < links->ranks; i++)
        all->share.members.rank[i] = i;
    group_open(all);
    world->dropped = must_alloc(all->meeting_bytes);
    socket_service_start(&world->service, links, rank, timeout);
    socket_service_opens(&world->service, &all->share);
    Comm comm = comm_create(all);
    socket_plant(&comm);
    return comm;
}

/* Leaving the world also leaves all groups that are not closed yet. */
static void leave_world(SocketWorld *world)
{
    while (world->groups)
        group_close(world->groups);
    /* The goodbye comes before the connections are closed, so no rank considers them lost. */
    socket_service_stop(&world->service);
    socket_disconnect(world);
    socket_links_destroy(world->links);
    free(world->pass.fd);
    free(world->pass.member);
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
