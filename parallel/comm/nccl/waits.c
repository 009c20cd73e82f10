/* waits.c -- in which call of NCCL's a rank waits, on the host or on its device, and who has not
 * come to that call: what blame.h asks of this transport, and the end of a call that takes too
 * long. */
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

#include <stdio.h>
#include <string.h>

const char *nccl_describe_call(NcclGroup *g, int64_t number, char *text, size_t n)
{
    pthread_mutex_lock(&g->mutex);
    const NcclCall call = g->ring[number % NCCL_RING];
    pthread_mutex_unlock(&g->mutex);
    /* A stream, because the parts are optional, and it cuts what does not fit. */
    FILE *to = fmemopen(text, n, "w");
    CHECK(to != NULL, "no stream over %zu bytes", n);
    fprintf(to, "group %s, call %lld, %s", call.group, (long long)number, call.name);
    if (call.op == REDUCE_MAX) fputs(" (max)", to);
    if (call.elements >= 0)
        fprintf(to, " of %lld %s", (long long)call.elements, dtype_name(call.dtype));
    if (call.peer >= 0)
        fprintf(to, " %s rank %d", strcmp(call.name, "send") == 0 ? "to" : "from", call.peer);
    if (call.more > 0) fprintf(to, " and %d more", call.more);
    fclose(to);
    return text;
}

/* ---- who has come --------------------------------------------------------------------------- */

/* The same communicator on that member. NULL: it is not there yet, or in another process. */
static NcclGroup *member_of(NcclGroup *all, const NcclGroup *g, int rank)
{
    for (NcclGroup *h = all; h; h = h->next)
        if (h->rank == rank && memcmp(&h->id, &g->id, sizeof g->id) == 0) return h;
    return NULL;
}

/* Whether the host has made that call. */
static bool host_came(NcclGroup *g, int64_t number)
{
    return g && nccl_calls(g) > number;
}

/* The host has made that call: whether the device has come to it. For a call so old that its mark
 * has been used again the answer is yes. */
static bool device_came(NcclGroup *g, int64_t number)
{
    if (number <= nccl_calls(g) - NCCL_RING) return true;
    nccl_enter(g);
    return device_event_reached(&g->view, &g->asked[number % NCCL_RING].before);
}

/* What g's oldest call that has not ended lacks. */
static void find_lack(NcclGroup *all, NcclGroup *g, BlameWait *wait)
{
    int64_t number = g->finished;
    wait->n = 0;
    wait->lack = BLAME_HOSTS;
    for (int i = 0; i < g->size; i++)
        if (!host_came(member_of(all, g, i), number)) wait->who[wait->n++] = g->world_rank[i];
    if (wait->n > 0) return;
    /* A device can only be asked about a call that its host has made. */
    wait->lack = BLAME_DEVICES;
    for (int i = 0; i < g->size; i++)
        if (!device_came(member_of(all, g, i), number)) wait->who[wait->n++] = g->world_rank[i];
    if (wait->n > 0) return;
    wait->lack = BLAME_NOTHING;
    wait->n = g->size;
    memcpy(wait->who, g->world_rank, (size_t)g->size * sizeof *wait->who);
}

/* ---- for blame.h: the world is the watchdog's list of groups ----------------------------------
 */

/* The group in whose oldest call that rank is, on the host or on the device. */
static const void *waits_in(void *all, int rank)
{
    for (NcclGroup *g = all; g; g = g->next)
        if (nccl_own_rank(g) == rank && g->finished < nccl_calls(g) && device_came(g, g->finished))
            return g;
    return NULL;
}

static bool lacks(void *all, const void *group, int rank, BlameWait *wait)
{
    (void)rank;
    find_lack(all, (NcclGroup *)group, wait);
    return true;
}

static void describe(void *all, const void *of, int rank, char *text, size_t n)
{
    NcclGroup *group = (NcclGroup *)of;
    (void)all, (void)rank;
    nccl_describe_call(group, group->finished, text, n);
}

void nccl_end_waiting(NcclGroup *all, NcclGroup *g)
{
    static const BlameTransport transport = {
        .waits_in = waits_in, .lacks = lacks, .describe = describe, .devices = true};
    BlameWait wait = {.rank = nccl_own_rank(g)};
    Blame blame = {0};
    nccl_describe_call(g, g->finished, wait.call, sizeof wait.call);
    find_lack(all, g, &wait);
    if (wait.lack != BLAME_NOTHING) blame_find(&transport, all, &wait, &blame);
    /* Do this last: querying the devices set this thread's log rank to that of other ranks. */
    nccl_end_for(g);
    deadline_end_waiting(&wait, g->timeout, &blame);
}
