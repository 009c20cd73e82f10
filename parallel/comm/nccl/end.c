/* end.c -- what the program ends with where a call of NCCL's fails, or does not end: a
 * sentence about the call, about who has not come to it, host or GPU, and about what these are due
 * to. */
#include "model/core/log.h"
#include "parallel/comm/nccl/group.h"
#include "parallel/comm/rank_list.h"

#include <stdio.h>
#include <string.h>

enum { CALL_BYTES = 192 };

/* Behind a call to which all have come: what NCCL does in it, it alone can tell. */
static const char details[] = "run with NCCL_DEBUG=INFO for details";

/* "group dp, call 7, all-reduce of 64 f32" */
static const char *describe_call(NcclGroup *g, int64_t number, char *text, size_t n)
{
    pthread_mutex_lock(&g->mutex);
    const NcclCall call = g->ring[number % NCCL_RING];
    pthread_mutex_unlock(&g->mutex);
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

void nccl_speak_for(const NcclGroup *g)
{
    log_set_rank(nccl_own_rank(g), g->place);
    log_set_file(g->log);
}

/* Who speaks is the rank. Other threads of the process run on, perhaps inside NCCL. */
static void take_place(const NcclGroup *g)
{
    nccl_speak_for(g);
    ends_share(true);
}

/* NCCL has one code for all that CUDA refuses; its words tell the GPU's memory from the rest:
 * CUDA's own, or what stands behind them in its log ("Failed to CUDA calloc async 64 bytes"). */
static bool out_of_memory(NcclResult result, const char *said)
{
    return result == NCCL_UNHANDLED_CUDA_ERROR &&
           (strstr(said, "CUDA malloc") != NULL || strstr(said, "CUDA calloc") != NULL ||
            strstr(said, "out of memory") != NULL);
}

void nccl_end_failed(NcclGroup *g, int64_t number, NcclResult result)
{
    const NcclLibrary *nccl = nccl_library();
    char call[CALL_BYTES], list[RANK_LIST_BYTES], said[512] = "", advice[128] = "";
    const char *last = nccl->last_error(g->handle);
    while (last && (*last == '\n' || *last == ' '))
        last++;
    if (last && *last) snprintf(said, sizeof said, ": %.*s", (int)strcspn(last, "\n"), last);
    bool full = out_of_memory(result, said);
    int fewer = nccl_fewer_channels();
    if (full) snprintf(advice, sizeof advice, "; free some of the GPU's memory");
    if (full && fewer > 0)
        snprintf(advice + strlen(advice), sizeof advice - strlen(advice),
                 ", or set NCCL_MAX_CTAS=%d in the environment", fewer);
    take_place(g);
    fail(full                          ? EXIT_NO_MEMORY
         : result == NCCL_REMOTE_ERROR ? EXIT_PEER_LOST
                                       : EXIT_SYSTEM,
         "%s of %s: NCCL on rank %d says: %s%s%s", describe_call(g, number, call, sizeof call),
         rank_list(g->world_rank, g->size, list, sizeof list), nccl_own_rank(g),
         nccl->error_string(result), said, advice);
}

/* ---- who keeps a call from ending ------------------------------------------------------------ */

/* The same communicator on that member; NULL: it is not there yet, or not of this process. */
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

/* The host has made that call; whether the device has come to it. Of older calls than are marked it
 * is taken for granted. */
static bool device_came(NcclGroup *g, int64_t number)
{
    if (number <= nccl_calls(g) - NCCL_RING) return true;
    nccl_enter(g);
    return device_event_reached(&g->view, &g->asked[number % NCCL_RING].before);
}

/* The members whose host has not come to that call, or, if all have, whose device has not: their
 * ranks of the world. Returns how many. */
static int absent(NcclGroup *all, NcclGroup *g, int64_t number, bool *hosts, int *rank)
{
    int n = 0;
    for (int i = 0; i < g->size; i++)
        if (!host_came(member_of(all, g, i), number)) rank[n++] = g->world_rank[i];
    *hosts = n > 0;
    for (int i = 0; i < g->size && !*hosts; i++)
        if (!device_came(member_of(all, g, i), number)) rank[n++] = g->world_rank[i];
    return n;
}

/* The group in whose oldest call that rank stands, on the host or on the device; NULL: in none. */
static NcclGroup *stands_in(NcclGroup *all, int rank)
{
    for (NcclGroup *g = all; g; g = g->next)
        if (nccl_own_rank(g) == rank && g->finished < nccl_calls(g) && device_came(g, g->finished))
            return g;
    return NULL;
}

/* "; rank 2 waits for rank 3 (group tp, call 7, all-reduce of 64 f32)": follows from that rank on
 * who stands in which call, and who has not come to that, to the last of whom something is known.
 */
static void describe_cause(NcclGroup *all, int rank, char *text, size_t n)
{
    char call[CALL_BYTES];
    NcclGroup *last = NULL, *g;
    int list[NCCL_MOST_RANKS], waits_for = -1, steps = 0;
    bool hosts = false, stands = false;
    for (; steps < NCCL_MOST_RANKS && !stands && (g = stands_in(all, rank)) != NULL; steps++) {
        last = g;
        stands = absent(all, g, g->finished, &hosts, list) == 0;
        if (!stands) waits_for = rank = list[0];
    }
    text[0] = '\0';
    if (last == NULL) return;
    describe_call(last, last->finished, call, sizeof call);
    if (stands)
        snprintf(text, n, "; rank %d stands in %s, to which all have come; %s", nccl_own_rank(last),
                 call, details);
    else if (steps == NCCL_MOST_RANKS)
        snprintf(text, n, "; they wait for each other");
    else
        snprintf(text, n, "; rank %d waits for %srank %d (%s)", nccl_own_rank(last),
                 hosts ? "" : "the GPU of ", waits_for, call);
}

void nccl_end_waiting(NcclGroup *all, NcclGroup *g)
{
    char call[CALL_BYTES], list[RANK_LIST_BYTES], cause[384] = "";
    int rank[NCCL_MOST_RANKS];
    bool hosts;
    describe_call(g, g->finished, call, sizeof call);
    int n = absent(all, g, g->finished, &hosts, rank);
    if (n > 0) {
        rank_list(rank, n, list, sizeof list);
        describe_cause(all, rank[0], cause, sizeof cause);
    }
    take_place(g);
    if (n > 0 && hosts)
        fail(EXIT_HANG,
             "%s: rank %d has waited %g s (parallel.timeout) for %s, which %s not arrived%s", call,
             nccl_own_rank(g), g->timeout, list, n > 1 ? "have" : "has", cause);
    if (n > 0)
        fail(
            EXIT_HANG,
            "%s: rank %d has waited %g s (parallel.timeout); all its ranks have called it, but the "
            "GPU%s of %s %s not come to it%s",
            call, nccl_own_rank(g), g->timeout, n > 1 ? "s" : "", list, n > 1 ? "have" : "has",
            cause);
    rank_list(g->world_rank, g->size, list, sizeof list);
    fail(EXIT_HANG,
         "%s: rank %d has waited %g s (parallel.timeout); %s and their GPUs have all come to it, "
         "and it does not end; %s",
         call, nccl_own_rank(g), g->timeout, list, details);
}
