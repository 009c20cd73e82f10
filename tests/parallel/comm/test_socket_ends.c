/* test_socket_ends.c -- ranks that are processes: how the program ends when one of them is stopped,
 * killed, or ends too early, and that only the first failure is printed. What processes and threads
 * have in common is tested by the other files of this folder with TEST_RANKS=processes. */
#include "model/core/check.h"
#include "parallel/comm/socket/socket.h"
#include "tests/support/device/late_device.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/failing_ranks.h"
#include "tests/support/grid/process_ends.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const double TIMEOUT = 1, STOPPED = 1.5; /* seconds */

static int64_t x[4];

static void reduce(Comm *world)
{
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 2), REDUCE_SUM);
}

/* Rank 2 is stopped before its call, as a debugger or a frozen control group stops a process. */
static void one_is_stopped(Comm *world, void *context)
{
    (void)context;
    reduce(world);
    if (world->rank == 2) raise(SIGSTOP);
    reduce(world);
}

/* Rank 2 is stopped while it waits for rank 1, which arrives later. */
static void one_is_stopped_in_a_call(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) usleep(100000);
    if (world->rank == 1) kill(process_of_rank(2), SIGSTOP);
    comm_barrier(world);
    comm_barrier(world);
}

/* Both other ranks fail because rank 1 is lost, as if NCCL had noticed it, before the kernel
 * reports that rank 1's process has ended. */
static void one_is_killed_and_missed(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) {
        usleep(20000);
        raise(SIGKILL);
    }
    (fail)(EXIT_PEER_LOST, "a peer is lost");
}

static void one_exits(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 2) _exit(0);
    comm_barrier(world);
}

/* The text of the message ("Permission denied") decides the exit code, with which all ranks end. */
static void one_has_no_permission(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) (fail)(EXIT_INPUT_OUTPUT, "a file: %s", strerror(EACCES));
    comm_barrier(world);
}

static void one_has_too_many_files(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) (fail)(EXIT_DAMAGED, "a file: %s", strerror(EMFILE));
    comm_barrier(world);
}

static void on_a_device(Comm *world, void *context)
{
    (void)context;
    Device device;
    DeviceOptions options = {.threads = 1, .blas = BLAS_BUILTIN};
    char err[256];
    if (!late_device_open(&device, &options, err, sizeof err)) _exit(1);
    comm_all_reduce(world, &device, tensor_1d(x, F64, 2), REDUCE_SUM);
}

/* Stops all ranks for longer than the timeout, and lets them continue. */
static void stop_all(const Comm *world)
{
    for (int i = 0; i < world->size; i++)
        kill(process_of_rank(i), SIGSTOP);
    usleep((useconds_t)(1e6 * STOPPED));
    for (int i = 0; i < world->size; i++)
        kill(process_of_rank(i), SIGCONT);
}

/* The other ranks wait for rank 1. In the middle of this wait, all ranks are stopped. */
static void all_are_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) {
        usleep(100000);
        pid_t child = fork();
        if (child == 0) stop_all(world);
        if (child == 0) _exit(0);
        waitpid(child, NULL, 0);
        usleep(200000);
    }
    comm_barrier(world);
}

/* The handler of a signal that freezes a rank's own thread. The rank's service thread continues. */
static void freeze(int number)
{
    (void)number;
    for (;;)
        pause();
}

/* Rank 1 makes the call, and rank 0 freezes it there. */
static void freeze_rank_1(Comm *world, void (*call)(Comm *world))
{
    signal(SIGUSR1, freeze);
    comm_barrier(world);
    if (world->rank == 1) call(world);
    usleep(100000);
    kill(process_of_rank(1), SIGUSR1);
    usleep(10000);
}

static void receive(Comm *world)
{
    comm_receive(world, NULL, tensor_1d(x, I64, 1), 0);
}

/* The message for which rank 1 waits is sent after rank 1 has frozen. So the two ranks do not wait
 * for each other: rank 1 is the cause. */
static void one_freezes_in_a_receive(Comm *world, void *context)
{
    (void)context;
    freeze_rank_1(world, receive);
    comm_send(world, NULL, tensor_1d(x, I64, 1), 1);
}

static void one_freezes_in_a_barrier(Comm *world, void *context)
{
    (void)context;
    freeze_rank_1(world, comm_barrier);
    comm_barrier(world);
    comm_barrier(world);
}

/* Rank 0 leaves the world first. The others then make a call without it. */
static void rank_0_leaves_first(Comm *world, void *context)
{
    (void)context;
    Comm part = comm_split(world, "part", world->rank > 0, 0);
    if (world->rank > 0) usleep(100000);
    if (world->rank > 0) reduce(&part);
    comm_close(&part);
}

