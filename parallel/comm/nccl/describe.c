/* describe.c -- NCCL calls as messages describe them. */
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Adds to the text, which has room for n bytes. */
static void add(char *text, size_t n, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t n, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, n - used, format, args);
    va_end(args);
}

static void describe(const NcclCall *call, int64_t number, char *text, size_t n)
{
    snprintf(text, n, "group %s, call %lld, %s", call->group, (long long)number, call->name);
    if (call->op == REDUCE_MAX) add(text, n, " (max)");
    if (call->elements >= 0)
        add(text, n, " of %lld %s", (long long)call->elements, dtype_name(call->dtype));
    if (call->peer >= 0)
        add(text, n, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from", call->peer);
    if (call->more > 0) add(text, n, " and %d more", call->more);
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
