/* test_socket_joined_ends.c -- ranks that have joined over TCP, without a launcher: which rank
 * prints that a rank is lost, silent or cut off. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/grid/failing_ranks.h"
#include "tests/support/grid/process_ends.h"
#include "tests/support/sleeping_threads.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const double TIMEOUT = 1; /* seconds */

/* ---- ends ------------------------------------------------------------------------------------ */

static void one_exits(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 2) _exit(EXIT_PEER_LOST);
    comm_barrier(world);
}

/* Rank 1 fails and asks for permission to print its error. Rank 0 is killed before it answers. */
static void one_fails_while_rank_0_is_killed(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    process_wait_until_stopped(process_of_rank(0)); /* so that it cannot answer */
    if (fork() == 0) {
        usleep(100000);
        kill(process_of_rank(0), SIGKILL);
        _exit(0);
    }
    (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
}

/* Rank 1 has left when rank 2 fails. */
static void one_fails_after_another_has_left(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank != 2) return;
    usleep(300000);
    (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
}

/* Rank 1 sends something that is no packet. */
static void one_sends_garbage(Comm *world, void *context)
{
    const SocketPacketHead head = {.bytes = 1u << 30, .kind = PACKET_REPORT};
    (void)context;
    comm_barrier(world);
    int fd = socket_group(world)->world->links->star[1][world->rank];
    if (world->rank == 1 && send(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) _exit(1);
    pause();
}

/* Rank 1 sends a packet that no rank can send: a report about a group of no ranks. */
static void one_sends_nonsense(Comm *world, void *context)
{
    SocketGroupReport group = {.head = {.kind = PACKET_GROUP, .rank = 1}, .id = 9};
    (void)context;
    comm_barrier(world);
    group.head.bytes = (uint32_t)socket_group_report_bytes(&group);
    int fd = socket_group(world)->world->links->star[1][world->rank];
    if (world->rank == 1 && send(fd, &group, group.head.bytes, 0) != (ssize_t)group.head.bytes)
        _exit(1);
    pause();
}

/* Rank 1 reports as if it were rank 2. */
static void one_sends_as_another(Comm *world, void *context)
{
    SocketReport report = {.head = {.kind = PACKET_REPORT, .rank = 2}};
    (void)context;
    comm_barrier(world);
    report.head.bytes = (uint32_t)socket_report_bytes(&report);
    int fd = socket_group(world)->world->links->star[1][world->rank];
    if (world->rank == 1 && send(fd, &report, report.head.bytes, 0) != (ssize_t)report.head.bytes)
        _exit(1);
    pause();
}

/* Rank 1 ends in the middle of a packet. */
static void one_sends_half_a_packet(Comm *world, void *context)
{
    const SocketPacketHead head = {.bytes = sizeof(SocketWord), .kind = PACKET_CLAIM};
    (void)context;
    comm_barrier(world);
    int fd = socket_group(world)->world->links->star[1][world->rank];
    if (world->rank == 1) {
        kill(getpid(), send(fd, &head, sizeof head, 0) == (ssize_t)sizeof head ? SIGKILL : SIGABRT);
    }
    pause();
}

/* ---- silence --------------------------------------------------------------------------------- */

static void one_is_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 2) raise(SIGSTOP);
    comm_barrier(world);
}

/* Rank 2 is stopped, and no rank waits for it. */
static void one_is_stopped_while_all_compute(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 2) raise(SIGSTOP);
    pause();
}

/* Stops these ranks for some time, from a process of its own. The last rank runs again first, so
 * that it notices the time before it hears from rank 0. */
static void stop_for(int first, int last, double seconds)
{
    pid_t child = fork();
    for (int i = first; child == 0 && i <= last; i++)
        kill(process_of_rank(i), SIGSTOP);
    if (child == 0) usleep((useconds_t)(1e6 * seconds));
    for (int i = last; child == 0 && i >= first; i--, usleep(20000))
        kill(process_of_rank(i), SIGCONT);
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
}

