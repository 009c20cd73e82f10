/* late_run.c -- trains on late devices, which delay their work, and on the CPU, leaves out waits,
 * and compares the results. */
#include "tests/support/device/late_run.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    LateSites *sites;
    LateVerdict verdict;
} LateRun;

static LateSite *site_of(LateSites *sites, const LateWait *wait)
{
    LateSite *site = sites->item;
    while (site < sites->item + sites->n &&
           (site->site != wait->site || site->stream != wait->stream ||
            site->other != wait->other || site->peer != wait->peer))
        site++;
    if (site == sites->item + sites->n) {
        CHECK(sites->n < LATE_MOST_SITES, "more than %d places that wait", LATE_MOST_SITES);
        *site = (LateSite){
            .site = wait->site, .stream = wait->stream, .other = wait->other, .peer = wait->peer};
        sites->n++;
    }
    return site;
}

static bool is_counted(const RankRun *run)
{
    return ((LateRun *)run->context)->sites && run->training.config->zero_optimization.overlap_comm;
}

static bool choose_wait(void *context, const LateWait *wait)
{
    const RankRun *run = context;
    LateSites *sites = ((LateRun *)run->context)->sites;
    if (!is_counted(run)) return sites == NULL || sites->every == 0;
    LateSite *site = site_of(sites, wait);
    return sites->every == 0 || (site->red < sites->enough && site->seen++ % sites->every == 0);
}

static void count_wait(void *context, const LateWait *wait)
{
    const RankRun *run = context;
    if (!is_counted(run)) return;
    LateSite *site = site_of(((LateRun *)run->context)->sites, wait);
    bool red = strcmp(wait->verdict, "red") == 0;
    site->waits++;
    site->red += red;
    if (!red)
        snprintf(site->example, sizeof site->example, "%s: %s, in %s", wait->verdict, wait->where,
                 run->name);
}

/* Leaves out waits of the last step but one. The last step shows what has then run too early. */
static void take_burst(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    LateJury jury = {choose_wait, count_wait, run};
    comm_barrier(world);
    if (world->rank == 0) late_burst_begin();
    comm_barrier(world);
    for (int64_t i = 0; i < steps; i++) {
        if (i >= steps - 2) late_mark(&t->session.dev);
        trainer_step(t);
    }
    comm_barrier(world);
    if (world->rank == 0) ((LateRun *)run->context)->verdict = late_burst_end(&jury);
    comm_barrier(world);
}

int late_run_both(const Folder *folder, int ranks, const char *const *sets, LateSites *sites)
{
    LateRun both = {.sites = sites};
    const LateVerdict *v = &both.verdict;
    RankRun plain = {0}, late = {.take_middle = take_burst, .context = &both};
    for (int i = 0; sites && i < sites->n; i++)
        sites->item[i].seen = 0;
    rank_run_open(&plain, folder, ranks, sets);
    rank_run_open(&late, folder, ranks, sets);
    rank_run_train(&plain);
    late_devices(true);
    rank_run_train(&late);
    late_devices(false);
    if (v->wrong[0]) fail_msg("%s: %s", late.name, v->wrong);
    if (ranks == 1 || sites == NULL || sites->every == 0) assert_true(v->red > 0);
    rank_runs_equal(&plain, &late);
    if (v->overlapping > 0 && !late.training.config->zero_optimization.overlap_comm)
        fail_msg("%s: computes %d times while it communicates, %s", late.name, v->overlapping,
                 v->overlap);
    if ((late.training.config->parallel.tensor > 1 && v->beside_tp == 0) ||
        (late.training.config->parallel.pipeline > 1 && v->beside_p2p == 0))
        fail_msg("%s: computes %d times beside sums of regions, %d times beside exchanges",
                 late.name, v->beside_tp, v->beside_p2p);
    if (v->copies == 0) fail_msg("%s: no micro-batch is copied during other work", late.name);
    rank_run_close(&plain);
    rank_run_close(&late);
    return v->overlapping;
}

void late_sites_check(const LateSites *sites, bool all)
{
    assert_true(sites->n > 0);
    for (int i = 0; i < sites->n && all; i++) {
        const LateSite *site = &sites->item[i];
        if (site->red == 0)
            fail_msg("of %d waits of one place none shows; one is %s", site->waits, site->example);
    }
}
