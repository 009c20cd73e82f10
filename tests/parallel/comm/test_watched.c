/* test_watched.c -- deadlines of watched groups when ranks are processes: what each rank publishes
 * reaches rank 0, which names the rank that keeps the others waiting. The groups are published by
 * the test itself. Those of NCCL are tested by test_nccl_waits.c and program/nccl_processes.sh. */
#include "model/core/check.h"
#include "parallel/comm/watched.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds; a deadline that must not be reached, and one that must. */
static const double LONG = 60, SHORT = 1;
/* UNREAD: seconds for which nobody reads the console. PRINTED: more bytes than the console
 * holds. */
static const double UNREAD = 2.5;
enum { PRINTED = 1 << 20 };

static int64_t x;

typedef struct {
    WatchedGroup watched; /* first, because describe gets a pointer to it */
    const char *name;
} Group;

static bool describe(WatchedGroup *group, int64_t number, char *text, size_t n)
{
    snprintf(text, n, "group %s, call %lld", ((const Group *)group)->name, (long long)number);
    return true;
}

/* Publishes this rank's end of a group of the ranks first to last, in which it has begun, reached
 * and finished these numbers of calls. */
static void publish(Group *g, const Comm *world, const char *name, int first, int last, int begun,
                    int reached, int finished, double timeout)
{
    *g = (Group){.name = name};
    g->watched.id = (uint64_t)name[0];
    g->watched.rank = world->rank;
    g->watched.members = (WatchedMembers){
        .size = last - first + 1, .runs = 1, .run = {{first, 1, last - first + 1}}};
    g->watched.timeout = timeout;
    g->watched.describe = describe;
    g->watched.begun = begun;
    g->watched.reached = reached;
    g->watched.finished = finished;
    watched_add(&g->watched);
}

/* For this many seconds, counts looks at the devices, as a transport does. The devices make no
 * progress. */
static void look(Group *g, double seconds)
{
    for (int i = 0; i < (int)(100 * seconds); i++) {
        atomic_fetch_add(&g[0].watched.looks, 1);
        atomic_fetch_add(&g[1].watched.looks, 1);
        usleep(10000);
    }
}

static void a_host_is_missing(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 2, world->rank == 2 ? 6 : 7, 6, 6, SHORT);
    look(g, LONG);
}

static void one_is_not_connected(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    if (world->rank != 1) publish(&g[0], world, "dp", 0, 2, 1, 1, 0, SHORT);
    look(g, LONG);
}

static void a_device_is_missing(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 2, 9, world->rank == 1 ? 6 : 7, 6, SHORT);
    look(g, LONG);
}

static void nothing_is_missing(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 2, 7 + world->rank, 7, 6, SHORT);
    look(g, LONG);
}

/* Rank 0 waits in group low for rank 1, which waits in group high for rank 2. */
static void chain(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    if (world->rank < 2) publish(&g[0], world, "low", 0, 1, world->rank == 0, 1, 0, SHORT);
    if (world->rank > 0) publish(&g[1], world, "high", 1, 2, world->rank == 1, 1, 0, LONG);
    look(g, LONG);
}

/* All ranks have reached the call, but then rank 1's process is stopped. */
static void one_is_stopped(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 2, 7, 7, 6, SHORT);
    comm_barrier(world);
    look(g, 0.1);
    if (world->rank == 1) raise(SIGSTOP);
    look(g, LONG);
}

static void rank_0_is_stopped(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 2, world->rank == 0 ? 6 : 7, 7, 6, SHORT);
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    look(g, LONG);
}

/* Rank 0's host waits for rank 1, which is in a call of a watched group. That call's deadline is
 * later than the deadline of the host's wait, but its message names the cause. */
static void a_host_waits_for_one_in_a_call(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    if (world->rank > 0) publish(&g[0], world, "dp", 1, 2, world->rank == 1, 1, 0, 4 * SHORT);
    if (world->rank == 0) comm_barrier(world);
    look(g, LONG);
}

/* Rank 0's device waits for the host of rank 1, which waits for the host of rank 2, which is in a
 * call of a watched group if `calls`. */
static void a_device_waits_for_a_host(Comm *world, bool calls)
{
    Group g[2] = {0};
    Comm pair = comm_split(world, "pair", world->rank == 1 || world->rank == 2, 0);
    if (world->rank < 2) publish(&g[0], world, "low", 0, 1, world->rank == 0, 1, 0, SHORT);
    if (calls && world->rank > 1) publish(&g[1], world, "high", 2, 3, world->rank == 2, 1, 0, LONG);
    if (world->rank == 1) comm_barrier(&pair);
    look(g, LONG);
}

static void device_host(Comm *world, void *context)
{
    (void)context;
    a_device_waits_for_a_host(world, false);
}

