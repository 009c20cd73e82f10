/* watched.c -- see watched.h. */
#include "parallel/comm/watched.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/min_max.h"
#include "parallel/comm/deadline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often to look within a deadline, and the shortest time between two looks, in seconds. */
enum { LOOKS = 16 };
static const double shortest_look = 0.005;

static struct {
    pthread_mutex_t mutex; /* guards the list and what is in the groups for this file */
    WatchedGroup *groups;
    atomic_bool reported;
} watched = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- this process's groups ------------------------------------------------------------------- */

void watched_add(WatchedGroup *g)
{
    g->oldest = -1;
    pthread_mutex_lock(&watched.mutex);
    g->next = watched.groups;
    watched.groups = g;
    pthread_mutex_unlock(&watched.mutex);
}

void watched_remove(WatchedGroup *g)
{
    pthread_mutex_lock(&watched.mutex);
    WatchedGroup **at = &watched.groups;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    pthread_mutex_unlock(&watched.mutex);
}

void watched_report(bool on)
{
    atomic_store(&watched.reported, on);
}

bool watched_is_reported(void)
{
    return atomic_load(&watched.reported);
}

/* Describes the group's oldest incomplete call. */
static void describe_oldest(WatchedGroup *g, bool is_new)
{
    char text[BLAME_CALL_BYTES];
    if (g->describe(g, g->oldest, text, sizeof text))
        memcpy(g->call, text, sizeof g->call);
    else if (is_new)
        snprintf(g->call, sizeof g->call, "call %lld", (long long)g->oldest);
}

static void pass(WatchedGroup *g, double seconds)
{
    /* In this order: what the look has found is known. */
    uint64_t looks = atomic_load(&g->looks);
    int64_t finished = atomic_load(&g->finished);
    bool waits = finished < atomic_load(&g->begun), is_new = finished != g->oldest;
    if (!waits || is_new)
        g->waited = g->unseen = 0;
    else
        g->unseen += seconds;
    /* If the transport has not looked, the call may have ended. */
    if (looks != g->seen) {
        g->waited += g->unseen;
        g->unseen = 0;
    }
    g->seen = looks;
    g->oldest = waits ? finished : -1;
    if (waits)
        describe_oldest(g, is_new);
    else
        g->call[0] = '\0';
}

static void copy(WatchedGroup *g, WatchedCall *call)
{
    *call = (WatchedCall){.id = g->id,
                          .rank = g->rank,
                          .size = g->size,
                          .timeout = g->timeout,
                          .waited = g->waited,
                          .unseen = g->unseen};
    /* In this order, so that finished <= reached <= begun. */
    call->finished = atomic_load(&g->finished);
    call->reached = atomic_load(&g->reached);
    call->begun = atomic_load(&g->begun);
    for (int i = 0; i < g->size; i++)
        call->member[i] = (uint8_t)g->member[i];
    memcpy(call->call, g->call, sizeof call->call);
}

/* Copies what is known of the groups, of at most `room`. Returns their number. */
static int copy_all(WatchedCall *call, int room)
{
    int n = 0;
    for (WatchedGroup *g = watched.groups; g; g = g->next, n++)
        if (n < room) copy(g, &call[n]);
    return n;
}

/* Makes the next `seconds` seconds not count for groups whose call is excused, if this process
 * enforces the deadlines. */
static void excuse(double seconds)
{
    if (!log_blocked() || watched_is_reported()) return;
    int n = copy_all(NULL, 0), i = 0;
    WatchedCall *call = must_calloc((size_t)n + 1, sizeof *call);
    copy_all(call, n);
    WatchedCalls calls = {call, n};
    BlameWaits waits = {.devices = {&watched_waits, &calls}};
    for (WatchedGroup *g = watched.groups; g; g = g->next, i++) {
        if (!watched_is_excused(&waits, &call[i])) continue;
        g->unseen -= seconds;
        atomic_fetch_add(&g->excused, 1);
    }
    free(call);
}

WatchedGroup *watched_pass(double seconds)
{
    WatchedGroup *late = NULL;
    WatchedCall call;
    pthread_mutex_lock(&watched.mutex);
    excuse(seconds);
    for (WatchedGroup *g = watched.groups; g; g = g->next) {
        pass(g, seconds);
        copy(g, &call);
        if (late == NULL && watched_is_late(&call)) late = g;
    }
    pthread_mutex_unlock(&watched.mutex);
    return late;
}

double watched_pace(double longest)
{
    double seconds = longest;
    pthread_mutex_lock(&watched.mutex);
    for (const WatchedGroup *g = watched.groups; g; g = g->next)
        if (g->timeout > 0) seconds = fmin(seconds, g->timeout / LOOKS);
    pthread_mutex_unlock(&watched.mutex);
    return fmax(seconds, shortest_look);
}

