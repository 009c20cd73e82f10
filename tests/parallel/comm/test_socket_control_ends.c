/* test_socket_control_ends.c -- worlds of so many machines that control packets travel over a tree:
 * the program must end as with a star. Cases that exist only with a tree are in
 * test_socket_control_faults.c. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/grid/control_tree.h"
#include "tests/support/grid/failing_ranks.h"
#include "tests/support/grid/process_ends.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const double TIMEOUT = 1; /* seconds */

/* ---- ends ------------------------------------------------------------------------------------ */

/* When all ranks use the tree, the ranks of the bit set `which` send themselves the signal
 * `number`, and the others wait for them. */
static void signal_to_ranks(Comm *world, unsigned which, int number)
{
    control_tree_wait(world);
    comm_barrier(world);
    if (which >> world->rank & 1) raise(number);
    comm_barrier(world);
}

static void a_leaf_is_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 6, SIGKILL);
}

static void an_interior_is_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 1, SIGKILL);
}

static void a_second_rank_is_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 11, SIGKILL);
}

static void the_first_is_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 0, SIGKILL);
}

static void two_are_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 1 | 1u << 3, SIGKILL);
}

static void two_others_are_killed(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 2 | 1u << 4, SIGKILL);
}

static void a_leaf_is_stopped(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 6, SIGSTOP);
}

static void an_interior_is_stopped(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 2, SIGSTOP);
}

static void the_first_is_stopped(Comm *world, void *context)
{
    (void)context;
    signal_to_ranks(world, 1u << 0, SIGSTOP);
}

/* Rank `which` stops itself, and no rank waits for it. */
static void stopped_while_all_compute(Comm *world, int which)
{
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == which) raise(SIGSTOP);
    pause();
}

static void a_leaf_is_stopped_while_all_compute(Comm *world, void *context)
{
    (void)context;
    stopped_while_all_compute(world, 5);
}

static void an_interior_is_stopped_while_all_compute(Comm *world, void *context)
{
    (void)context;
    stopped_while_all_compute(world, 1);
}

/* Rank 4 never arrives. */
static void a_leaf_hangs(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 4) pause();
    comm_barrier(world);
}

static void fails(Comm *world, int which)
{
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == which) (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
    if (world->rank % 2) pause();
    comm_barrier(world);
}

static void a_leaf_fails(Comm *world, void *context)
{
    (void)context;
    fails(world, 6);
}

static void an_interior_fails(Comm *world, void *context)
{
    (void)context;
    fails(world, 2);
}

static void the_first_fails(Comm *world, void *context)
{
    (void)context;
    fails(world, 0);
}

/* Rank 6 fails when all other ranks have left. */
static void a_leaf_fails_after_all_have_left(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank != 6) return;
    usleep(400000);
    (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
}

static void a_leaf_is_killed_after_all_have_left(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank != 6) return;
    usleep(400000);
    raise(SIGKILL);
}

static void a_leaf_is_stopped_after_all_have_left(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 6) raise(SIGSTOP);
}

static void leave_one_by_one(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    usleep((useconds_t)(400000 * world->rank));
}

/* All computations take longer than the timeout, and nobody is silent. */
static void all_compute(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    usleep(3500000);
    comm_barrier(world);
}

static void others_never_leave(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank > 0) pause();
}

/* Sends bytes on the connection that leads to rank 0. */
static void send_up(Comm *world, const void *bytes, size_t n)
{
    const SocketWorld *w = socket_group(world)->world;
    int fd = w->links->star[1][world->rank];
    if (fd < 0) fd = w->service.relay.parent.fd;
    if (send(fd, bytes, n, 0) != (ssize_t)n) _exit(1);
}

static void sends(Comm *world, SocketPacketHead head, size_t n)
{
    SocketPacket packet = {.head = head};
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == 6) send_up(world, &packet, n);
    pause();
}

static void a_leaf_sends_garbage(Comm *world, void *context)
{
    (void)context;
    sends(world, (SocketPacketHead){1u << 30, PACKET_REPORT, 6}, sizeof(SocketPacketHead));
}

static void a_leaf_sends_nonsense(Comm *world, void *context)
{
    (void)context;
    sends(world, (SocketPacketHead){sizeof(SocketWord), PACKET_VERDICT, 6}, sizeof(SocketWord));
}

static void a_leaf_speaks_for_another(Comm *world, void *context)
{
    (void)context;
    sends(world, (SocketPacketHead){sizeof(SocketWord), PACKET_ALIVE, 5}, sizeof(SocketWord));
}

static const char rank_0_lost[] =
    "error[87] the process of this rank on host0 has ended, or the network to it is broken\n";
static const char full[] = "the disk is full\n";

