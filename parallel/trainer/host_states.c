/* host_states.c -- allocates page-locked memory for the optimizer's states. See host_states.h. */
#include "parallel/trainer/host_states.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/device_counted.h"
#include "model/core/figures.h"
#include "model/core/progress.h"

#include <stdlib.h>

/* Lays out the blocks on a counted device, without memory: the states may be larger than the memory
 * of the machine that computes the plan. */
static void reserve(HostStates *s, Device *dev, const size_t *bytes)
{
    for (int u = 0; u < s->units; u++) {
        if (bytes[u] == 0) continue;
        s->arena[u] = arena_over(device_counted_reserve(dev, bytes[u]), bytes[u]);
        s->bytes += bytes[u];
    }
}

void host_states_open(HostStates *s, Device *dev, const size_t *bytes, int units)
{
    static const double giga = 1e9;
    size_t all = 0;
    double begun = seconds_now();
    for (int u = 0; u < units; u++)
        all += bytes[u];
    *s = (HostStates){.units = units};
    if (all == 0) return;
    s->arena = must_calloc((size_t)units, sizeof *s->arena);
    if (device_is_counted(dev)) {
        reserve(s, dev, bytes);
        return;
    }
    Progress progress = progress_begin();
    for (int u = 0; u < units; u++) {
        progress_count(&progress, (int64_t)s->bytes, (int64_t)all,
                       "page-locking host memory for optimizer states, %.1f of %.1f GB",
                       (double)s->bytes / giga, (double)all / giga);
        if (bytes[u] == 0) continue;
        void *block = device_host_alloc(
            dev, bytes[u], "optimizer states (lower zero_optimization.offload_optimizer.ratio)");
        s->arena[u] = arena_over(block, bytes[u]);
        s->bytes += bytes[u];
    }
    progress_end(&progress);
    s->seconds = seconds_now() - begun;
}

void host_states_close(HostStates *s, Device *dev)
{
    for (int u = 0; u < s->units && s->arena; u++)
        device_host_release(dev, s->arena[u].base, s->arena[u].size);
    free(s->arena);
    *s = (HostStates){0};
}
