/* remedy.c -- for a plan that does not fit its GPUs, or their host, finds which part of the
 * optimizer states would have to be on the host; see plan.h. */
#include "parallel/plan/plan.h"

#include "model/core/check.h"
#include "model/core/figures.h"

#include <stdio.h>
#include <stdlib.h>

enum { WHOLE = 100 };

Config plan_with_host(const Config *config, int hundredths)
{
    Config with = *config;
    with.zero_optimization.offload_optimizer.device = OFFLOAD_CPU;
    with.zero_optimization.offload_optimizer.ratio = hundredths / 100.0;
    return with;
}

/* Returns a plan of the memory with `hundredths` hundredths of the states on the host. */
static Plan with_ratio(const Plan *plan, int hundredths)
{
    const Config config = plan_with_host(plan->config, hundredths);
    return plan_memory(&config, &plan->hardware);
}

static int64_t left(const PlanRoom *room)
{
    return room->room - room->needed;
}

/* Returns a ratio in hundredths from `low` to `high`: the smallest with which the device has room
 * or, if `device` is false, the largest with which the host has room. There must be room at one end
 * of this range: on the device with `high`, on the host with `low`. */
static int bisect(const Plan *plan, int low, int high, bool device)
{
    while (high - low > 1) {
        int middle = (low + high) / 2;
        const Plan there = with_ratio(plan, middle);
        bool fits = left(device ? &there.device : &there.host) >= 0;
        *(fits == device ? &high : &low) = middle;
    }
    return device ? high : low;
}

int plan_least_host(const Config *config, const Hardware *hardware, int64_t *plans)
{
    const Plan plan = {.config = config, .hardware = *hardware}, none = with_ratio(&plan, 0);
    *plans += 1;
    if (left(&none.device) >= 0) return 0;
    const Plan all = with_ratio(&plan, WHOLE);
    *plans += 1;
    if (left(&all.device) < 0) return WHOLE;
    *plans += 7; /* the range of a hundred is halved seven times */
    return bisect(&plan, 0, WHOLE, true);
}

/* Writes the --set argument that sets the ratio. */
static void write_ratio(const Plan *plan, int hundredths, char *out, size_t n)
{
    static const char section[] = "zero_optimization.offload_optimizer";
    if (plan->config->zero_optimization.offload_optimizer.device == OFFLOAD_CPU)
        snprintf(out, n, "%s.ratio=%g", section, hundredths / 100.0);
    else if (hundredths == WHOLE)
        snprintf(out, n, "%s.device=cpu", section);
    else
        snprintf(out, n, "%s.device=cpu --set %s.ratio=%g", section, section, hundredths / 100.0);
}

/* Returns a hint how to store fewer states on each rank (with ZeRO stage 1), or "" if there is
 * none; the caller frees it. */
static char *smaller_states(const Plan *plan)
{
    int ranks = plan->grid.dp;
    if (ranks < 2 || plan->config->zero_optimization.stage > 0) return must_strdup("");
    return text_format(
        "; zero_optimization.stage=1 leaves each of %d data-parallel ranks 1/%d of the "
        "states",
        ranks, ranks);
}

void plan_find_remedy(Plan *plan)
{
    if (plan->fits || !plan->hardware.cuda) return;
    const Plan none = with_ratio(plan, 0), all = with_ratio(plan, WHOLE);
    char ratio[160];
    if (left(&all.device) < 0 || left(&none.host) < 0) return; /* something else is too large */
    int least = left(&none.device) >= 0 ? 0 : bisect(plan, 0, WHOLE, true),
        most = left(&all.host) >= 0 ? WHOLE : bisect(plan, 0, WHOLE, false);
    bool lower = plan->device.needed <= plan->device.room; /* only the host lacks memory */
    const Plan low = with_ratio(plan, most), high = with_ratio(plan, least);
    const Plan *named = lower ? &low : &high;
    write_ratio(plan, lower ? most : least, ratio, sizeof ratio);
    char *states = smaller_states(plan);
    if (named->fits)
        plan->remedy =
            text_format("--set %s fits: %s of the %s of a node's memory that it may use%s", ratio,
                        figure_bytes((double)named->host.needed).text,
                        figure_bytes((double)named->host.room).text, states);
    else
        plan->remedy = text_format(
            "no ratio of zero_optimization.offload_optimizer fits: with %g a node lacks %s, with "
            "%g a GPU lacks %s%s",
            least / 100.0, figure_bytes(-(double)left(&high.host)).text, most / 100.0,
            figure_bytes(-(double)left(&low.device)).text, states);
    free(states);
}
