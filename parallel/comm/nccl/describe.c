/* describe.c -- writes descriptions of NCCL calls for messages. */
#include "model/core/pool.h"
#include "parallel/comm/call.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

#include <stdio.h>

static void describe(const NcclCall *call, int64_t number, char *text, size_t n)
{
    char what[128], more[32] = "";
    const CommCall seen = {.name = call->name,
                           .count = call->elements,
                           .dtype = call->dtype,
                           .op = call->op,
                           .root = call->peer,
                           .device = true};
    if (call->more > 0) snprintf(more, sizeof more, " and %d more", call->more);
    snprintf(text, n, "group %s, call %lld, %s%s", call->group, (long long)number,
             comm_call_text(&seen, what, sizeof what), more);
}

const char *nccl_describe_call(NcclGroup *g, int64_t number, char *text, size_t n)
{
    NcclCall call = {
        .name = "a call that cannot be read", .group = g->name, .elements = -1, .peer = -1};
    if (mutex_lock_within(&g->mutex, DEADLINE_LOCK)) {
        call = g->ring[number % NCCL_RING];
        pthread_mutex_unlock(&g->mutex);
    }
    describe(&call, number, text, n);
    return text;
}

bool nccl_describe_watched(WatchedGroup *watched, int64_t number, char *text, size_t n)
{
    NcclGroup *g = (NcclGroup *)watched;
    /* The watchdog holds the mutex while it asks NCCL for errors, which may take long. */
    if (pthread_mutex_trylock(&g->mutex) != 0) return false;
    const NcclCall call = g->ring[number % NCCL_RING];
    pthread_mutex_unlock(&g->mutex);
    describe(&call, number, text, n);
    return true;
}
