/* launch.c -- starts ranks as threads. launch_processes.c starts them as processes. See launch.h.
 */
#include "parallel/grid/launch.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/openblas.h"
#include "parallel/comm/local/local.h"
#include "parallel/grid/launch_join.h"
#include "parallel/grid/launch_processes.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)LAUNCH_MAX_RANKS <= (int)LOCAL_MAX_RANKS, "all may be threads");

typedef struct {
    LocalWorld *world;
    GridPlace size;
    LaunchBody body;
    void *context;
} Launch;

typedef struct {
    const Launch *launch;
    int rank, code;
    pthread_t thread;
} Rank;

/* Runs a rank in the calling thread. */
static void live(Rank *r)
{
    const Launch *launch = r->launch;
    char place[64];
    log_set_rank(r->rank, grid_place_text(launch->size, r->rank, place, sizeof place));
    Comm world = local_world_join(launch->world, r->rank);
    r->code = launch->body(&world, launch->context);
    comm_close(&world);
}

static void *rank_main(void *context)
{
    live(context);
    return NULL;
}

static int launch_alone(LaunchBody body, void *context)
{
    Comm world = comm_self("world");
    int code = body(&world, context);
    comm_close(&world);
    return code;
}

static int launch_threads(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    Launch launch = {.size = options->size,
                     .world = local_world_create(ranks, options->timeout),
                     .body = body,
                     .context = context};
    Rank rank[LAUNCH_MAX_RANKS];
    int before = log_rank();
    char place[64];
    snprintf(place, sizeof place, "%s", log_place());
    openblas_prepare(); /* it sets environment variables, which is unsafe once there are other
                           threads */
    ends_share(true);
    for (int i = 0; i < ranks; i++)
        rank[i] = (Rank){.launch = &launch, .rank = i};
    for (int i = 1; i < ranks; i++)
        thread_start(&rank[i].thread, rank_main, &rank[i], "a rank");
    /* Rank 0 runs in this thread, which receives the signals. */
    live(&rank[0]);
    for (int i = 1; i < ranks; i++)
        pthread_join(rank[i].thread, NULL);
    ends_share(false);
    /* Restores the log prefix of the calling thread. */
    log_set_rank(before, place);
    local_world_destroy(launch.world);
    return rank[0].code;
}

int launch_ranks(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    LaunchOptions given = options ? *options : (LaunchOptions){0};
    if (launch_joined()) {
        if (given.size.dp == 0) given.size = (GridPlace){.pp = 1, .dp = ranks, .cp = 1, .tp = 1};
        return launch_in_world(ranks, &given, body, context);
    }
    CHECK(ranks >= 1 && ranks <= LAUNCH_MAX_RANKS, "%d ranks", ranks);
    if (ranks == 1 && !given.processes) return launch_alone(body, context);
    if (given.size.dp == 0) given.size = (GridPlace){.pp = 1, .dp = ranks, .cp = 1, .tp = 1};
    return (given.processes ? launch_processes : launch_threads)(ranks, &given, body, context);
}

const char *launch_kind(const Comm *world)
{
    const Comm *host = world->host ? world->host : world;
    return strcmp(host->ops->name, "socket") == 0 ? "processes" : "threads";
}
