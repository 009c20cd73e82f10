/* watchdog.c -- one thread of the process watches all NCCL communicators. It checks them for errors
 * that no call returns, and publishes how far their devices have got (watched.h). If all ranks are
 * threads of this process, it also ends the program if a call takes longer than parallel.timeout,
 * on the host or afterwards on the device. If ranks are processes, rank 0's process does this. */
#include "model/core/hash.h"
#include "model/core/min_max.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

/* Seconds between two checks, at most. */
static const double longest_look = 0.25;

/* One thread serves the whole process, because the devices of several ranks may be stuck in the
 * same call. */
static struct {
    pthread_mutex_t life; /* held while the thread is started or stopped */
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    pthread_t thread;
    NcclGroup *groups;
    bool stop;
} watch = {.life = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- called by the host ---------------------------------------------------------------------- */

void nccl_call_begins(NcclGroup *g, NcclCall call)
{
    pthread_mutex_lock(&g->mutex);
    g->ring[nccl_calls(g) % NCCL_RING] = call;
    atomic_fetch_add(&g->watched.begun, 1); /* after the ring's entry, which the guard reads without
                                             * the mutex */
    pthread_mutex_unlock(&g->mutex);
}

void nccl_call_grows(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    g->ring[(nccl_calls(g) - 1) % NCCL_RING].more++;
    pthread_mutex_unlock(&g->mutex);
}

void nccl_call_ends(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    g->issued = nccl_calls(g);
    pthread_mutex_unlock(&g->mutex);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Prepares this thread to query the group's events: makes the group's device current, and reports
 * failures there under the group's rank. */
static void enter(NcclGroup *g)
{
    nccl_speak_for(g);
    device_enter(&g->view);
}

static bool has_reached(NcclGroup *g, Event *event)
{
    return device_event_reached(&g->view, event);
}

/* Returns how many of the `issued` calls the device has completed. Calls of one communicator
 * complete in order. */
static int64_t completed(NcclGroup *g, int64_t issued)
{
    int64_t finished = atomic_load(&g->watched.finished);
    /* The events of older calls than the ring holds have been reused, so such calls count as
     * completed. */
    if (finished <= issued - NCCL_RING) finished = issued - NCCL_RING + 1;
    /* Check the last call first: if the device has kept up, one query is enough. */
    if (has_reached(g, &g->asked[(issued - 1) % NCCL_RING].after)) return issued;
    while (finished < issued && has_reached(g, &g->asked[finished % NCCL_RING].after))
        finished++;
    return finished;
}

/* Returns how many calls the device has reached, of those that the host has begun. If the device
 * has completed all issued calls, a call that the host is still in counts as reached without a
 * query, which might block until NCCL has allocated memory for the call. */
static int64_t reached(NcclGroup *g, int64_t finished, int64_t issued, int64_t begun)
{
    if (finished == issued) return begun;
    int64_t number = max_i64(atomic_load(&g->watched.reached), finished);
    number = max_i64(number, begun - NCCL_RING + 1);
    while (number < begun && has_reached(g, &g->asked[number % NCCL_RING].before))
        number++;
    return number;
}

/* Publishes how far the device has got. */
static void look_for_progress(NcclGroup *g)
{
    int64_t issued = g->issued, begun = nccl_calls(g), finished = atomic_load(&g->watched.finished);
    /* A device that has completed all calls is asked, too, because it may have failed since. */
    if (finished < issued || (begun == issued && issued > 0)) {
        enter(g);
        finished = completed(g, issued);
    }
    atomic_store(&g->watched.reached, reached(g, finished, issued, begun));
    atomic_store(&g->watched.finished, finished);
    atomic_fetch_add(&g->watched.looks, 1);
}

/* Checks for an error that no call has returned because NCCL's own threads found it. It is
 * attributed to the oldest incomplete call. */
static void look_for_error(NcclGroup *g)
{
    NcclResult error = NCCL_SUCCESS;
    /* The host holds the mutex only briefly. But if the host is stuck while it holds the mutex, the
     * deadlines must still be enforced. */
    if (pthread_mutex_trylock(&g->mutex) != 0) return;
    NcclResult result =
        g->handle ? nccl_library()->comm_async_error(g->handle, &error) : NCCL_SUCCESS;
    pthread_mutex_unlock(&g->mutex);
    if (result == NCCL_SUCCESS) result = error;
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return;
    /* If all calls have completed by now, attribute the error to the last one. */
    look_for_progress(g);
    int64_t finished = atomic_load(&g->watched.finished);
    nccl_end_failed(g, finished < nccl_calls(g) ? finished : finished - 1, result);
}

/* Adds the time that has passed to the incomplete calls, and ends the program if one has taken too
 * long. Does nothing if another transport reports the groups to rank 0 (watched_report). */
static void hold_deadlines(double passed)
{
    if (watched_is_reported()) return;
    const WatchedGroup *late = watched_pass(passed);
    if (late == NULL) return;
    nccl_end_for((const NcclGroup *)late);
    watched_end_own(late);
}

static void *watch_main(void *context)
{
    (void)context;
    pthread_mutex_lock(&watch.mutex);
    while (!watch.stop) {
        double passed = deadline_sleep(&watch.woken, &watch.mutex, watched_pace(longest_look));
        /* Check all groups for errors before any deadline: a failure elsewhere may be the cause of
         * a wait. */
        for (NcclGroup *g = watch.groups; g; g = g->next)
            look_for_error(g);
        for (NcclGroup *g = watch.groups; g; g = g->next)
            look_for_progress(g);
        hold_deadlines(passed);
    }
    pthread_mutex_unlock(&watch.mutex);
    return NULL;
}

static void start_thread(void)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&watch.woken, &clock);
    pthread_condattr_destroy(&clock);
    watch.stop = false;
    thread_start(&watch.thread, watch_main, NULL, "the watchdog of NCCL");
}