/* All ranks are stopped for longer than a silent rank may be, as when a batch system suspends a
 * job, and the others wait for rank 1 meanwhile. */
static void all_are_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) usleep(450000); /* until the others' services know of their waits */
    if (world->rank == 1) stop_for(0, world->size - 1, 3 * TIMEOUT);
    comm_barrier(world);
}

/* Rank 2 is stopped for longer than the timeout, but no rank waits for it that long, and it is not
 * silent for so much longer that it counts as lost. */
static void one_is_stopped_for_a_while(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) stop_for(2, 2, 1.4 * TIMEOUT);
    if (world->rank == 0) usleep((useconds_t)(1.4e6 * TIMEOUT));
    comm_barrier(world);
}

/* The process of rank 1 runs, but the rank never arrives. */
static void one_hangs(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) pause();
    comm_barrier(world);
}

/* Ranks 0 and 1 are a group, and ranks 1 and 2 another. Rank 2 hangs. */
static void one_waits_for_one_that_hangs(Comm *world, void *context)
{
    (void)context;
    Comm low = comm_split(world, "low", world->rank < 2, world->rank);
    Comm high = comm_split(world, "high", world->rank > 0, world->rank);
    if (world->rank == 1) {
        usleep(300000); /* so that rank 0 has waited longer */
        comm_barrier(&high);
    }
    if (world->rank == 2) pause();
    comm_barrier(&low);
}

static void one_leaves(Comm *world, void *context)
{
    (void)context;
    Comm group = comm_split(world, "group", 0, world->rank);
    if (world->rank == 1) {
        comm_close(&group);
        pause();
    }
    comm_barrier(&group);
}

/* The network between rank 0 and rank 1 is cut, while rank 1 waits for rank 2, which computes. */
static void one_is_cut_off(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) process_cut();
    if (world->rank == 2) pause();
    comm_barrier(world);
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

static void others_leave_one_by_one(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    usleep((useconds_t)(700000 * world->rank));
}

#define LOST(rank, host)                                                                           \
    "rank " #rank " dp " #rank ": the process of this rank on " host                               \
    " has ended, or the network to it is broken\n"
#define SILENT(rank, host)                                                                         \
    "rank " #rank " dp " #rank ": the process of this rank on " host " has been silent for "

