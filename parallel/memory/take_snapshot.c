/* take_snapshot.c -- adds the snapshots of asynchronous saves to the memory plan, if there is room.
 * See memory_plan.h. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/memory/memory_plan.h"

#include <math.h>

static void add(size_t *to, size_t bytes)
{
    if (__builtin_add_overflow(*to, bytes, to)) *to = SIZE_MAX;
}

/* Adds the snapshot to the plan. */
static void add_snapshot(MemoryPlan *p)
{
    add(&p->host, p->snapshot);
    if (p->on_host) add(&p->total, p->snapshot);
}

bool memory_take_snapshot(Comm *world, const MemoryRoom *room, MemoryPlan *own, MemoryPlan *sum)
{
    double left = sum->on_host ? (double)room->available - (double)sum->total
                               : (double)memory_host_room(sum, room) - (double)sum->host;
    double lacks = fmax((double)sum->snapshot - left, 0);
    int64_t most = control_max(world, lacks < 0x1p62 ? (int64_t)lacks : INT64_MAX);
    bool wanted = control_max(world, sum->snapshot > 0) != 0;
    if (most > 0)
        log_notice("checkpoint.async: training waits while a checkpoint is written, because a "
                   "snapshot needs %s more of the host's memory than are free",
                   figure_bytes((double)most).text);
    if (most > 0) own->snapshot = sum->snapshot = 0;
    add_snapshot(own);
    add_snapshot(sum);
    return wanted && most == 0;
}
