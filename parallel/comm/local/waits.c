/* waits.c -- reports in which call a thread rank waits and for which ranks, through the functions
 * of blame.h, and ends the program when a wait takes too long or a rank has left. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/local/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CommCall local_call(const LocalGroup *group, const LocalCall *call)
{
    return (CommCall){.name = call->name,
                      .made = call->made,
                      .count = call->count,
                      .dtype = call->dtype,
                      .op = call->op,
                      .root = call->root < 0 ? -1 : group->member[call->root].world_rank,
                      .device = call->backend != NULL};
}

const char *local_describe(const LocalGroup *group, const LocalCall *call, char *text, size_t n)
{
    CommCall seen = local_call(group, call);
    return comm_call_text(&seen, text, n);
}

/* ---- called with the group's mutex held ------------------------------------------------------ */

/* Returns the member with this world rank if it is asleep in the group, else NULL. */
static const LocalMember *asleep_in(const LocalGroup *group, int rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->member[i].world_rank == rank && atomic_load(&group->member[i].asleep))
            return &group->member[i];
    return NULL;
}

/* Sets wait->who to the ranks that the member waits for; if `lost`, only to those that have
 * left. */
static void find_peers(const LocalGroup *group, const LocalMember *self, bool lost, BlameWait *wait)
{
    int rank = (int)(self - group->member);
    wait->lack = BLAME_HOSTS;
    wait->n = 0;
    for (int i = 0; i < group->size; i++)
        if (self->waiting_for(group, rank, i) && (!lost || group->member[i].closed))
            wait->who[wait->n++] = group->member[i].world_rank;
}

static void describe_call(const LocalGroup *group, const LocalMember *self, char *text, size_t n)
{
    char call[128];
    snprintf(text, n, "group %s, call %lld, %s", group->name, (long long)self->calls,
             local_describe(group, &self->call, call, sizeof call));
}

/* Returns the wait of the calling thread's own rank. who[] receives the ranks that it waits for. */
static BlameWait own_wait(Comm *comm, bool lost, int who[LOCAL_MAX_RANKS])
{
    const LocalMember *self = local_member(comm);
    BlameWait wait = {.rank = self->world_rank, .who = who};
    find_peers(local_group(comm), self, lost, &wait);
    describe_call(local_group(comm), self, wait.call, sizeof wait.call);
    return wait;
}

/* ---- for blame.h; the world's mutex keeps groups from being freed ---------------------------- */

static bool lacks(void *world, const void *of, int rank, BlameWait *wait)
{
    LocalGroup *group = (LocalGroup *)of;
    (void)world;
    wait->n = 0;
    if (!mutex_lock_within(&group->mutex, DEADLINE_LOCK)) return false;
    const LocalMember *self = asleep_in(group, rank);
    if (self) find_peers(group, self, false, wait);
    pthread_mutex_unlock(&group->mutex);
    /* A sleeping member that waits for no rank is about to be woken. */
    return wait->n > 0;
}

static const void *waits_in(void *of, int rank)
{
    const LocalWorld *world = of;
    int who[LOCAL_MAX_RANKS];
    BlameWait wait = {.who = who};
    if (lacks(of, world->all, rank, &wait)) return world->all;
    for (const LocalGroup *group = world->groups; group; group = group->next)
        if (lacks(of, group, rank, &wait)) return group;
    return NULL;
}

static void describe(void *world, const void *of, int rank, char *text, size_t n)
{
    LocalGroup *group = (LocalGroup *)of;
    (void)world;
    text[0] = '\0';
    if (!mutex_lock_within(&group->mutex, DEADLINE_LOCK)) return;
    const LocalMember *self = asleep_in(group, rank);
    if (self) describe_call(group, self, text, n);
    pthread_mutex_unlock(&group->mutex);
}

/* Returns the waits of this world's ranks. Waits in other transports are not followed here: their
 * own deadlines cover them. The world's mutex must be held during a search. */
static BlameWaits waits_of(LocalWorld *world)
{
    static const BlameTransport transport = {
        .waits_in = waits_in, .lacks = lacks, .describe = describe};
    return (BlameWaits){.room = world->room, .hosts = {&transport, world}};
}

/* ---- the guard; its two callbacks take no lock ----------------------------------------------- */

