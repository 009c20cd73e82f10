/* end.c -- what the program ends with where a member of a group of thread ranks waits in
 * vain: a sentence about the call, about those who have not come, and, where these wait themselves,
 * about whom all that is due to. */
#include "model/core/check.h"
#include "parallel/comm/local/group.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/comm/rank_list.h"

#include <stdio.h>
#include <string.h>

const char *local_describe(const LocalGroup *group, const LocalCall *call, char *text, size_t n)
{
    FILE *to = fmemopen(text, n, "w");
    CHECK(to != NULL, "no stream over %zu bytes", n);
    fputs(call->name, to);
    if (call->op == REDUCE_MAX) fputs(" (max)", to);
    if (call->made) fprintf(to, " into %s", call->made);
    if (call->count >= 0)
        fprintf(to, " of %lld %s%s", (long long)call->count, dtype_name(call->dtype),
                call->backend ? "" : " in host memory");
    if (call->root >= 0)
        fprintf(to, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from",
                group->member[call->root].world_rank);
    fclose(to);
    return text;
}

/* ---- who keeps the others waiting ------------------------------------------------------------ */

/* A rank of the world that somebody waits for, and where he does. */
typedef struct {
    int rank, by;      /* by: the waiting rank */
    LocalGroup *group; /* NULL: in this very wait */
} Waited;

typedef struct {
    Waited item[LOCAL_MAX_RANKS];
    int n;
    bool seen[LOCAL_MAX_RANKS];
} Blame;

static void add_waited(Blame *b, Waited waited)
{
    if (b->seen[waited.rank]) return;
    b->seen[waited.rank] = true;
    b->item[b->n++] = waited;
}

/* The member of the group that is this rank and asleep there, or NULL. */
static const LocalMember *asleep_in(const LocalGroup *group, int rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->member[i].world_rank == rank && atomic_load(&group->member[i].asleep))
            return &group->member[i];
    return NULL;
}

/* Adds those for whom the rank waits; false: it waits for nobody in this group. */
static bool add_waited_in(Blame *b, LocalGroup *group, int rank)
{
    bool any = false;
    pthread_mutex_lock(&group->mutex);
    const LocalMember *self = asleep_in(group, rank);
    for (int i = 0; i < group->size && self; i++) {
        if (!self->waiting_for(group, (int)(self - group->member), i)) continue;
        add_waited(b, (Waited){group->member[i].world_rank, rank, group});
        any = true;
    }
    pthread_mutex_unlock(&group->mutex);
    return any;
}

static bool add_waited_by(Blame *b, LocalWorld *world, int rank)
{
    bool any = add_waited_in(b, world->all, rank);
    for (LocalGroup *group = world->groups; group && !any; group = group->next)
        any = add_waited_in(b, group, rank);
    return any;
}

/* "; rank 2 waits for rank 3 (group tp, call 7, all-reduce of 64 f32)" */
static void describe_wait(const Waited *waited, char *text, size_t n)
{
    char call[128];
    LocalGroup *group = waited->group;
    pthread_mutex_lock(&group->mutex);
    const LocalMember *self = asleep_in(group, waited->by);
    if (self)
        snprintf(text, n, "; rank %d waits for rank %d (group %s, call %lld, %s)", waited->by,
                 waited->rank, group->name, (long long)self->calls,
                 local_describe(group, &self->call, call, sizeof call));
    pthread_mutex_unlock(&group->mutex);
}

/* Follows who waits for whom from those in `b` on: where it ends with a rank that waits for nobody
 * and is not one of them, says who waits for that one; where it never ends, that. */
static void describe_cause(LocalWorld *world, Blame *b, char *text, size_t n)
{
    const Waited *cause = NULL;
    pthread_mutex_lock(&world->mutex); /* no group goes meanwhile */
    for (int i = 0; i < b->n && !cause; i++)
        if (!add_waited_by(b, world, b->item[i].rank)) cause = &b->item[i];
    if (cause == NULL)
        snprintf(text, n, "; they wait for each other");
    else if (cause->group)
        describe_wait(cause, text, n);
    pthread_mutex_unlock(&world->mutex);
}

/* Those for whom the member itself waits; lost: of these, who have left. */
static Blame blame_peers(Comm *comm, bool lost)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    Blame blame = {.n = 0};
    blame.seen[self->world_rank] = true;
    for (int i = 0; i < group->size; i++)
        if (self->waiting_for(group, comm->rank, i) && (!lost || group->member[i].closed))
            add_waited(&blame, (Waited){group->member[i].world_rank, self->world_rank, NULL});
    return blame;
}

static int ranks_of(const Blame *blame, int rank[LOCAL_MAX_RANKS])
{
    for (int i = 0; i < blame->n; i++)
        rank[i] = blame->item[i].rank;
    return blame->n;
}

bool local_leaves_deadline(Comm *comm)
{
    LocalGroup *group = local_group(comm);
    LocalWorld *world = group->world;
    Blame blame = blame_peers(comm, false);
    pthread_mutex_unlock(&group->mutex);
    pthread_mutex_lock(&world->mutex); /* no group goes meanwhile */
    for (int i = 0; i < blame.n; i++)
        add_waited_by(&blame, world, blame.item[i].rank);
    pthread_mutex_unlock(&world->mutex);
    int who[LOCAL_MAX_RANKS], n = ranks_of(&blame, who);
    bool leaves = nccl_holds_deadline(who, n);
    pthread_mutex_lock(&group->mutex);
    return leaves;
}

void local_end_waiting(Comm *comm, bool lost)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    char call[128], list[RANK_LIST_BYTES], cause[256] = "";
    Blame blame = blame_peers(comm, lost);
    int who[LOCAL_MAX_RANKS], n = ranks_of(&blame, who);
    const char *have = n > 1 ? "have" : "has";
    rank_list(who, n, list, sizeof list);
    local_describe(group, &self->call, call, sizeof call);
    pthread_mutex_unlock(&group->mutex);
    if (lost)
        fail(EXIT_PEER_LOST,
             "group %s, call %lld, %s: rank %d waits for %s, which %s left the group", group->name,
             (long long)self->calls, call, self->world_rank, list, have);
    describe_cause(group->world, &blame, cause, sizeof cause);
    fail(EXIT_HANG,
         "group %s, call %lld, %s: rank %d has waited %g s (parallel.timeout) for %s, which %s not "
         "arrived%s",
         group->name, (long long)self->calls, call, self->world_rank, group->world->timeout, list,
         have, cause);
}