/* Ranks 0, 2, ... are on host0, ranks 1, 3, ... on host1. */
static const ProcessEnd ends[] = {
    {"killed", one_is_killed, 4, 0, EXIT_PEER_LOST, {"error[87] " LOST(1, "host1")}},
    {"killed in a transfer",
     one_is_killed_in_a_transfer,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] " LOST(1, "host1")}},
    {"exit", one_exits, 3, 0, EXIT_PEER_LOST, {"error[87] " LOST(2, "host0")}},
    {"rank 0 killed",
     rank_0_is_killed,
     5,
     0,
     EXIT_PEER_LOST,
     {"error[87] the process of this rank on host0 has ended, or the network to it is broken\n",
      "error[87] the process of this rank on host0 has ended, or the network to it is broken\n"}},
    {"rank 0 killed, alone on its machine",
     rank_0_is_killed,
     2,
     0,
     EXIT_PEER_LOST,
     {"error[87] the process of this rank on host0 has ended, or the network to it is broken\n"}},
    {"rank 0 killed while another one fails",
     one_fails_while_rank_0_is_killed,
     2,
     0,
     EXIT_PEER_LOST, /* of rank 0 */
     {"error[74] rank 1 dp 1: the disk is full\n"}},
    {"one fails",
     one_fails,
     4,
     0,
     EXIT_INPUT_OUTPUT,
     {"error[74] rank 3 dp 3: the disk is full\n"}},
    {"all fail", all_fail, 8, 0, EXIT_DIVERGED, {"a failure of every rank\n"}},
    {"a failure after an end",
     one_fails_after_another_has_left,
     3,
     0,
     EXIT_INPUT_OUTPUT,
     {"error[74] rank 2 dp 2: the disk is full\n"}},
    {"garbage", one_sends_garbage, 3, 0, EXIT_PEER_LOST, {"error[87] " LOST(1, "host1")}},
    {"nonsense", one_sends_nonsense, 3, 0, EXIT_PEER_LOST, {"error[87] " LOST(1, "host1")}},
    {"another's report",
     one_sends_as_another,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] " LOST(1, "host1")}},
    {"half a packet",
     one_sends_half_a_packet,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] " LOST(1, "host1")}},
    {"stopped", one_is_stopped, 4, TIMEOUT, EXIT_HANG, {"error[86] " SILENT(2, "host0")}},
    {"hangs",
     one_hangs,
     2,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] group world, call 2, barrier: rank 0 has waited 1 s "
      "(parallel.timeout) for rank 1 (on host1), which has not arrived\n"}},
    {"waits for one that hangs",
     one_waits_for_one_that_hangs,
     3,
     TIMEOUT,
     EXIT_HANG,
     {" waits for rank 2 (on host0; group high, call 1, barrier)\n"}},
    {"leaves a group",
     one_leaves,
     2,
     TIMEOUT,
     EXIT_PEER_LOST,
     {"error[87] group group, call 1, barrier: rank 0 waits for rank 1 (on host1), "
      "which has left the group\n"}},
    {"stopped while all compute",
     one_is_stopped_while_all_compute,
     4,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] " SILENT(2, "host0")}},
    {"rank 0 stopped",
     rank_0_is_stopped,
     5,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] rank 1 dp 1: group world, call 2, barrier: rank 1 has waited 1 s "
      "(parallel.timeout) for rank 0 (on host0), which has not arrived\n",
      "error[86] rank 2 dp 2: group world, call 2, barrier: rank 2 has waited 1 s "}},
    {"cut off",
     one_is_cut_off,
     3,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] " SILENT(1, "host1"),
      "error[86] rank 1 dp 1: group world, call 2, barrier: rank 1 has waited 1 s "
      "(parallel.timeout) for rank 0 (on host0), which has not arrived\n"}},
    {"all stopped", all_are_stopped, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"stopped for a while", one_is_stopped_for_a_while, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"a long computation", all_compute, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"others never leave",
     others_never_leave,
     4,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] end of the program: rank 0 has waited 1 s (parallel.timeout) for ranks 1-3 "
      "(on host1, host0), which have not arrived\n"}},
    {"others leave one by one", others_leave_one_by_one, 3, TIMEOUT, EXIT_OK, {NULL}},
};

static void expect_ends(ProcessLinks links, int every)
{
    if (getenv("TEST_SAMPLE")) every *= 3;
    process_links_choose(links);
    for (int i = 0; i < (int)(sizeof ends / sizeof *ends); i += every) {
        process_cuttable_choose(ends[i].body == one_is_cut_off ? 1 : -1);
        if (ends[i].body == one_fails_while_rank_0_is_killed)
            process_allow_code(EXIT_INPUT_OUTPUT); /* of rank 1 */
        process_expect_end(&ends[i], ends[i].code == 0 ? 3 : 0.5);
    }
}

static void test_without_a_launcher_ranks_report_how_others_ended(void **state)
{
    (void)state;
    socket_hub_set_last_wait(TIMEOUT);
    expect_ends(LINKS_IPV4, 1);
}

static void test_over_ipv6_ranks_report_how_others_ended(void **state)
{
    (void)state;
    if (!process_links_exist(LINKS_IPV6)) {
        print_message("skipped: there is no IPv6 loopback interface\n");
        skip();
    }
    socket_hub_set_last_wait(TIMEOUT);
    expect_ends(LINKS_IPV6, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_launcher_ranks_report_how_others_ended),
        cmocka_unit_test(test_over_ipv6_ranks_report_how_others_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
