/* meet.c -- how the members of a group of thread ranks wait for each other: by polling, then
 * sleeping, with a timeout. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/local/group.h"

#include <math.h>
#include <sched.h>

/* A waiting member sleeps in slices: at least this many in parallel.timeout, and none longer than a
 * second. If the process is stopped in one of them, only that slice counts against the timeout, and
 * the little that deadline_passed adds. */
enum { SLICES = 16 };

static bool same_call(const LocalGroup *group, const LocalCall *a, const LocalCall *b)
{
    CommCall one = local_call(group, a), other = local_call(group, b);
    return comm_call_same(&one, &other) && a->backend == b->backend;
}

/* Ends the program if the members' calls differ. The last member to arrive runs it, when all calls
 * can be read. */
static void check_calls(const LocalGroup *group)
{
    const LocalMember *first = &group->member[0];
    for (int i = 1; i < group->size; i++) {
        const LocalMember *other = &group->member[i];
        char a[128], b[128];
        CHECK(same_call(group, &first->call, &other->call),
              "call %lld of group %s: rank %d makes %s, rank %d %s", (long long)first->calls,
              group->name, first->world_rank, local_describe(group, &first->call, a, sizeof a),
              other->world_rank, local_describe(group, &other->call, b, sizeof b));
    }
}

/* Sleeps until another member wakes this one or a slice of time has passed. Subtracts this time
 * from *patience, the seconds that the wait may still take. Ends the program if a rank that it
 * waits for has left, or the timeout has passed. Called with the mutex held, while the counter that
 * the member waits for is too low. */
static void sleep_a_while(Comm *comm, double *patience)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    for (int i = 0; i < group->size; i++)
        if (group->member[i].closed && self->waiting_for(group, comm->rank, i))
            local_end_waiting(comm, true);
    if (*patience <= 0) {
        if (!local_leaves_deadline(comm)) local_end_waiting(comm, false);
        *patience = group->world->timeout;
        local_sleeps(comm);
        return; /* check the counter again: the peers may have arrived meanwhile */
    }
    if (!isfinite(*patience)) {
        pthread_cond_wait(&self->woken, &group->mutex);
        return;
    }
    double passed = deadline_sleep(&self->woken, &group->mutex,
                                   fmin(*patience, fmin(1, group->world->timeout / SLICES)));
    if (local_excused(comm))
        local_sleeps(comm);
    else
        *patience -= passed;
}

static void await(Comm *comm, const _Atomic int64_t *counter, int64_t count,
                  LocalWaitingFor waiting_for)
{
    LocalGroup *group = local_group(comm);
    LocalMember *self = local_member(comm);
    for (int i = 0; i < group->world->yields; i++) {
        sched_yield();
        if (atomic_load_explicit(counter, memory_order_acquire) >= count) return;
    }
    /* The peers are late: sleeping now costs less than polling further. */
    bool limited = group->world->timeout > 0 && !self->unlimited;
    double patience = limited ? group->world->timeout : INFINITY;
    if (!self->unlimited) local_sleeps(comm);
    pthread_mutex_lock(&group->mutex);
    self->waiting_for = waiting_for;
    /* Either this member sees the new count below, or the member that changed it sees `asleep`. */
    atomic_store(&self->asleep, true);
    while (atomic_load(counter) < count)
        sleep_a_while(comm, &patience);
    atomic_store(&self->asleep, false);
    pthread_mutex_unlock(&group->mutex);
    local_wakes(comm);
}

void local_await(Comm *comm, const _Atomic int64_t *counter, int64_t count,
                 LocalWaitingFor waiting_for)
{
    if (atomic_load_explicit(counter, memory_order_acquire) >= count) return;
    double start = seconds_now();
    await(comm, counter, count, waiting_for);
    comm->waited += seconds_now() - start;
}

/* Wakes the member if it is asleep. Called without the group's mutex, so that the woken member
 * finds it free. But the caller has held the mutex while it made the change that ends the wait, or
 * after that. So the member already sleeps on its condition, or it will see the change. */
static void wake(LocalMember *member)
{
    if (atomic_load(&member->asleep)) pthread_cond_signal(&member->woken);
}

void local_wake(LocalGroup *group, LocalMember *member)
{
    if (!atomic_load(&member->asleep)) return;
    pthread_mutex_lock(&group->mutex);
    pthread_mutex_unlock(&group->mutex);
    wake(member);
}

void local_wake_all(LocalGroup *group)
{
    for (int i = 0; i < group->size; i++)
        wake(&group->member[i]);
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
    int64_t meeting = self->arrived++; /* the same number on all members, because all make the same
                                        * calls */
    if (++group->here == group->size) {
        check_calls(group);
        group->here = 0;
        atomic_store(&group->meetings, meeting + 1);
        pthread_mutex_unlock(&group->mutex);
        local_wake_all(group);
        return;
    }
    pthread_mutex_unlock(&group->mutex);
    local_await(comm, &group->meetings, meeting + 1, has_not_come);
}
