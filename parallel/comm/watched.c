/* watched.c -- see watched.h. */
#include "parallel/comm/watched.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/log.h"
#include "model/core/min_max.h"
#include "parallel/comm/deadline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A deadline is checked at least LOOKS times while it lasts, but not more often than every
 * shortest_look seconds. */
enum { LOOKS = 16 };
static const double shortest_look = 0.005;

static struct {
    pthread_mutex_t mutex; /* guards the list, and those fields of the groups that this file uses */
    WatchedGroup *groups;
    atomic_bool reported;
} watched = {.mutex = PTHREAD_MUTEX_INITIALIZER};

WatchedMembers watched_members(const int *rank, int n)
{
    WatchedMembers m = {.size = n};
    m.runs = rank_runs(rank, n, m.run, WATCHED_RUNS);
    CHECK(m.runs <= WATCHED_RUNS, "a watched group of %d ranks in %d runs", n, m.runs);
    return m;
}

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
    /* Read `looks` first, so that `finished` includes what the transport has found in these
     * looks. */
    uint64_t looks = atomic_load(&g->looks);
    int64_t finished = atomic_load(&g->finished);
    bool waits = finished < atomic_load(&g->begun), is_new = finished != g->oldest;
    if (!waits || is_new)
        g->waited = g->unseen = 0;
    else
        g->unseen += seconds;
    /* Time counts only once the transport has looked again, because until then the call may already
     * have ended. */
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
                          .members = g->members,
                          .timeout = g->timeout,
                          .waited = g->waited,
                          .unseen = g->unseen};
    /* Read in this order, so that finished <= reached <= begun. */
    call->finished = atomic_load(&g->finished);
    call->reached = atomic_load(&g->reached);
    call->begun = atomic_load(&g->begun);
    memcpy(call->call, g->call, sizeof call->call);
}

/* Copies what is known of the groups to call[0..room). Returns the number of groups, which may be
 * larger than `room`. */
static int copy_all(WatchedCall *call, int room)
{
    int n = 0;
    for (WatchedGroup *g = watched.groups; g; g = g->next, n++)
        if (n < room) copy(g, &call[n]);
    return n;
}

/* A copy of what this process's groups have published, for a process in which all ranks are
 * threads. */
typedef struct {
    WatchedCall *call;
    int *link; /* memory for the linked lists in `calls` */
    WatchedCalls calls;
    BlameWaits waits;
} Copy;

static int at_least_ranks(const WatchedMembers *m, int ranks)
{
    for (int i = 0; i < m->runs; i++) {
        int first = m->run[i].first, last = rank_run_at(&m->run[i], m->run[i].count - 1);
        ranks = (int)max_i64(ranks, 1 + max_i64(first, last));
    }
    return ranks;
}

/* Makes the copy. Called with the mutex held. */
static void copy_make(Copy *copy)
{
    int n = copy_all(NULL, 0), ranks = 1;
    for (const WatchedGroup *g = watched.groups; g; g = g->next)
        ranks = at_least_ranks(&g->members, ranks);
    copy->call = must_calloc((size_t)n + 1, sizeof *copy->call);
    copy->link = must_calloc((size_t)(ranks + n), sizeof *copy->link);
    copy_all(copy->call, n);
    copy->calls = watched_link(copy->call, n, ranks, copy->link, copy->link + ranks);
    copy->waits =
        (BlameWaits){.room = blame_room_create(ranks), .devices = {&watched_waits, &copy->calls}};
}

static void copy_free(Copy *copy)
{
    blame_room_destroy(copy->waits.room);
    free(copy->link);
    free(copy->call);
}

/* If this process enforces the deadlines, subtracts `seconds`, which are about to be added, from
 * the time of groups whose call is excused (watched_is_excused). */