static const ProcessEnd ends[] = {
    {"stopped",
     one_is_stopped,
     4,
     TIMEOUT,
     EXIT_HANG,
     {"group world, call 2, all-reduce of 2 i64 in host memory: rank ",
      "has waited 1 s (parallel.timeout) for rank 2, which has not arrived\n"}},
    {"stopped in a call",
     one_is_stopped_in_a_call,
     3,
     TIMEOUT,
     EXIT_HANG,
     {"group world, call 3, barrier: rank ",
      "has waited 1 s (parallel.timeout) for rank 2, which has not arrived\n"}},
    {"rank 0 stopped",
     rank_0_is_stopped,
     3,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] rank 1 dp 1: group world, call 2, barrier: rank 1 has waited 1 s "
      "(parallel.timeout) for rank 0, which has not arrived\n"}},
    {"killed",
     one_is_killed,
     4,
     0,
     EXIT_PEER_LOST,
     {"error[87] rank 1 dp 1: the process of this rank was killed by signal 9 (Killed)\n"}},
    {"killed in a transfer",
     one_is_killed_in_a_transfer,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] rank 1 dp 1: the process of this rank was killed by signal 14 (Alarm clock)\n"}},
    {"killed and missed",
     one_is_killed_and_missed,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] rank 1 dp 1: the process of this rank was killed by signal 9 (Killed)\n"}},
    {"exit",
     one_exits,
     3,
     0,
     EXIT_PEER_LOST,
     {"error[87] rank 2 dp 2: the process of this rank ended with code 0 while the other ranks "
      "still needed it\n"}},
    {"rank 0 killed", rank_0_is_killed, 3, 0, EXIT_PEER_LOST, {NULL}},
    {"all fail", all_fail, 8, 0, EXIT_DIVERGED, {"a failure of every rank\n"}},
    {"one fails",
     one_fails,
     4,
     0,
     EXIT_INPUT_OUTPUT,
     {"error[74] rank 3 dp 3: the disk is full\n"}},
    {"one is refused",
     one_has_no_permission,
     3,
     0,
     EXIT_PERMISSION,
     {"error[77] rank 1 dp 1: a file: Permission denied\n"}},
    {"too many files",
     one_has_too_many_files,
     3,
     0,
     EXIT_SYSTEM,
     {"error[71] a file: Too many open files; raise ulimit -n\n"}},
    {"device",
     on_a_device,
     2,
     0,
     EXIT_CONFIG,
     {"group world: all-reduce of tensors in the memory of late: ranks that are processes"}},
    {"frozen in a receive",
     one_freezes_in_a_receive,
     2,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] group world, call 2, send of 1 i64 in host memory to rank 1: rank 0 has waited 1 "
      "s "
      "(parallel.timeout) for rank 1, which has not arrived\n"}},
    {"frozen in a barrier",
     one_freezes_in_a_barrier,
     2,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] group world, call 3, barrier: rank 0 has waited 1 s (parallel.timeout) for rank "
      "1, "
      "which has not arrived\n"}},
    {"all stopped", all_are_stopped, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"rank 0 leaves", rank_0_leaves_first, 4, TIMEOUT, EXIT_OK, {NULL}},
};

static void test_ranks_that_are_processes_end_with_one_code_and_one_message(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof ends / sizeof *ends); i++)
        for (int n = ends[i].timeout > 0 ? 1 : 5; n > 0; n--) /* repeated, because it varies which
                                                               * rank is first */
            process_expect_end(&ends[i], ends[i].code == 0 ? STOPPED : 0);
}

/* When rank 0 joins the world, the launcher has already reported that ranks 2 and 1 have died, in
 * this order. */
static void join_after_two_deaths(void *context)
{
    char err[256];
    SocketLinks *links = socket_links_create(3, err, sizeof err);
    (void)context;
    CHECK(links != NULL, "%s", err);
    socket_links_name(links, 2, "dp 2");
    socket_links_report_end(links, 2, SIGKILL, false);
    socket_links_report_end(links, 1, SIGKILL, false);
    ends_share(true);
    (void)socket_world_join(links, 0, 0);
    pause();
}

static void test_of_two_ranks_the_one_that_died_first_is_named(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(child_run(join_after_two_deaths, NULL, text, sizeof text), EXIT_PEER_LOST);
    assert_string_equal(
        text, "error[87] rank 2 dp 2: the process of this rank was killed by signal 9 (Killed)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_two_ranks_the_one_that_died_first_is_named),
        cmocka_unit_test(test_ranks_that_are_processes_end_with_one_code_and_one_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
