/* test_nccl_errors.c -- how the program ends when the watchdog finds an error: an asynchronous
 * error of a communicator, which no call returns, or an error of a device. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/device/standing_device.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds; a deadline that must not be reached, and one that must. */
static const double LONG = 60, SHORT = 0.4;

/* ---- errors that no call returns ------------------------------------------------------------- */

/* *context: whether the watchdog has already queried how far the device has got. */
static void lose_a_peer(Comm *world, void *context)
{
    Device dev;
    const bool *looked = context;
    standing_device_open(world, &dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){0}, LONG);
    if (*looked) standing_device_stand(world, 3);
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_SUM);
    comm_barrier(world);
    atomic_store(&fake_nccl.async, NCCL_REMOTE_ERROR);
    standing_device_hang();
}

static void test_an_asynchronous_nccl_error_ends_all_ranks(void **state)
{
    (void)state;
    fake_nccl_use();
    for (int i = 0; i < 2; i++) {
        bool looked = i;
        rank_end_expect(
            &(RankEnd){looked ? "async" : "async, early",
                       lose_a_peer,
                       2,
                       EXIT_PEER_LOST,
                       {"group dp, call 6, all-reduce of 5 f32 of ranks 0, 1: NCCL on rank ",
                        "remote process exited"}},
            LONG, &looked);
    }
}

/* ---- errors of a device ---------------------------------------------------------------------- */

/* The device of rank 0 or rank 1 is stuck, and the watchdog's queries of rank 1's device fail. */
static const Backend *sound;
static Backend broken;
static atomic_bool breaks;

static bool broken_event_reached(Device *device, Event *event)
{
    if (device->index == 1 && atomic_load(&breaks)) (fail)(EXIT_SYSTEM, "the GPU has an error");
    return sound->event_reached(device, event);
}

static void device_breaks(Comm *world, int stands)
{
    Device dev;
    log_set_rank(world->rank, world->rank == 1 ? "dp 1" : "dp 0");
    standing_device_open(world, &dev);
    if (world->rank == 0) {
        sound = dev.backend;
        broken = *sound;
        broken.event_reached = broken_event_reached;
    }
    comm_barrier(world);
    dev.backend = &broken;
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){0}, SHORT);
    standing_device_stand(world, 1 << stands);
    comm_broadcast(&all, &dev, standing_device_numbers(7), 1);
    standing_device_stand(world, 0); /* the call has ended on the other device */
    atomic_store(&breaks, true);
    standing_device_hang();
}

static void device_breaks_at_its_call(Comm *world, void *context)
{
    (void)context;
    device_breaks(world, 1);
}

static void device_breaks_when_asked_for(Comm *world, void *context)
{
    (void)context;
    device_breaks(world, 0);
}

static const RankEnd breaking[] = {
    {"a broken device",
     device_breaks_at_its_call,
     2,
     EXIT_SYSTEM,
     {"error[71] rank 1 dp 1: the GPU has an error"}},
    {"a peer's broken device",
     device_breaks_when_asked_for,
     2,
     EXIT_SYSTEM,
     {"error[71] rank 1 dp 1: the GPU has an error"}},
};

static void test_a_device_error_is_reported_with_the_rank_of_the_device(void **state)
{
    (void)state;
    fake_nccl_use();
    for (size_t i = 0; i < sizeof breaking / sizeof *breaking; i++)
        rank_end_expect(&breaking[i], LONG, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_asynchronous_nccl_error_ends_all_ranks),
        cmocka_unit_test(test_a_device_error_is_reported_with_the_rank_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