static void excuse(double seconds)
{
    Copy copy;
    int i = 0;
    if (!log_blocked() || watched_is_reported()) return;
    copy_make(&copy);
    for (WatchedGroup *g = watched.groups; g; g = g->next, i++) {
        if (!watched_is_excused(&copy.waits, &copy.call[i])) continue;
        g->unseen -= seconds;
        atomic_fetch_add(&g->excused, 1);
    }
    copy_free(&copy);
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

/* Returns whether the call has taken too long, not counting the time since the transport's last
 * look. */
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

WatchedCalls watched_link(const WatchedCall *call, int n, int ranks, int *first, int *next)
{
    for (int r = 0; r < ranks; r++)
        first[r] = -1;
    /* Backwards, so that the calls of a rank keep their order. */
    for (int i = n - 1; i >= 0; i--) {
        next[i] = first[call[i].rank];
        first[call[i].rank] = i;
    }
    return (WatchedCalls){call, n, first, next};
}

/* Returns this rank's end of the group with this id: what the rank has published about it. NULL:
 * the end does not exist yet, or is not known. */
static const WatchedCall *end_of(const WatchedCalls *calls, uint64_t id, int rank)
{
    for (int i = calls->first[rank]; i >= 0; i = calls->next[i])
        if (calls->call[i].id == id) return &calls->call[i];
    return NULL;
}

/* Returns whether this end of a group keeps the call with this number from completing, in the way
 * that `lack` says: its host has not made the call, or its device has not reached it. With
 * BLAME_NOTHING always true. */
static bool is_lacking(const WatchedCall *end, int64_t number, BlameLack lack)
{
    if (lack == BLAME_HOSTS) return end == NULL || end->begun <= number;
    return lack == BLAME_NOTHING || end->reached <= number;
}

/* Finds out which ranks have not arrived at the oldest incomplete call of `own`. */
static void find_lack(const WatchedCalls *calls, const WatchedCall *own, BlameWait *wait)
{
    static const BlameLack lack[] = {BLAME_HOSTS, BLAME_DEVICES, BLAME_NOTHING};
    const WatchedMembers *m = &own->members;
    wait->alike = true;
    wait->n = 0;
    for (size_t l = 0; l < sizeof lack / sizeof *lack && wait->n == 0; l++) {
        wait->lack = lack[l];
        for (int r = 0; r < m->runs; r++)
            for (int i = 0; i < m->run[r].count; i++) {
                int rank = rank_run_at(&m->run[r], i);
                if (is_lacking(end_of(calls, own->id, rank), own->finished, lack[l]))
                    wait->who[wait->n++] = rank;
            }
    }
}

/* Callback for blame.h. Looks for a group whose oldest incomplete call the rank's host has made and
 * the rank's device has reached. Returns the rank's end of this group, or NULL if there is none. */
static const void *waits_in(void *of, int rank)
{
    const WatchedCalls *calls = of;
    for (int i = calls->first[rank]; i >= 0; i = calls->next[i]) {
        const WatchedCall *call = &calls->call[i];
        if (call->finished < call->begun && call->reached > call->finished) return call;
    }
    return NULL;
}

static bool lacks(void *calls, const void *group, int rank, BlameWait *wait)
{
    (void)rank;
    find_lack(calls, group, wait);
    return true;
}

static uint64_t key(void *calls, const void *group, int rank)
{
    const WatchedCall *call = group;
    (void)calls, (void)rank;
    return hash_bytes(call->id, &call->finished, sizeof call->finished);
}

static void describe(void *calls, const void *group, int rank, char *text, size_t n)
{
    const WatchedCall *call = group;
    (void)calls, (void)rank;
    snprintf(text, n, "%s", call->call);
}

const BlameTransport watched_waits = {
    .waits_in = waits_in, .lacks = lacks, .key = key, .describe = describe};

bool watched_is_excused(const BlameWaits *waits, const WatchedCall *call)
{
    BlameWait wait = {.rank = call->rank, .devices = true, .who = blame_room_who(waits->room)};
    if (!watched_holds(call) || !log_blocked()) return false;
    find_lack(waits->devices.world, call, &wait);
    return wait.lack != BLAME_NOTHING && blame_only(waits, &wait, DEADLINE_PRINTS);
}

void watched_end(const BlameWaits *waits, const WatchedCall *late)
{
    BlameWait wait = {.rank = late->rank,
                      .devices = true,
                      .who = blame_room_who(waits->room),
                      .hosts = waits->names};
    Blame blame = {0};
    char host[RANK_HOSTS_BYTES];
    rank_hosts(&wait.hosts, &late->rank, 1, host, sizeof host);
    /* The transport has not looked at the device for a while, so it is not known which ranks have
     * arrived. */
    if (!is_seen_late(late))
        fail(EXIT_HANG,
             "%s, or a later call: rank %d has waited %g s (parallel.timeout and %d s more), and "
             "the driver of its GPU%s%s%s does not answer",
             late->call, wait.rank, late->timeout + WATCHED_STUCK, (int)WATCHED_STUCK,
             *host ? " (" : "", host, *host ? ")" : "");
    snprintf(wait.call, sizeof wait.call, "%s", late->call);
    find_lack(waits->devices.world, late, &wait);
    if (wait.lack != BLAME_NOTHING) blame_find(waits, &wait, &blame);
    deadline_end_waiting(&wait, late->timeout, &blame);
}

void watched_end_own(const WatchedGroup *late)
{
    Copy copy;
    int i = 0;
    pthread_mutex_lock(&watched.mutex);
    copy_make(&copy);
    pthread_mutex_unlock(&watched.mutex);
    while (i < copy.calls.n - 1 && (copy.call[i].id != late->id || copy.call[i].rank != late->rank))
        i++;
    watched_end(&copy.waits, &copy.call[i]);
}
