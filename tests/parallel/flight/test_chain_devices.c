/* test_chain_devices.c -- where a hang begins, and its cause, in made-up files of flight recorders
 * (rings): of ranks with asynchronous devices, which work while the host continues, and of healthy
 * runs. */
#include "tests/support/flight/planted_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define NOT_ENDED NAN
/* LATE: for how many seconds a rank has been late. WAIT: for how many seconds the others have
 * waited for it. */
static const double LATE = 20, WAIT = 18;

/* ---- devices that go on by themselves ----------------------------------------------------------
 */

/* The rank has issued a step: a product on the compute stream; on the comm stream a wait for it and
 * an all-reduce; on the compute stream a wait for that and an update. Then the host waits for the
 * whole device. product, wait, reduce: how many seconds ago the product, the comm stream's wait and
 * the all-reduce ended (NOT_ENDED: they have not). host: how many seconds ago the host began to
 * wait; NaN: it does not. */
static void issue(PlantedRing *ring, double product, double wait, double reduce, double host)
{
    planted_entry(ring, "op", "linear_forward", "compute", LATE, product);
    planted_entry(ring, "wait", "compute", "comm", LATE, wait);
    planted_collective(ring, "all-reduce", "comm", 0, 5, WAIT, reduce);
    planted_entry(ring, "wait", "comm", "compute", WAIT, NOT_ENDED);
    planted_entry(ring, "op", "adamw", "compute", WAIT, NOT_ENDED);
    if (!isnan(host)) planted_entry(ring, "wait", "device", "host", host, NOT_ENDED);
}

static void stuck_kernel(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++)
        issue(&ring[r], r == 1 ? NOT_ENDED : 17.9, r == 1 ? NOT_ENDED : 17.9, NOT_ENDED, 17);
}

/* The devices of all ranks are in the all-reduce. */
static void stuck_transfer(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++)
        issue(&ring[r], 17.9, 17.9, NOT_ENDED, 17);
}

/* The host of rank 2 has not issued the all-reduce, because its loader hangs. */
static void host_in_data(PlantedRing *ring)
{
    for (int r = 0; r < 2; r++)
        issue(&ring[r], 17.9, 17.9, NOT_ENDED, 17);
    planted_entry(&ring[2], "op", "linear_forward", "compute", LATE, 19);
    planted_entry(&ring[2], "work", "data", "host", LATE, NOT_ENDED);
}

/* The devices of ranks 0 and 2 wait in the all-reduce for the device of rank 1. Its compute stream
 * is in a product that does not end, and its copy stream waits for the other ranks in the
 * all-gather of a prefetch. */
static void stuck_beside_a_prefetch(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        planted_group(&ring[r], 1, "shard", 0, 1, 3);
        issue(&ring[r], r == 1 ? NOT_ENDED : 17.9, r == 1 ? NOT_ENDED : 17.9, NOT_ENDED, NAN);
        if (r == 1) planted_collective(&ring[r], "all-gather", "copy", 1, 8, WAIT, NOT_ENDED);
        planted_entry(&ring[r], "wait", "device", "host", 17, NOT_ENDED);
    }
}

static const PlantedCase devices[] = {
    {"kernel",
     3,
     stuck_kernel,
     {0},
     CAUSE_DEVICE,
     {1},
     1,
     "rank 1 is late: it has been in the op linear_forward",
     {"ranks 0, 2 have waited up to 18 s for the device of rank 1 in all-reduce"}},
    {"transfer",
     3,
     stuck_transfer,
     {0},
     CAUSE_DEVICE,
     {0, 1, 2},
     3,
     "ranks 0-2 are late: rank 0 has been in all-reduce of 64 f32 (group world, call 5) for 18 s, "
     "in the backward pass of micro-batch 3 of step 12. No rank is missing in this call",
     {NULL}},
    {"host",
     3,
     host_in_data,
     {0},
     CAUSE_DATA,
     {2},
     1,
     "rank 2 is late",
     {"ranks 0, 1 have waited up to 18 s for rank 2 in all-reduce"}},
    {"prefetch",
     3,
     stuck_beside_a_prefetch,
     {0},
     CAUSE_DEVICE,
     {1},
     1,
     "the op linear_forward",
     {NULL}},
};

static void test_the_cause_of_a_hang_is_found_on_asynchronous_devices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        planted_case_expect(&devices[i]);
}

/* ---- healthy runs ------------------------------------------------------------------------------
 */

/* Rank 2 computes, and the others have waited for it for 0.4 s. */
static void goes_on(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        ring[r].reason = "signal";
        planted_collective(&ring[r], "all-reduce", "compute", 0, 16, 3, 2);
        if (r < 2) planted_collective(&ring[r], "all-reduce", "compute", 0, 17, 0.4, NOT_ENDED);
    }
    planted_entry(&ring[2], "op", "linear_forward", "compute", 0.5, NOT_ENDED);
}

/* The others have waited for 15 s, but an earlier wait of 12 s has ended, so that is usual. */
static void goes_on_slowly(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        ring[r].reason = "signal";
        planted_collective(&ring[r], "all-reduce", "compute", 0, 16, 40, 28);
        if (r < 2) planted_collective(&ring[r], "all-reduce", "compute", 0, 17, 15, NOT_ENDED);
    }
    planted_entry(&ring[2], "op", "linear_forward", "compute", 15, NOT_ENDED);
}

static void hangs_for_longer(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        ring[r].reason = "signal";
        planted_collective(&ring[r], "all-reduce", "compute", 0, 16, 60, 48);
        if (r < 2) planted_collective(&ring[r], "all-reduce", "compute", 0, 17, 25, NOT_ENDED);
    }
    planted_entry(&ring[2], "op", "linear_forward", "compute", 25, NOT_ENDED);
}

static void one_rank(PlantedRing *ring)
{
    ring->reason = "signal";
    planted_entry(ring, "op", "linear_forward", "compute", 9, NOT_ENDED);
}

static void one_rank_in_data(PlantedRing *ring)
{
    ring->reason = "signal";
    planted_entry(ring, "work", "data", "host", 9, NOT_ENDED);
}

static void answers_late(PlantedRing *ring)
{
    goes_on(ring);
}

static const PlantedCase healthy[] = {
    {"goes on",
     3,
     goes_on,
     {0},
     CAUSE_NONE,
     {0},
     0,
     "no rank waits longer than usual: the longest wait has lasted 400 ms, and the longest one "
     "that has ended 1 s",
     {"ranks 0, 1 have waited up to 400 ms for rank 2"}},
    {"goes on slowly", 3, goes_on_slowly, {0}, CAUSE_NONE, {0}, 0, "no rank waits longer", {NULL}},
    {"hangs for longer",
     3,
     hangs_for_longer,
     {0},
     CAUSE_COMPUTING,
     {2},
     1,
     "rank 2 is late",
     {NULL}},
    {"one rank", 1, one_rank, {0}, CAUSE_NONE, {0}, 0, "no rank waits", {NULL}},
    {"one rank in data", 1, one_rank_in_data, {0}, CAUSE_DATA, {0}, 1, "rank 0 is late", {NULL}},
    {"no answer",
     3,
     answers_late,
     {[0] = true},
     CAUSE_STOPPED,
     {0},
     1,
     "rank 0 does not answer",
     {NULL}},
};

static void test_no_cause_is_reported_for_a_healthy_run(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof healthy / sizeof *healthy; i++)
        planted_case_expect(&healthy[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cause_of_a_hang_is_found_on_asynchronous_devices),
        cmocka_unit_test(test_no_cause_is_reported_for_a_healthy_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
