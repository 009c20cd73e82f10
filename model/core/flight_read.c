/* flight_read.c -- the names of what a flight recorder keeps, and the functions by which any thread
 * reads it; see flight.h. */
#include "model/core/flight_inside.h"

#include <string.h>

const char *const flight_kind_name[FLIGHT_KINDS] = {
    [FLIGHT_OP] = "op",
    [FLIGHT_COPY] = "copy",
    [FLIGHT_COLLECTIVE] = "collective",
    [FLIGHT_EXCHANGE] = "exchange",
    [FLIGHT_WAIT] = "wait",
    [FLIGHT_WORK] = "work",
};
const char *const flight_work_name[FLIGHT_WORKS] = {
    [FLIGHT_DATA] = "data",     [FLIGHT_SAVE] = "save",       [FLIGHT_EVALUATION] = "evaluation",
    [FLIGHT_SAMPLE] = "sample", [FLIGHT_CONSOLE] = "console", [FLIGHT_DISK] = "disk",
};
const char *const flight_action_name[FLIGHT_ACTIONS] = {
    [FLIGHT_BETWEEN] = "between steps", [FLIGHT_BEGIN] = "begin",
    [FLIGHT_FORWARD] = "forward",       [FLIGHT_BACKWARD] = "backward",
    [FLIGHT_EVALUATE] = "evaluate",     [FLIGHT_TRANSFERS] = "exchange",
    [FLIGHT_GRADIENTS] = "gradients",   [FLIGHT_DECIDE] = "decide",
    [FLIGHT_UPDATE] = "update",
};
const char *const flight_stream_name[FLIGHT_STREAMS] = {
    [GRAPH_COMPUTE] = "compute", [GRAPH_COPY] = "copy", [GRAPH_COMM] = "comm",
    [GRAPH_P2P] = "p2p",         [GRAPH_TP] = "tp",     [GRAPH_UPDATE] = "update",
    [FLIGHT_HOST] = "host",
};
const char *const flight_wait_name[FLIGHT_WAITS] = {
    [GRAPH_COMPUTE] = "compute",
    [GRAPH_COPY] = "copy",
    [GRAPH_COMM] = "comm",
    [GRAPH_P2P] = "p2p",
    [GRAPH_TP] = "tp",
    [GRAPH_UPDATE] = "update",
    [FLIGHT_WHOLE_DEVICE] = "device",
};

/* ---- reading --------------------------------------------------------------------------------- */

int64_t flight_issued(const Flight *f)
{
    return atomic_load_explicit(&f->issued, memory_order_acquire);
}

FlightPlace flight_place(const Flight *f)
{
    return (FlightPlace){.step = atomic_load_explicit(&f->step, memory_order_relaxed),
                         .micro_batch = atomic_load_explicit(&f->micro_batch, memory_order_relaxed),
                         .action =
                             (FlightAction)atomic_load_explicit(&f->action, memory_order_relaxed)};
}

int flight_groups(const Flight *f, GraphGroup *out)
{
    int n = atomic_load_explicit(&f->groups, memory_order_acquire);
    memcpy(out, f->group, (size_t)n * sizeof *out);
    return n;
}

const char *flight_entry_name(const FlightEntry *e, GraphNames names)
{
    switch ((FlightKind)e->kind) {
    case FLIGHT_OP: return names.op[e->code];
    case FLIGHT_COLLECTIVE:
    case FLIGHT_EXCHANGE: return names.verb[e->code];
    case FLIGHT_WAIT: return flight_wait_name[e->code];
    case FLIGHT_WORK: return flight_work_name[e->code];
    default: return flight_kind_name[e->kind];
    }
}

const char *flight_dtype_name(const FlightEntry *e)
{
    return e->dtype < FLIGHT_NO_DTYPE ? dtype_name((DType)e->dtype) : "";
}

/* Sets finished[s] to the number of the last entry that stream s is known to have finished. */
static void load_progress(const Flight *f, int64_t *finished)
{
    const int64_t *progress = atomic_load_explicit(&f->progress, memory_order_acquire);
    for (int s = 0; s < GRAPH_STREAMS; s++) {
        int64_t ended = atomic_load_explicit(&f->ended[s], memory_order_relaxed);
        int64_t reached = progress ? __atomic_load_n(&progress[s], __ATOMIC_ACQUIRE) : 0;
        finished[s] = reached > ended ? reached : ended;
    }
}

/* Inserts the entry into the n ordered entries of out, unless it is already there. Returns the new
 * number of entries. */
static int insert(FlightEntry *out, int n, const FlightEntry *entry)
{
    int at = 0;
    while (at < n && out[at].n < entry->n)
        at++;
    if (at < n && out[at].n == entry->n) return n;
    memmove(&out[at + 1], &out[at], (size_t)(n - at) * sizeof *out);
    out[at] = *entry;
    return n + 1;
}

int flight_snapshot(const Flight *f, FlightEntry *out)
{
    FlightEntry work;
    int64_t finished[GRAPH_STREAMS], last = flight_issued(f);
    int64_t first = last < FLIGHT_ENTRIES ? 1 : last - FLIGHT_ENTRIES + 1;
    int n = 0;
    for (int64_t i = first; i <= last; i++)
        if (slot_load(&f->slot[i & (FLIGHT_ENTRIES - 1)], &out[n]) && out[n].n == i) n++;
    for (int w = 0; w < FLIGHT_OPEN; w++)
        if (slot_load(&f->work[w], &work)) n = insert(out, n, &work);
    load_progress(f, finished);
    for (int i = 0; i < n; i++)
        if (out[i].finished == 0 && out[i].stream < GRAPH_STREAMS &&
            out[i].n <= finished[out[i].stream])
            out[i].finished = out[i].issued;
    return n;
}