static bool is_one_of(int rank, const int *ranks, int n)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank) return true;
    return false;
}

/* Returns whether one of these n world ranks has a call in progress, in this process, whose
 * deadline the watchdog enforces (a DeadlineHolder). Returns false after two seconds if the
 * watchdog is stuck. */
static bool holds_deadline(const int *ranks, int n)
{
    enum { SECONDS = 2 };
    bool holds = false;
    /* Querying a device may take as long as its host's current operation on it. If the watchdog is
     * stuck in such a query, it cannot enforce any deadline. */
    if (!mutex_lock_within(&watch.mutex, SECONDS)) return false;
    for (NcclGroup *g = watch.groups; g && !holds; g = g->next)
        holds = is_one_of(nccl_own_rank(g), ranks, n) && g->timeout > 0 &&
                atomic_load(&g->watched.finished) < nccl_calls(g);
    pthread_mutex_unlock(&watch.mutex);
    return holds;
}

/* For the guard: returns 0 if all calls are complete, otherwise a number that changes whenever the
 * watchdog has seen the device complete a call, and whenever watched.c has decided that the time
 * since its last check does not count (`excused`). */
static int64_t guard_turn(const void *context)
{
    const NcclGroup *g = context;
    int64_t finished = g->watched.finished;
    return g->watched.begun > finished ? 1 + finished + ((int64_t)g->watched.excused << 32) : 0;
}

static void guard_describe(const void *context, char *text, size_t n)
{
    const NcclGroup *g = context;
    int64_t first = g->watched.finished, last = g->watched.begun - 1;
    const char *name = g->ring[last % NCCL_RING].name;
    /* The device may have got further than at the watchdog's last look, so name all calls that were
     * not complete then. */
    if (first == last)
        snprintf(text, n, "group %s, call %lld, %s", g->name, (long long)last, name);
    else
        snprintf(text, n, "group %s, calls %lld to %lld, the last %s", g->name, (long long)first,
                 (long long)last, name);
}

/* Returns whether the guard must watch the group, because this process enforces its deadlines. If
 * ranks are processes, rank 0's process enforces them, and ends this process if the watchdog is
 * stuck. */
static bool is_guarded(const NcclGroup *g)
{
    return g->timeout > 0 && !watched_is_reported();
}

/* Fills in the WatchedGroup, in which the progress of the group is published, and adds it. */
static void publish(NcclGroup *g)
{
    WatchedGroup *w = &g->watched;
    w->id = hash_bytes(0, &g->id, sizeof g->id);
    w->rank = nccl_own_rank(g);
    w->members = watched_members(g->world_rank, g->size);
    w->timeout = g->timeout;
    w->describe = nccl_describe_watched;
    watched_add(w);
}

void nccl_watch(NcclGroup *g)
{
    publish(g);
    g->guarded = (GuardWatch){.context = g,
                              .rank = nccl_own_rank(g),
                              .timeout = g->timeout,
                              .holder = "the watchdog of NCCL",
                              .turn = guard_turn,
                              .describe = guard_describe};
    if (is_guarded(g)) guard_add(&g->guarded);
    pthread_mutex_lock(&watch.life);
    if (watch.groups == NULL) start_thread();
    deadline_add_holder(holds_deadline);
    pthread_mutex_lock(&watch.mutex);
    g->next = watch.groups;
    watch.groups = g;
    pthread_cond_signal(&watch.woken); /* the new group may need shorter sleeps */
    pthread_mutex_unlock(&watch.mutex);
    pthread_mutex_unlock(&watch.life);
}

void nccl_unwatch(NcclGroup *g)
{
    watched_remove(&g->watched);
    pthread_mutex_lock(&watch.life);
    pthread_mutex_lock(&watch.mutex);
    /* Removing the last group ends the thread, so a process without NCCL has none. */
    NcclGroup **at = &watch.groups;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    bool last = watch.groups == NULL;
    watch.stop = last;
    if (last) pthread_cond_signal(&watch.woken);
    pthread_mutex_unlock(&watch.mutex);
    if (last) {
        pthread_join(watch.thread, NULL);
        pthread_cond_destroy(&watch.woken);
    }
    pthread_mutex_unlock(&watch.life);
    if (is_guarded(g)) guard_remove(&g->guarded);
}
