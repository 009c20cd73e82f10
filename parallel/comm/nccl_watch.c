/* nccl_watch.c -- one thread of the process looks after all communicators of NCCL's: it asks them
 * for errors that no call returns, and ends the program where a call takes longer than
 * parallel.timeout: on the host or, once it has come back there, on the device. */
#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "parallel/comm/nccl_group.h"
#include "parallel/comm/rank_list.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How often it looks, in seconds: so many times within a deadline, or oftener. */
static const double longest_look = 0.25, shortest_look = 0.005;
enum { LOOKS = 16 };

/* A process has one such thread: devices of several ranks may be stuck in one call. */
static struct {
    pthread_mutex_t life; /* held by who starts or ends the thread */
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    pthread_t thread;
    NcclGroup *groups;
    bool stop;
} watch = {.life = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- words ----------------------------------------------------------------------------------- */

static int own_rank(const NcclGroup *g)
{
    return g->world_rank[g->rank];
}

const char *nccl_describe_call(NcclGroup *g, int64_t number, char *text, size_t n)
{
    pthread_mutex_lock(&g->mutex);
    const NcclCall known = g->ring[number % NCCL_RING], *call = &known;
    pthread_mutex_unlock(&g->mutex);
    FILE *to = fmemopen(text, n, "w");
    CHECK(to != NULL, "no stream over %zu bytes", n);
    fprintf(to, "group %s, call %lld, %s", call->group, (long long)number, call->name);
    if (call->op == REDUCE_MAX) fputs(" (max)", to);
    if (call->elements >= 0)
        fprintf(to, " of %lld %s", (long long)call->elements, dtype_name(call->dtype));
    if (call->peer >= 0)
        fprintf(to, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from", call->peer);
    if (call->more > 0) fprintf(to, " and %d more", call->more);
    fclose(to);
    return text;
}

/* Whoever fails for a communicator: other threads of the process run on, perhaps inside NCCL. */
static void take_place(const NcclGroup *g)
{
    log_set_rank(own_rank(g), g->place);
    ends_share(true);
}

void nccl_fail(NcclGroup *g, int64_t number, NcclResult result)
{
    const NcclLibrary *nccl = nccl_library();
    char call[192], list[RANK_LIST_BYTES];
    const char *last = nccl->last_error(g->handle);
    while (last && (*last == '\n' || *last == ' '))
        last++;
    bool more = last && *last;
    take_place(g);
    fail(result == NCCL_REMOTE_ERROR ? EXIT_PEER_LOST : EXIT_SYSTEM,
         "%s of %s: NCCL on rank %d says: %s%s%.*s",
         nccl_describe_call(g, number, call, sizeof call),
         rank_list(g->world_rank, g->size, list, sizeof list), own_rank(g),
         nccl->error_string(result), more ? ": " : "", more ? (int)strcspn(last, "\n") : 0,
         more ? last : "");
}

/* ---- what the host calls --------------------------------------------------------------------- */

void nccl_call_begins(NcclGroup *g, NcclCall call)
{
    pthread_mutex_lock(&g->mutex);
    g->ring[g->calls++ % NCCL_RING] = call;
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

/* ---- who keeps a call from ending ------------------------------------------------------------ */

/* The same communicator on that member; NULL: it is not there yet, or not of this process. */
static NcclGroup *member_of(const NcclGroup *g, int rank)
{
    for (NcclGroup *h = watch.groups; h; h = h->next)
        if (h->rank == rank && memcmp(&h->id, &g->id, sizeof g->id) == 0) return h;
    return NULL;
}

static int64_t calls_of(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    int64_t calls = g->calls;
    pthread_mutex_unlock(&g->mutex);
    return calls;
}

/* The members whose host has not made that call, or whose device, if `on_device`, has not ended
 * those before it: their ranks of the world. Returns how many. */
static int absent(const NcclGroup *g, int64_t number, bool on_device, int *rank)
{
    int n = 0;
    for (int i = 0; i < g->size; i++) {
        NcclGroup *h = member_of(g, i);
        if (h == NULL || (on_device ? h->finished < number : calls_of(h) <= number))
            rank[n++] = g->world_rank[i];
    }
    return n;
}

/* The group in which that rank (-1: any) waits for another's host, which `first` is then. */
static NcclGroup *waits_in(int rank, int *first)
{
    int list[NCCL_MOST_RANKS];
    for (NcclGroup *g = watch.groups; g; g = g->next) {
        if ((rank >= 0 && own_rank(g) != rank) || g->finished >= calls_of(g)) continue;
        if (absent(g, g->finished, false, list) == 0) continue;
        *first = list[0];
        return g;
    }
    return NULL;
}

/* "; rank 2 waits for rank 3 (group tp, call 7, all-reduce of 64 f32)": from that rank (-1: from
 * any) on, the last who waits for one that itself waits for nobody. */
static void describe_cause(int rank, char *text, size_t n)
{
    char call[192];
    int next = -1, most = NCCL_MOST_RANKS;
    NcclGroup *g = waits_in(rank, &next);
    text[0] = '\0';
    if (g == NULL) return;
    for (NcclGroup *h; most > 0 && (h = waits_in(next, &next)) != NULL; most--)
        g = h;
    if (most == 0)
        snprintf(text, n, "; they wait for each other");
    else
        snprintf(text, n, "; rank %d waits for rank %d (%s)", own_rank(g), next,
                 nccl_describe_call(g, g->finished, call, sizeof call));
}

/* A call has taken too long. */
static void end_waiting(NcclGroup *g) __attribute__((noreturn));
static void end_waiting(NcclGroup *g)
{
    char call[192], list[RANK_LIST_BYTES], cause[320];
    int rank[NCCL_MOST_RANKS];
    nccl_describe_call(g, g->finished, call, sizeof call);
    take_place(g);
    int n = absent(g, g->finished, false, rank);
    if (n > 0) {
        describe_cause(rank[0], cause, sizeof cause);
        fail(EXIT_HANG,
             "%s: rank %d has waited %g s (parallel.timeout) for %s, which %s not "
             "arrived%s",
             call, own_rank(g), g->timeout, rank_list(rank, n, list, sizeof list),
             n > 1 ? "have" : "has", cause);
    }
    n = absent(g, g->finished, true, rank);
    describe_cause(-1, cause, sizeof cause);
    if (n > 0)
        fail(EXIT_HANG,
             "%s: rank %d has waited %g s (parallel.timeout); all ranks have called it, "
             "but the GPU%s of %s %s not come to it%s",
             call, own_rank(g), g->timeout, n > 1 ? "s" : "", rank_list(rank, n, list, sizeof list),
             n > 1 ? "have" : "has", cause);
    fail(EXIT_HANG,
         "%s: rank %d has waited %g s (parallel.timeout); all ranks have called it, and "
         "their GPUs have ended what came before%s",
         call, own_rank(g), g->timeout, cause);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* An error that no call has returned: NCCL's own threads found it. */
static void look_for_error(NcclGroup *g)
{
    NcclResult error = NCCL_SUCCESS;
    pthread_mutex_lock(&g->mutex);
    NcclResult result =
        g->handle ? nccl_library()->comm_async_error(g->handle, &error) : NCCL_SUCCESS;
    pthread_mutex_unlock(&g->mutex);
    if (result == NCCL_SUCCESS) result = error;
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        nccl_fail(g, g->finished < calls_of(g) ? g->finished : g->finished - 1, result);
}

/* How far the device has come. Calls of one communicator end in their order. */
static void look_for_progress(NcclGroup *g)
{
    pthread_mutex_lock(&g->mutex);
    int64_t issued = g->issued;
    pthread_mutex_unlock(&g->mutex);
    if (g->finished == issued) return;
    device_enter(&g->view);
    if (g->finished <= issued - NCCL_RING) g->finished = issued - NCCL_RING + 1;
    if (device_event_reached(&g->view, &g->asked[(issued - 1) % NCCL_RING])) g->finished = issued;
    while (g->finished < issued &&
           device_event_reached(&g->view, &g->asked[g->finished % NCCL_RING]))
        g->finished++;
}

/* Takes what has passed off the patience with the oldest call that has not ended. */
static void hold_deadline(NcclGroup *g, double passed)
{
    if (g->timeout <= 0 || g->finished == calls_of(g) || g->finished != g->watched) {
        g->watched = g->finished == calls_of(g) ? -1 : g->finished;
        g->patience = g->timeout;
        return;
    }
    g->patience -= passed;
    if (g->patience <= 0) end_waiting(g);
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
        /* A process that was stopped, and its peers with it, wakes up long after this time is over:
         * of that time it alone counts. */
        double slice = look_after(), start = seconds_now(), end = start + slice;
        struct timespec until = {.tv_sec = (time_t)end};
        until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
        pthread_cond_timedwait(&watch.woken, &watch.mutex, &until);
        double passed = fmin(slice, seconds_now() - start);
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

void nccl_watch(NcclGroup *g)
{
    g->watched = -1;
    pthread_mutex_lock(&watch.life);
    if (watch.groups == NULL) start_thread();
    pthread_mutex_lock(&watch.mutex);
    g->next = watch.groups;
    watch.groups = g;
    pthread_cond_signal(&watch.woken); /* its deadline may be shorter */
    pthread_mutex_unlock(&watch.mutex);
    pthread_mutex_unlock(&watch.life);
}

void nccl_unwatch(NcclGroup *g)
{
    pthread_mutex_lock(&watch.life);
    pthread_mutex_lock(&watch.mutex);
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
}
