/* late_run.h -- training runs by several ranks on late devices (late_device.h), beside the same
 * runs on the CPU, and the places of the program whose waits must show when they are left out. */
#ifndef TESTS_SUPPORT_DEVICE_LATE_RUN_H
#define TESTS_SUPPORT_DEVICE_LATE_RUN_H

#include "tests/support/device/late_device.h"
#include "tests/support/trainer/rank_run.h"

/* A place in the program that waits, which of its streams waits there, and for which. */
typedef struct {
    const void *site;
    const char *stream, *other;
    bool peer;
    int seen, waits, red; /* seen: in the run under way */
    char example[800];    /* one that was left out, and did not show */
} LateSite;

enum { LATE_MOST_SITES = 256 };
typedef struct {
    LateSite item[LATE_MOST_SITES];
    int n;
    /* Of each place in each run: 0: all are left out in turn; else every so manyth, and none where
     * so many have shown already. */
    int every, enough;
} LateSites;

/* Runs the config of rank_run_open on the CPU and on late devices: the bits are the same in every
 * order of the streams that their events allow. Without overlap_comm no work of a compute stream
 * may come before collectives of the comm stream that were asked for earlier. With overlap_comm the
 * waits of the last step but one are left out, which the last step would show, and counted in
 * `sites` (or NULL). Returns how often a compute stream may run ahead of its comm stream. */
int late_run_both(const Folder *folder, int ranks, const char *const *sets, LateSites *sites);
/* Fails if no place was counted, or (where `all`) the waits of one never showed. */
void late_sites_check(const LateSites *sites, bool all);

#endif
