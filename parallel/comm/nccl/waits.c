/* waits.c -- reports in which NCCL call a rank waits, on the host or on its device, and which ranks
 * have not arrived at that call, through the functions of blame.h. Ends the program when a call
 * takes too long. */
#include "model/core/log.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/nccl/group.h"

#include <stdio.h>
#include <string.h>

const char *nccl_describe_call(NcclGroup *g, int64_t number, char *text, size_t n)
{
    NcclCall call = {
        .name = "a call that cannot be read", .group = g->name, .elements = -1, .peer = -1};
    if (mutex_lock_within(&g->mutex, DEADLINE_LOCK)) {
        call = g->ring[number % NCCL_RING];
        pthread_mutex_unlock(&g->mutex);
    }
    /* Use a stream: some parts are optional, and it truncates what does not fit. */
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

/* ---- who has arrived ------------------------------------------------------------------------- */

/* Returns the member's end of the same communicator. NULL: it does not exist yet, or it is in
 * another process. */
static NcclGroup *member_of(NcclGroup *all, const NcclGroup *g, int rank)
{
    for (NcclGroup *h = all; h; h = h->next)
        if (h->rank == rank && memcmp(&h->id, &g->id, sizeof g->id) == 0) return h;
    return NULL;
}

/* Returns whether the host has made that call. */
static bool host_came(NcclGroup *g, int64_t number)
{
    return g && nccl_calls(g) > number;
}

/* Returns whether the device has reached that call, which its host has made. Returns true for a
 * call so old that its event has been reused. */
static bool device_came(NcclGroup *g, int64_t number)
{
    if (number <= nccl_calls(g) - NCCL_RING) return true;
    nccl_enter(g);
    return device_event_reached(&g->view, &g->asked[number % NCCL_RING].before);
}

/* Finds out which ranks have not arrived at g's oldest incomplete call. */
static void find_lack(NcclGroup *all, NcclGroup *g, BlameWait *wait)
{
    int64_t number = g->finished;
    wait->n = 0;
    wait->lack = BLAME_HOSTS;
    for (int i = 0; i < g->size; i++)
        if (!host_came(member_of(all, g, i), number)) wait->who[wait->n++] = g->world_rank[i];
    if (wait->n > 0) return;
    /* A device can be queried only about a call that its host has made. */
    wait->lack = BLAME_DEVICES;
    for (int i = 0; i < g->size; i++)
        if (!device_came(member_of(all, g, i), number)) wait->who[wait->n++] = g->world_rank[i];
    if (wait->n > 0) return;
    wait->lack = BLAME_NOTHING;
    wait->n = g->size;
    memcpy(wait->who, g->world_rank, (size_t)g->size * sizeof *wait->who);
}

/* ---- for blame.h; `world` is the watchdog's list of groups ----------------------------------- */

/* Returns the group whose oldest incomplete call this rank is in, on the host or on the device. */
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

static const BlameTransport transport = {
    .waits_in = waits_in, .lacks = lacks, .describe = describe, .devices = true};

bool nccl_excused(NcclGroup *all, NcclGroup *g)
{
    if (!log_blocked()) return false;
    BlameWait wait = {.rank = nccl_own_rank(g)};
    find_lack(all, g, &wait);
    return wait.lack != BLAME_NOTHING && blame_only(&transport, all, &wait, DEADLINE_PRINTS);
}

void nccl_end_waiting(NcclGroup *all, NcclGroup *g)
{
    BlameWait wait = {.rank = nccl_own_rank(g)};
    Blame blame = {0};
    nccl_describe_call(g, g->finished, wait.call, sizeof wait.call);
    find_lack(all, g, &wait);
    if (wait.lack != BLAME_NOTHING) blame_find(&transport, all, &wait, &blame);
    /* Do this last: querying the devices set this thread's log rank to that of other ranks. */
    nccl_end_for(g);
    deadline_end_waiting(&wait, g->timeout, &blame);
}
