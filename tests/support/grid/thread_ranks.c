/* thread_ranks.c -- runs a function on several ranks, which are threads of the test. */
#include "tests/support/grid/thread_ranks.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/nccl/nccl.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    LocalWorld *world;
    pthread_barrier_t *all_closed;
    int rank;
    RankBody body;
    void *context;
} Rank;

static pthread_mutex_t wrong_mutex = PTHREAD_MUTEX_INITIALIZER;
static char wrong[512];

void rank_wrong(const Comm *comm, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    char whole[512];
    snprintf(whole, sizeof whole, "rank %d of %d in %s: %s", comm->rank, comm->size, comm->name,
             text);
    if (process_rank_wrong(whole)) return;
    pthread_mutex_lock(&wrong_mutex);
    if (wrong[0] == '\0') memcpy(wrong, whole, sizeof wrong);
    pthread_mutex_unlock(&wrong_mutex);
}

static void *rank_main(void *arg)
{
    Rank *rank = arg;
    log_set_rank(rank->rank, "");
    Comm comm = local_world_join(rank->world, rank->rank);
    rank->body(&comm, rank->context);
    comm_close(&comm);
    /* If another rank ended the program now, ThreadSanitizer would report an ended thread that is
     * not joined yet as a leak. So every thread waits until all have closed. */
    pthread_barrier_wait(rank->all_closed);
    return NULL;
}

/* Does the same with ranks that are processes. */
static void fork_ranks(int ranks, double timeout, RankBody body, void *context)
{
    int code = process_ranks(ranks, timeout, body, context, wrong, sizeof wrong);
    if (code != 0) _exit(code);
    if (wrong[0]) fail_msg("%s", wrong);
}

void thread_ranks(int ranks, double timeout, RankBody body, void *context)
{
    nccl_set_environment(); /* as those do that start the ranks of a run (gpus.h) */
    if (ranks_are_processes()) {
        fork_ranks(ranks, timeout, body, context);
        return;
    }
    LocalWorld *world = local_world_create(ranks, timeout);
    Rank rank[LOCAL_MAX_RANKS];
    pthread_t thread[LOCAL_MAX_RANKS];
    pthread_barrier_t all_closed;
    pthread_barrier_init(&all_closed, NULL, (unsigned)ranks);
    wrong[0] = '\0';
    for (int r = 0; r < ranks; r++)
        rank[r] = (Rank){world, &all_closed, r, body, context};
    ends_share(ranks > 1);
    for (int r = 1; r < ranks; r++)
        thread_start(&thread[r], rank_main, &rank[r], "a rank");
    rank_main(&rank[0]);
    for (int r = 1; r < ranks; r++)
        pthread_join(thread[r], NULL);
    ends_share(false);
    pthread_barrier_destroy(&all_closed);
    local_world_destroy(world);
    if (wrong[0]) fail_msg("%s", wrong);
}
