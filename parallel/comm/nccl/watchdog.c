/* watchdog.c -- one thread of the process watches all NCCL communicators. It checks them for errors
 * that no call returns, and ends the program if a call takes longer than parallel.timeout, on the
 * host or afterwards on the device. */
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

#include <math.h>

/* Seconds between two checks. There are at least LOOKS checks within a deadline. */
static const double longest_look = 0.25, shortest_look = 0.005;
enum { LOOKS = 16 };

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
    g->ring[g->calls % NCCL_RING] = call;
    g->calls++; /* after the entry, which the guard reads without the mutex */
    pthread_mutex_unlock(&g->mutex);
}

void nccl_call_grows(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    g->ring[(g->calls - 1) % NCCL_RING].more++;
    pthread_mutex_unlock(&g->mutex);
}

void nccl_call_ends(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    g->issued = g->calls;
    pthread_mutex_unlock(&g->mutex);
}

/* ---- the thread ------------------------------------------------------------------------------ */

void nccl_enter(NcclGroup *g)
{
    nccl_speak_for(g);
    device_enter(&g->view);
}

/* Updates how many calls the device has completed. Calls of one communicator complete in order. */
static void look_for_progress(NcclGroup *g)
{
    int64_t issued = g->issued;
    if (g->finished == issued) return;
    nccl_enter(g);
    /* The events of older calls have been reused. */
    if (g->finished <= issued - NCCL_RING) g->finished = issued - NCCL_RING + 1;
    /* Check the last call first: if the device has kept up, one query is enough. */
    if (device_event_reached(&g->view, &g->asked[(issued - 1) % NCCL_RING].after))
        g->finished = issued;
    while (g->finished < issued &&
           device_event_reached(&g->view, &g->asked[g->finished % NCCL_RING].after))
        g->finished++;
}

/* Checks for an error that no call has returned because NCCL's own threads found it. It is
 * attributed to the oldest incomplete call. */
static void look_for_error(NcclGroup *g)
{
    NcclResult error = NCCL_SUCCESS;
    /* The host has the mutex only for moments. If it stands there, its deadline must be held. */
    if (pthread_mutex_trylock(&g->mutex) != 0) return;
    NcclResult result =
        g->handle ? nccl_library()->comm_async_error(g->handle, &error) : NCCL_SUCCESS;
    pthread_mutex_unlock(&g->mutex);
    if (result == NCCL_SUCCESS) result = error;
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return;
    /* If all calls have completed by now, attribute the error to the last one. */
    look_for_progress(g);
    nccl_end_failed(g, g->finished < nccl_calls(g) ? g->finished : g->finished - 1, result);
}

/* Subtracts the time that has passed from what the oldest incomplete call may still take. */
static void hold_deadline(NcclGroup *g, double passed)
{
    /* The device has made progress, or no call is in progress: the next call gets the full
     * timeout. */
    if (g->timeout <= 0 || g->finished == nccl_calls(g) || g->finished != g->watched) {
        g->watched = g->finished == nccl_calls(g) ? -1 : g->finished;
        g->patience = g->timeout;
        return;
    }
    if (nccl_excused(watch.groups, g)) {
        g->excused++;
        return;
    }
    g->patience -= passed;
    if (g->patience <= 0) nccl_end_waiting(watch.groups, g);
}

static double look_after(void)
{
    double seconds = longest_look;
    for (const NcclGroup *g = watch.groups; g; g = g->next)
        if (g->timeout > 0) seconds = fmin(seconds, g->timeout / LOOKS);
    return fmax(seconds, shortest_look);
}

static void *watch_main(void *context)
{
    (void)context;
    pthread_mutex_lock(&watch.mutex);
    while (!watch.stop) {
        double passed = deadline_sleep(&watch.woken, &watch.mutex, look_after());
        /* Check all groups for errors before any deadline: a failure elsewhere may be the cause of
         * a wait. */
        for (NcclGroup *g = watch.groups; g; g = g->next)
            look_for_error(g);
        for (NcclGroup *g = watch.groups; g; g = g->next)
            look_for_progress(g);
        for (NcclGroup *g = watch.groups; g; g = g->next)
            hold_deadline(g, passed);
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
        holds =
            is_one_of(nccl_own_rank(g), ranks, n) && g->timeout > 0 && g->finished < nccl_calls(g);
    pthread_mutex_unlock(&watch.mutex);
    return holds;
}

/* For the guard: changes if the device makes progress, or if time does not count. */
static int64_t guard_turn(const void *context)
{
    const NcclGroup *g = context;
    int64_t finished = g->finished;
    return g->calls > finished ? 1 + finished + ((int64_t)g->excused << 32) : 0;
}

static void guard_describe(const void *context, char *text, size_t n)
{
    const NcclGroup *g = context;
    int64_t first = g->finished, last = g->calls - 1;
    const char *name = g->ring[last % NCCL_RING].name;
    /* The device may be further than at the watchdog's last look. */
    if (first == last)
        snprintf(text, n, "group %s, call %lld, %s", g->name, (long long)last, name);
    else
        snprintf(text, n, "group %s, calls %lld to %lld, the last %s", g->name, (long long)first,
                 (long long)last, name);
}

void nccl_watch(NcclGroup *g)
{
    g->watched = -1;
    g->guarded = (GuardWatch){.context = g,
                              .rank = nccl_own_rank(g),
                              .timeout = g->timeout,
                              .holder = "the watchdog of NCCL",
                              .turn = guard_turn,
                              .describe = guard_describe};
    if (g->timeout > 0) guard_add(&g->guarded);
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
    if (g->timeout > 0) guard_remove(&g->guarded);
}
