/* late_run.h -- runs training on late devices, which delay their work (late_device.h), and compares
 * it with the same training on the CPU. Collects the places in the program whose waits, when left
 * out, must change the result. */
#ifndef TESTS_SUPPORT_DEVICE_LATE_RUN_H
#define TESTS_SUPPORT_DEVICE_LATE_RUN_H

#include "tests/support/device/late_device.h"
#include "tests/support/trainer/rank_run.h"

/* A place in the program that waits: the waiting stream and the awaited stream. */
typedef struct {
    const void *site;
    const char *stream, *other;
    bool peer;
    int seen, waits, red; /* seen: in the current run */
    char example[800];    /* one wait whose removal changed nothing */
} LateSite;

enum { LATE_MOST_SITES = 256 };
typedef struct {
    LateSite item[LATE_MOST_SITES];
    int n;
    /* every 0: at each place, all waits of each run are left out in turn. Otherwise only every n-th
     * one is, and none at places where `enough` waits have already changed the result. */
    int every, enough;
} LateSites;

/* Trains with rank_run_open's config on the CPU and on late devices. The results must be the same
 * bits in every order of the streams that their events allow. Without overlap_comm, no work of a
 * compute stream may overtake earlier collectives of the comm stream. With overlap_comm, the waits
 * of the last step but one are left out in turn and counted in `sites` (may be NULL); the last step
 * shows the effect. Returns how often a compute stream may overtake its comm stream. */
int late_run_both(const Folder *folder, int ranks, const char *const *sets, LateSites *sites);
/* Fails if no place was counted or, if `all`, if leaving out the waits of some place never changed
 * the result. */
void late_sites_check(const LateSites *sites, bool all);

#endif