static void device_host_device(Comm *world, void *context)
{
    (void)context;
    a_device_waits_for_a_host(world, true);
}

/* Rank 0's host waits for rank 1, whose call of a watched group has no limit. */
static void host_device(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    if (world->rank > 0) publish(&g[0], world, "dp", 1, 2, world->rank == 1, 1, 0, 0);
    if (world->rank == 0) comm_receive(world, NULL, tensor_1d(&x, I64, 1), 1);
    look(g, LONG);
}

/* Rank 0's device waits for the host of rank 1, which waits for the host of rank 0. The host of
 * rank 0 does something else. */
static void back_to_the_first(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    publish(&g[0], world, "dp", 0, 1, world->rank == 0, 1, 0, SHORT);
    if (world->rank == 1) comm_barrier(world);
    look(g, LONG);
}

static const RankEnd ends[] = {
    {"a host",
     a_host_is_missing,
     3,
     EXIT_HANG,
     {"error[86] ", "group dp, call 6: rank ",
      " has waited 1 s (parallel.timeout) for rank 2, which has not arrived\n"}},
    {"not connected",
     one_is_not_connected,
     3,
     EXIT_HANG,
     {"group dp, call 0: rank ", "for rank 1, which has not arrived\n"}},
    {"a device",
     a_device_is_missing,
     3,
     EXIT_HANG,
     {"group dp, call 6: rank ",
      "; all its ranks have called it, but the GPU of rank 1 has not come to it\n"}},
    {"nothing",
     nothing_is_missing,
     3,
     EXIT_HANG,
     {"group dp, call 6: rank ",
      "; ranks 0-2 and their GPUs have all come to it, and it does not end; run with "}},
    {"chain",
     chain,
     3,
     EXIT_HANG,
     {"error[86] group low, call 0: rank 0 has waited 1 s (parallel.timeout) for rank 1, "
      "which has not arrived; rank 1 waits for rank 2 (group high, call 0)\n"}},
    {"stopped",
     one_is_stopped,
     3,
     EXIT_HANG,
     {"group dp, call 6: rank ", "for rank 1, which has not arrived\n"}},
    {"device, host",
     device_host,
     3,
     EXIT_HANG,
     {"error[86] group low, call 0: rank 0 has waited 1 s (parallel.timeout) for rank 1, which "
      "has not arrived; rank 1 waits for rank 2 (group pair, call 1, barrier)\n"}},
    {"device, host, device",
     device_host_device,
     4,
     EXIT_HANG,
     {"error[86] group low, call 0: rank 0 has waited 1 s (parallel.timeout) for rank 1, which "
      "has not arrived; rank 2 waits for rank 3 (group high, call 0)\n"}},
    {"back to the first",
     back_to_the_first,
     2,
     EXIT_HANG,
     {"error[86] group dp, call 0: rank 0 has waited 1 s (parallel.timeout) for rank 1, which "
      "has not arrived; rank 1 waits for rank 0 (group world, call 1, barrier)\n"}},
    {"rank 0 stopped",
     rank_0_is_stopped,
     3,
     EXIT_HANG,
     {"error[86] rank 1 dp 1: group dp, call 6: rank 1 has waited 1 s (parallel.timeout) for "
      "rank "
      "0, which has not arrived\n"}},
};
enum { ENDS = sizeof ends / sizeof *ends };

static void test_rank_0_ends_the_program_and_names_the_rank_that_others_wait_for(void **state)
{
    pid_t child[ENDS];
    int said[ENDS];
    const RankEnd held = {"held",
                          a_host_waits_for_one_in_a_call,
                          3,
                          EXIT_HANG,
                          {"error[86] rank 1 dp 1: group dp, call 0: rank 1 has waited 4 s",
                           "for rank 2, which has not arrived\n"}};
    const RankEnd other = {
        "host, device",
        host_device,
        3,
        EXIT_HANG,
        {"error[86] group world, call 1, receive of 1 i64 in host memory from rank "
         "1: rank 0 has waited 1 s (parallel.timeout) for rank 1, which has not "
         "arrived; rank 1 waits for rank 2 (group dp, call 0)\n"}};
    (void)state;
    for (int i = 0; i < ENDS; i++)
        child[i] = rank_end_start(&ends[i], LONG, NULL, &said[i]);
    rank_end_expect(&held, SHORT, NULL);
    rank_end_expect(&other, SHORT, NULL);
    for (int i = 0; i < ENDS; i++)
        rank_end_check(&ends[i], child[i], said[i]);
}

/* ---- no end ---------------------------------------------------------------------------------- */

/* A call without a limit; calls that end one after the other; and a group that is closed during a
 * call. */
