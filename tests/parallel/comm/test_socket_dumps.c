/* test_socket_dumps.c -- if any process gets a request for a dump of the flight recorders
 * (dumps.h), all ranks write one, however they are connected. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "parallel/comm/socket/tree.h"
#include "tests/support/grid/control_tree.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* [ranks] number of the newest dump that each rank has written, and how many it has written. */
static struct {
    _Atomic int64_t newest, dumps;
} * shared;

static void note_dump(void *context, Dump dump)
{
    const int *rank = context;
    atomic_store(&shared[*rank].newest, dump.number);
    atomic_fetch_add(&shared[*rank].dumps, 1);
}

static int miss_none(void *context, Dump dump)
{
    (void)context, (void)dump;
    return 0;
}

static void say_nothing(void *context, Dump dump)
{
    (void)context, (void)dump;
}

static void hold_signal(int rank)
{
    (void)rank;
    dumps_hold_signal();
}

/* Waits until this rank has written the dump, for ten seconds at most. Returns whether it is the
 * newest one. */
static bool has_written(int rank, int64_t number)
{
    double end = seconds_now() + 10;
    while (atomic_load(&shared[rank].newest) < number && seconds_now() < end)
        usleep(1000);
    return atomic_load(&shared[rank].newest) == number;
}

/* Each rank in turn gets the signal that requests a dump, then all get it at once. The requests
 * that come at once are for one dump or for a few, depending on how they overlap. */
static void dump_in_turn(Comm *world, void *context)
{
    int rank = world->rank;
    DumpWriter writer = {
        .context = &rank, .write = note_dump, .missing = miss_none, .say = say_nothing};
    (void)context;
    control_tree_wait(world);
    if (dumps_open(&writer) != 0) rank_wrong(world, "no thread");
    comm_barrier(world);
    for (int turn = 0; turn < world->size; turn++) {
        if (turn == rank) kill(getpid(), SIGUSR2);
        if (!has_written(rank, turn + 1))
            rank_wrong(world, "rank %d has not written dump %d, but %d", rank, turn + 1,
                       (int)shared[rank].newest);
        comm_barrier(world);
    }
    if (shared[rank].dumps != world->size)
        rank_wrong(world, "rank %d has written %d dumps", rank, (int)shared[rank].dumps);
    comm_barrier(world);
    kill(getpid(), SIGUSR2);
    usleep(500000);
    comm_barrier(world);
    for (int r = 0; r < world->size; r++)
        if (shared[r].newest != shared[0].newest || shared[r].newest <= world->size)
            rank_wrong(world, "rank %d has written dump %d, and rank 0 dump %d", r,
                       (int)shared[r].newest, (int)shared[0].newest);
    comm_barrier(world);
    dumps_close();
}

static void expect_dumps(int ranks)
{
    char wrong[512];
    for (int r = 0; r < ranks; r++) {
        atomic_store(&shared[r].newest, 0);
        atomic_store(&shared[r].dumps, 0);
    }
    process_before_choose(hold_signal);
    int code = process_ranks(ranks, 30, dump_in_turn, NULL, wrong, sizeof wrong);
    process_before_choose(NULL);
    if (code != 0 || wrong[0]) fail_msg("%d ranks: %d: %s", ranks, code, wrong);
}

static void test_a_signal_to_any_process_makes_every_rank_write_its_flight_record(void **state)
{
    (void)state;
    process_links_choose(LINKS_LOCAL);
    expect_dumps(4);
    process_links_choose(LINKS_IPV4);
    expect_dumps(3);
}

static void test_orders_and_requests_for_dumps_travel_over_a_tree(void **state)
{
    (void)state;
    process_links_choose(LINKS_IPV4);
    process_machines_choose(MACHINES);
    socket_tree_set_fan_out(FAN_OUT);
    expect_dumps(MORE);
    socket_tree_set_fan_out(0);
    process_machines_choose(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_to_any_process_makes_every_rank_write_its_flight_record),
        cmocka_unit_test(test_orders_and_requests_for_dumps_travel_over_a_tree),
    };
    shared = shared_memory(MORE * sizeof *shared);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