int watched_calls(WatchedCall *call, int room)
{
    pthread_mutex_lock(&watched.mutex);
    int n = copy_all(call, room);
    pthread_mutex_unlock(&watched.mutex);
    return n;
}

/* ---- who has arrived: the calls of all ranks ------------------------------------------------- */

bool watched_holds(const WatchedCall *call)
{
    return call->timeout > 0 && call->finished < call->begun;
}

/* Returns whether it has taken too long without counting the time in which nobody looked. */
static bool is_seen_late(const WatchedCall *call)
{
    return call->waited - call->excused >= call->timeout;
}

bool watched_is_late(const WatchedCall *call)
{
    double limit = call->timeout + WATCHED_STUCK;
    return watched_holds(call) &&
           (is_seen_late(call) || call->waited + call->unseen - call->excused >= limit);
}

/* Returns the rank's end of the same group. NULL: it does not exist yet, or is not known. */
static const WatchedCall *end_of(const WatchedCalls *calls, uint64_t id, int rank)
{
    for (int i = 0; i < calls->n; i++)
        if (calls->call[i].id == id && calls->call[i].rank == rank) return &calls->call[i];
    return NULL;
}

/* Finds out which ranks have not arrived at the oldest incomplete call of `own`. */
static void find_lack(const WatchedCalls *calls, const WatchedCall *own, BlameWait *wait)
{
    int64_t number = own->finished;
    wait->lack = BLAME_HOSTS;
    wait->n = 0;
    for (int i = 0; i < own->size; i++) {
        const WatchedCall *end = end_of(calls, own->id, own->member[i]);
        if (end == NULL || end->begun <= number) wait->who[wait->n++] = own->member[i];
    }
    if (wait->n > 0) return;
    wait->lack = BLAME_DEVICES;
    for (int i = 0; i < own->size; i++)
        if (end_of(calls, own->id, own->member[i])->reached <= number)
            wait->who[wait->n++] = own->member[i];
    if (wait->n > 0) return;
    wait->lack = BLAME_NOTHING;
    for (int i = 0; i < own->size; i++)
        wait->who[wait->n++] = own->member[i];
}

/* For blame.h. Returns the group whose oldest incomplete call this rank is in, on the host or on
 * the device. */
static const void *waits_in(void *of, int rank)
{
    const WatchedCalls *calls = of;
    for (int i = 0; i < calls->n; i++) {
        const WatchedCall *call = &calls->call[i];
        if (call->rank == rank && call->finished < call->begun && call->reached > call->finished)
            return call;
    }
    return NULL;
}

static bool lacks(void *calls, const void *group, int rank, BlameWait *wait)
{
    (void)rank;
    find_lack(calls, group, wait);
    return true;
}

static void describe(void *calls, const void *group, int rank, char *text, size_t n)
{
    const WatchedCall *call = group;
    (void)calls, (void)rank;
    snprintf(text, n, "%s", call->call);
}

const BlameTransport watched_waits = {.waits_in = waits_in, .lacks = lacks, .describe = describe};

bool watched_is_excused(const BlameWaits *waits, const WatchedCall *call)
{
    BlameWait wait = {.rank = call->rank, .devices = true};
    if (!watched_holds(call) || !log_blocked()) return false;
    find_lack(waits->devices.world, call, &wait);
    return wait.lack != BLAME_NOTHING && blame_only(waits, &wait, DEADLINE_PRINTS);
}

void watched_end(const BlameWaits *waits, const WatchedCall *late)
{
    BlameWait wait = {.rank = late->rank, .devices = true};
    Blame blame = {0};
    /* What is known of the devices is old. */
    if (!is_seen_late(late))
        fail(EXIT_HANG,
             "%s, or a later call: rank %d has waited %g s (parallel.timeout and %d s more), and "
             "the driver of its GPU does not answer",
             late->call, wait.rank, late->timeout + WATCHED_STUCK, (int)WATCHED_STUCK);
    snprintf(wait.call, sizeof wait.call, "%s", late->call);
    find_lack(waits->devices.world, late, &wait);
    if (wait.lack != BLAME_NOTHING) blame_find(waits, &wait, &blame);
    deadline_end_waiting(&wait, late->timeout, &blame);
}

void watched_end_own(const WatchedGroup *late)
{
    int room = watched_calls(NULL, 0) + COMM_MAX_RANKS; /* others may be added meanwhile */
    WatchedCall *call = must_calloc((size_t)room, sizeof *call);
    int n = (int)min_i64(watched_calls(call, room), room), i = 0;
    while (i < n - 1 && (call[i].id != late->id || call[i].rank != late->rank))
        i++;
    WatchedCalls calls = {call, n};
    watched_end(&(BlameWaits){.devices = {&watched_waits, &calls}}, &call[i]);
}