static int64_t guard_turn(const void *context)
{
    return atomic_load(&((LocalWatch *)context)->turn);
}

static void guard_describe(const void *context, char *text, size_t n)
{
    const LocalWatch *w = context;
    snprintf(text, n, "group %s, call %lld, %s", w->group, (long long)w->calls, w->call);
}

void local_guard(LocalWorld *world)
{
    int n = world->all->size;
    world->watched = must_calloc((size_t)n, sizeof *world->watched);
    for (int i = 0; i < n; i++) {
        LocalWatch *w = &world->watched[i];
        w->watch = (GuardWatch){.context = w,
                                .rank = i,
                                .timeout = world->timeout,
                                .holder = "its own thread",
                                .turn = guard_turn,
                                .describe = guard_describe};
        guard_add(&w->watch);
    }
}

void local_unguard(LocalWorld *world)
{
    for (int i = 0; i < world->all->size; i++)
        guard_remove(&world->watched[i].watch);
    free(world->watched);
}

void local_sleeps(Comm *comm)
{
    const LocalMember *self = local_member(comm);
    LocalWorld *world = local_group(comm)->world;
    if (world->watched == NULL) return;
    LocalWatch *w = &world->watched[self->world_rank];
    /* If the rank already sleeps in this call, these fields are set. */
    if (atomic_load(&w->turn) == 0) {
        memcpy(w->group, local_group(comm)->name, sizeof w->group);
        w->call = self->call.name;
        w->calls = self->calls;
    }
    atomic_store(&w->turn, ++w->turns);
}

void local_wakes(Comm *comm)
{
    LocalWorld *world = local_group(comm)->world;
    if (world->watched) atomic_store(&world->watched[local_member(comm)->world_rank].turn, 0);
}

/* ---- the end of a wait ----------------------------------------------------------------------- */

bool local_leaves_deadline(Comm *comm)
{
    LocalGroup *group = local_group(comm);
    LocalWorld *world = group->world;
    BlameWaits waits = waits_of(world);
    int who[LOCAL_MAX_RANKS], reached[LOCAL_MAX_RANKS], n = 0;
    BlameWait wait = own_wait(comm, false, who);
    /* Release the group's mutex, because the world's mutex must be locked before those of groups.
     * Besides, another transport may take long to reply, and this group's members should continue
     * meanwhile. */
    pthread_mutex_unlock(&group->mutex);
    if (mutex_lock_within(&world->mutex, DEADLINE_LOCK)) {
        const int *rank;
        n = blame_reach(&waits, &wait, &rank);
        memcpy(reached, rank, (size_t)n * sizeof *rank);
        pthread_mutex_unlock(&world->mutex);
    }
    bool leaves = deadline_held_elsewhere(reached, n);
    pthread_mutex_lock(&group->mutex);
    return leaves;
}

bool local_excused(Comm *comm)
{
    if (!log_blocked()) return false;
    LocalGroup *group = local_group(comm);
    LocalWorld *world = group->world;
    BlameWaits waits = waits_of(world);
    int who[LOCAL_MAX_RANKS];
    BlameWait wait = own_wait(comm, false, who);
    bool excused = false;
    pthread_mutex_unlock(&group->mutex);
    if (mutex_lock_within(&world->mutex, DEADLINE_LOCK)) {
        excused = blame_only(&waits, &wait, DEADLINE_PRINTS);
        pthread_mutex_unlock(&world->mutex);
    }
    pthread_mutex_lock(&group->mutex);
    return excused;
}

void local_end_waiting(Comm *comm, bool lost)
{
    LocalGroup *group = local_group(comm);
    LocalWorld *world = group->world;
    BlameWaits waits = waits_of(world);
    int who[LOCAL_MAX_RANKS];
    BlameWait wait = own_wait(comm, lost, who);
    Blame blame = {.kind = BLAME_THEMSELVES};
    pthread_mutex_unlock(&group->mutex);
    if (lost) deadline_end_lost(&wait);
    if (mutex_lock_within(&world->mutex, DEADLINE_LOCK)) {
        blame_find(&waits, &wait, &blame);
        pthread_mutex_unlock(&world->mutex);
    }
    deadline_end_waiting(&wait, world->timeout, &blame);
}
