/* test_late_offload.c -- training with the optimizer's states on the host on "late devices"
 * (tests/support/device/late_device.h), which delay all work until somebody waits for it. The
 * results must have the same bits as on the CPU in every order that the events allow. Each wait of
 * the update stream, and each wait of another stream for the update stream, must matter: without it
 * the results change. */
#include "tests/support/device/late_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ZERO "zero_optimization."

/* The cases differ in what waits for an update. On a single rank and at ZeRO stage 0 it is the
 * compute stream. Otherwise it is the gather of a unit, which is stored whole or sharded, and alone
 * in its bucket or not. */
enum { SETS = 5 };
static const struct {
    int ranks;
    const char *sets[SETS];
} cases[] = {
    {1, {ZERO "stage=0", ZERO "overlap_comm=true"}},
    {2, {ZERO "stage=0", ZERO "overlap_comm=true"}},
    {2, {ZERO "stage=1", ZERO "overlap_comm=true", ZERO "allgather_bucket_size=1"}},
    {2, {ZERO "stage=2", ZERO "overlap_comm=true", ZERO "offload_optimizer.ratio=0.5"}},
    {2,
     {ZERO "stage=3", ZERO "overlap_comm=true", ZERO "stage3_param_persistence_threshold=200",
      ZERO "stage3_max_reuse_distance=0"}},
    {3, {ZERO "stage=1", ZERO "overlap_comm=true", "bf16.enabled=true"}},
    {2, {ZERO "stage=2", ZERO "overlap_comm=false"}},
};
enum { CASES = sizeof cases / sizeof *cases };

static bool is_of_updates(const LateSite *site)
{
    return strcmp(site->stream, "update") == 0 || strcmp(site->other, "update") == 0;
}

static void test_bug_31_the_step_waits_for_late_updates_of_offloaded_states(void **state)
{
    static LateSites sites;
    int by = getenv("TEST_SAMPLE") ? 3 : 1, found = 0;
    for (int i = 0; i < CASES; i += by) {
        const char *sets[SETS + 3] = {ZERO "offload_optimizer.device=cpu"};
        memcpy(sets + 1, cases[i].sets, sizeof cases[i].sets);
        late_run_both(*state, cases[i].ranks, sets, &sites);
    }
    for (int i = 0; i < sites.n; i++) {
        const LateSite *site = &sites.item[i];
        if (!is_of_updates(site)) continue;
        found++;
        if (by == 1 && site->red == 0)
            fail_msg("%s waits for %s %d times, and none shows; one is %s", site->stream,
                     site->other, site->waits, site->example);
    }
    /* The update waits for the decision; the compute stream and the gathers wait for updates. */
    assert_int_equal(found, by == 1 ? 3 : found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_31_the_step_waits_for_late_updates_of_offloaded_states),
    };
    return cmocka_run_group_tests_name("late offload", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
