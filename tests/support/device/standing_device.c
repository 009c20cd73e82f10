/* standing_device.c -- devices that stall in an NCCL call: a backend whose events are complete only
 * up to a limit. */
#include "tests/support/device/standing_device.h"

#include "model/core/check.h"
#include "parallel/comm/nccl/group.h"
#include "tests/support/grid/fake_nccl.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

/* State of each rank's device. Events are numbered as they are recorded; those from number `most`
 * on are never reached. A communicator uses two events for each call that it remembers. */
enum {
    MOST_RANKS = 4,
    MOST_COMMS = 4,
    MOST_MARKS = MOST_COMMS * 2 * NCCL_RING,
    NO_LIMIT = 1 << 30
};
static struct {
    atomic_int marks, most, events;
    atomic_int mark_of[MOST_MARKS]; /* by event: its number when it was last recorded */
} line[MOST_RANKS];
static Backend slow;
static atomic_bool silent;

static void slow_event_record(Device *device, Event *event, Stream stream)
{
    int rank = device->index;
    (void)stream;
    if (event->impl == NULL) {
        int made = atomic_fetch_add(&line[rank].events, 1);
        CHECK(made < MOST_MARKS, "more than %d communicators on a standing device", MOST_COMMS);
        event->impl = &line[rank].mark_of[made];
    }
    atomic_store((atomic_int *)event->impl, atomic_fetch_add(&line[rank].marks, 1));
}

static bool slow_event_reached(Device *device, Event *event)
{
    while (atomic_load(&silent))
        sched_yield();
    return atomic_load((atomic_int *)event->impl) < atomic_load(&line[device->index].most);
}

void standing_device_open(Comm *world, Device *dev)
{
    char err[512] = "";
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .blas = BLAS_BUILTIN};
    if (!nccl_open(err, sizeof err) || !device_open(dev, "cpu", &options, err, sizeof err))
        _exit(error_print(EXIT_UNAVAILABLE, "%s", err));
    if (world->rank == 0) {
        slow = *dev->backend;
        slow.event_record = slow_event_record;
        slow.event_reached = slow_event_reached;
    }
    comm_barrier(world);
    atomic_store(&line[world->rank].events, 0);
    atomic_store(&line[world->rank].most, NO_LIMIT);
    dev->backend = &slow;
    dev->index = world->rank;
}

void standing_device_stand(Comm *world, int ranks)
{
    standing_device_stand_after(world, ranks, 0);
}

void standing_device_stand_after(Comm *world, int ranks, int calls)
{
    comm_barrier(world);
    if (world->rank == 0) {
        int communicators = fake_nccl_open(), before = atomic_load(&fake_nccl.asked);
        while (atomic_load(&fake_nccl.asked) < before + 2 * communicators)
            sched_yield();
        fake_nccl.detached = true;
        for (int r = 0; r < world->size; r++)
            if (ranks >> r & 1 && atomic_load(&line[r].most) == NO_LIMIT)
                atomic_store(&line[r].most, atomic_load(&line[r].marks) + 2 * calls + 1);
    }
    comm_barrier(world);
}

void standing_device_silence(bool on)
{
    atomic_store(&silent, on);
}

Tensor standing_device_numbers(int64_t n)
{
    static _Thread_local float x[64];
    return tensor_1d(x, F32, n);
}

void standing_device_hang(void)
{
    for (;;)
        pause();
}