static void none_is_late(Comm *world, void *context)
{
    Group g[2] = {0}, closed[2] = {0};
    (void)context;
    publish(&g[0], world, "without a limit", 0, 1, 1, 1, 0, 0);
    publish(&g[1], world, "progress", 0, 1, 9, 1, 0, SHORT);
    publish(&closed[0], world, "closed", 0, 1, world->rank, 1, 0, SHORT);
    for (int i = 1; i < 9; i++) {
        look(g, SHORT / 4);
        atomic_store(&g[1].watched.finished, i);
        if (i == 2) watched_remove(&closed[0].watched);
    }
    watched_remove(&g[0].watched);
    watched_remove(&g[1].watched);
}

static void test_calls_without_a_limit_or_with_progress_do_not_end_the_program(void **state)
{
    (void)state;
    thread_ranks(2, LONG, none_is_late, NULL);
}

/* Rank 1 is in a call that rank 0 makes only when somebody reads what it prints, and in one that
 * rank 2 makes only when rank 0's host has arrived. */
static void rank_0_prints(Comm *world, void *context)
{
    Group g[2] = {0};
    (void)context;
    if (world->rank < 2) publish(&g[0], world, "dp", 0, 1, world->rank, 1, 0, SHORT);
    if (world->rank > 0) publish(&g[1], world, "tp", 1, 2, world->rank == 1, 1, 0, SHORT);
    for (int i = 0; world->rank == 0 && i < PRINTED / 64; i++)
        printf("%063d\n", i);
    fflush(stdout);
    if (world->rank == 1) look(g, UNREAD);
    comm_barrier(world);
    if (world->rank < 2) watched_remove(&g[0].watched);
    if (world->rank > 0) watched_remove(&g[1].watched);
}

static void test_waiting_time_does_not_count_while_rank_0s_console_is_blocked(void **state)
{
    const RankEnd end = {"console", rank_0_prints, 3, 0, {"\n0"}};
    int said;
    (void)state;
    pid_t child = rank_end_start(&end, LONG, NULL, &said);
    usleep((useconds_t)(1.2e6 * UNREAD));
    rank_end_check(&end, child, said);
}

/* Three hosts wait at the same meeting for rank 0, which prints, for longer than their timeout. */
static void hosts_wait_for_rank_0_which_prints(Comm *world, void *context)
{
    (void)context;
    for (int i = 0; world->rank == 0 && i < PRINTED / 64; i++)
        printf("%063d\n", i);
    fflush(stdout);
    comm_barrier(world);
}

static void test_hosts_may_exceed_the_timeout_while_the_console_of_rank_0_is_blocked(void **state)
{
    const RankEnd end = {"console, hosts", hosts_wait_for_rank_0_which_prints, 4, 0, {"\n0"}};
    int said;
    (void)state;
    pid_t child = rank_end_start(&end, SHORT, NULL, &said);
    usleep((useconds_t)(1.2e6 * UNREAD));
    rank_end_check(&end, child, said);
}

/* ---- one process ----------------------------------------------------------------------------- */

/* Without looks at the device it is not known whether the call has ended. */
static void test_a_call_may_take_30_s_longer_while_its_transport_is_stuck(void **state)
{
    Group g;
    const Comm world = {.rank = 0};
    (void)state;
    publish(&g, &world, "dp", 0, 1, 1, 1, 0, 2);
    assert_null(watched_pass(1));
    assert_null(watched_pass(31.5));
    assert_ptr_equal(watched_pass(1), &g.watched);
    g.watched.looks++;
    assert_ptr_equal(watched_pass(0), &g.watched); /* the transport has looked again, and the call
                                                    * has not ended */
    g.watched.finished++;
    assert_null(watched_pass(0));
    g.watched.begun++;
    g.watched.looks++;
    assert_null(watched_pass(1));
    g.watched.looks++;
    assert_null(watched_pass(1.5));
    g.watched.looks++;
    assert_ptr_equal(watched_pass(0.6), &g.watched);
    assert_true(watched_pace(1) == 2.0 / 16);
    watched_remove(&g.watched);
    assert_null(watched_pass(60));
    assert_true(watched_pace(1) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_0_ends_the_program_and_names_the_rank_that_others_wait_for),
        cmocka_unit_test(test_calls_without_a_limit_or_with_progress_do_not_end_the_program),
        cmocka_unit_test(test_waiting_time_does_not_count_while_rank_0s_console_is_blocked),
        cmocka_unit_test(test_hosts_may_exceed_the_timeout_while_the_console_of_rank_0_is_blocked),
        cmocka_unit_test(test_a_call_may_take_30_s_longer_while_its_transport_is_stuck),
    };
    setenv("TEST_RANKS", "processes", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