static const struct {
    ProcessEnd end;
    int errors;
} ends[] = {
    {{"leaf killed", a_leaf_is_killed, RANKS, 0, 87, {SAYS_LOST(6)}}, 1},
    {{"interior killed", an_interior_is_killed, RANKS, 0, 87, {SAYS_LOST(1)}}, 1},
    {{"interior of two ranks killed", an_interior_is_killed, MORE, 0, 87, {SAYS_LOST(1)}}, 1},
    {{"second rank of a machine killed",
      a_second_rank_is_killed,
      MORE,
      0,
      87,
      {"error[87] rank 11 dp 11: the process of this rank on host4 has ended"}},
     1},
    {{"rank 0 killed", the_first_is_killed, RANKS, 0, 87, {rank_0_lost}}, 6},
    {{"rank 0 of two killed", the_first_is_killed, MORE, 0, 87, {rank_0_lost}}, 7},
    {{"interior and leaf killed", two_are_killed, RANKS, 0, 87, {"error[87] rank "}}, 1},
    {{"interior and another leaf killed", two_others_are_killed, RANKS, 0, 87, {"error[87] rank "}},
     1},
    {{"leaf stopped", a_leaf_is_stopped, RANKS, TIMEOUT, 86, {SAYS_SILENT(6)}}, 1},
    {{"interior stopped", an_interior_is_stopped, RANKS, TIMEOUT, 86, {SAYS_SILENT(2)}}, 1},
    {{"interior of two ranks stopped", an_interior_is_stopped, MORE, TIMEOUT, 86, {SAYS_SILENT(2)}},
     1},
    {{"rank 0 stopped",
      the_first_is_stopped,
      RANKS,
      TIMEOUT,
      86,
      {SAYS_WAITED(1), SAYS_WAITED(4), SAYS_WAITED(6)}},
     6},
    {{"leaf stopped while all compute",
      a_leaf_is_stopped_while_all_compute,
      RANKS,
      TIMEOUT,
      86,
      {SAYS_SILENT(5)}},
     1},
    {{"interior stopped while all compute",
      an_interior_is_stopped_while_all_compute,
      RANKS,
      TIMEOUT,
      86,
      {SAYS_SILENT(1)}},
     1},
    {{"leaf hangs",
      a_leaf_hangs,
      RANKS,
      TIMEOUT,
      86,
      {" has waited 1 s (parallel.timeout) for rank 4 (on host4), which has not arrived\n"}},
     1},
    {{"leaf fails", a_leaf_fails, RANKS, 0, 74, {"error[74] rank 6 dp 6: ", full}}, 1},
    {{"interior fails", an_interior_fails, RANKS, 0, 74, {"error[74] rank 2 dp 2: ", full}}, 1},
    {{"rank 0 fails", the_first_fails, RANKS, 0, 74, {"error[74] ", full}}, 1},
    {{"all fail", all_fail, RANKS, 0, EXIT_DIVERGED, {"a failure of every rank\n"}}, 1},
    {{"leaf fails after all have left",
      a_leaf_fails_after_all_have_left,
      RANKS,
      0,
      74,
      {"error[74] rank 6 dp 6: ", full}},
     1},
    {{"leaf killed after all have left",
      a_leaf_is_killed_after_all_have_left,
      RANKS,
      0,
      87,
      {SAYS_LOST(6)}},
     1},
    {{"leaf stopped after all have left",
      a_leaf_is_stopped_after_all_have_left,
      RANKS,
      TIMEOUT,
      86,
      {"rank 6"}},
     1},
    {{"one by one", leave_one_by_one, RANKS, TIMEOUT, 0, {NULL}}, 0},
    {{"a long computation", all_compute, MORE, TIMEOUT, 0, {NULL}}, 0},
    {{"others never leave",
      others_never_leave,
      RANKS,
      TIMEOUT,
      86,
      {"error[86] end of the program: rank 0 has waited 1 s (parallel.timeout) for ranks 1-6 (on "
       "host1, host2, host3 and others), which have not arrived\n"}},
     1},
    {{"garbage", a_leaf_sends_garbage, RANKS, 0, 87, {SAYS_LOST(6)}}, 1},
    {{"nonsense", a_leaf_sends_nonsense, RANKS, 0, 87, {SAYS_LOST(6)}}, 1},
    {{"another's", a_leaf_speaks_for_another, RANKS, 0, 87, {SAYS_LOST(6)}}, 1},
};

/* Returns how many seconds after the timeout the program must have ended. A rank counts as silent
 * at most 1.5 s after the timeout. Without a launcher the test kills a stopped rank 0.6 s later,
 * and the ranks below it end another 0.3 s later. */
static double more_of(const ProcessEnd *end)
{
    if (end->code == 0) return 3;
    return end->code == EXIT_HANG ? 1.5 + 0.6 + 0.3 : 0.5;
}

static void expect_ends(int fan_out, int every)
{
    int n = (int)(sizeof ends / sizeof *ends);
    const char *only = getenv("TEST_END");
    process_links_choose(LINKS_IPV4);
    process_machines_choose(MACHINES);
    socket_hub_set_last_wait(TIMEOUT);
    socket_tree_set_fan_out(fan_out);
    for (int i = 0; i < n; i += every)
        if (only == NULL || strcmp(only, ends[i].end.name) == 0)
            process_expect_errors(&ends[i].end, more_of(&ends[i].end), ends[i].errors);
    socket_tree_set_fan_out(0);
}

static void test_faults_end_the_program_if_control_packets_use_a_tree(void **state)
{
    (void)state;
    expect_ends(FAN_OUT, getenv("TEST_SAMPLE") ? 2 : 1);
}

static void test_faults_end_the_program_in_the_same_way_with_a_star(void **state)
{
    (void)state;
    expect_ends(0, getenv("TEST_SAMPLE") ? 4 : 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_end_the_program_if_control_packets_use_a_tree),
        cmocka_unit_test(test_faults_end_the_program_in_the_same_way_with_a_star),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
