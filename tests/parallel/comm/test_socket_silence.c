/* test_socket_silence.c -- what ranks that are processes do if they get no answer: rank 0 is
 * stopped, a rank never leaves, or a connection cannot be made. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/process_ends.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/sleeping_threads.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const double TIMEOUT = 1; /* seconds */

/* ---- rank 0 is stopped ----------------------------------------------------------------------- */

static void the_first_two_are_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank < 2) raise(SIGSTOP);
    comm_barrier(world);
}

/* Rank 1 asks rank 0 in vain for permission to print. */
static void one_fails_while_rank_0_is_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    process_wait_until_stopped(process_of_rank(0));
    if (world->rank == 1) (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
    pause();
}

/* Rank 0 is stopped, and the connection to it is full, so rank 1 cannot send its last report. */
static void one_leaves_while_rank_0_is_stopped(Comm *world, void *context)
{
    const SocketLinks *links = socket_group(world)->world->links;
    SocketWord word = socket_word(PACKET_ENDED);
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    process_wait_until_stopped(process_of_rank(0));
    while (world->rank == 1 && send(links->star[1][1], &word, sizeof word, MSG_DONTWAIT) > 0)
        continue;
}

/* While rank 0 is stopped, rank 1 computes for longer than the timeout, and then waits for a
 * moment. That wait is not too long. */
static void one_computes_while_rank_0_is_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    if (world->rank > 0) usleep(world->rank == 1 ? 2300000 : 2600000);
    if (world->rank == 2) kill(process_of_rank(0), SIGCONT);
    comm_barrier(world);
}

/* Rank 0's process runs for short times only, as on a busy machine. It must not count as silent. */
static void one_waits_while_rank_0_is_slow(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    for (int i = 0; world->rank == 2 && i < 5; i++) {
        kill(process_of_rank(0), SIGSTOP);
        usleep(450000);
        kill(process_of_rank(0), SIGCONT);
        usleep(50000);
    }
    comm_barrier(world);
}

/* ---- ranks that never leave ------------------------------------------------------------------ */

static void others_never_leave(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) raise(SIGSTOP);
    if (world->rank == 2) pause();
}

/* Each rank leaves 0.7 s after the rank before it. That is less than TIMEOUT, but the last one of
 * three ranks leaves later than TIMEOUT after rank 0. */
static void others_leave_one_by_one(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    usleep((useconds_t)(700000 * world->rank));
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Rank 0 has no descriptor left when rank 1 connects. */
static void one_cannot_accept(Comm *world, void *context)
{
    struct rlimit limit;
    (void)context;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)fcntl(0, F_DUPFD_CLOEXEC, 0); /* the lowest free descriptor */
    close((int)limit.rlim_cur);
    if (world->rank == 0) setrlimit(RLIMIT_NOFILE, &limit);
    comm_barrier(world);
}

/* Makes up to `most` connections to rank 0 that send nothing, as long as rank 0 has room for
 * them. */
static void connect_to_rank_0(Comm *world, int most)
{
    struct sockaddr_storage address;
    socklen_t bytes = socket_links_address(socket_group(world)->world->links, 0, &address);
    for (int i = 0; i < most; i++) {
        int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fd, (const struct sockaddr *)&address, bytes) != 0) break;
    }
}

/* So many other connections wait until rank 0 accepts them that rank 1 cannot connect. */
static void one_cannot_connect(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) pause();
    connect_to_rank_0(world, 1000);
    comm_barrier(world);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For a while, rank 0 has as many strangers (connections that have proven nothing) as it accepts,
 * and more wait. It must not poll in a busy loop. */
static void strangers_wait(Comm *world, void *context)
{
    enum { COME = STRANGERS + 16, MICROSECONDS = 800000 };
    double start = processor_seconds();
    (void)context;
    if (world->rank == 1 && fork() == 0) {
        connect_to_rank_0(world, COME);
        usleep(MICROSECONDS);
        _exit(0);
    }
    if (world->rank == 1) usleep(MICROSECONDS / 2);
    comm_barrier(world);
    double seconds = processor_seconds() - start;
    if (seconds > 0.05) rank_wrong(world, "%g s of processor time", seconds);
}

/* ---------------------------------------------------------------------------------------------- */

static const ProcessEnd ends[] = {
    {"ranks 0 and 1 stopped",
     the_first_two_are_stopped,
     4,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] rank 2 dp 2: group world, call 2, barrier: rank 2 has waited 1 s "
      "(parallel.timeout) for rank 0, which has not arrived\n"}},
    {"a failure while rank 0 is stopped",
     one_fails_while_rank_0_is_stopped,
     2,
     0,
     EXIT_INPUT_OUTPUT,
     {"error[74] rank 1 dp 1: the disk is full\n"}},
    {"an end while rank 0 is stopped",
     one_leaves_while_rank_0_is_stopped,
     2,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] rank 1 dp 1: end of the program: rank 1 has waited 1 s (parallel.timeout) for "
      "rank 0, which has not arrived\n"}},
    {"others never leave",
     others_never_leave,
     4,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] end of the program: rank 0 has waited 1 s (parallel.timeout) for ranks 1, 2, "
      "which have not arrived\n"}},
    {"others leave one by one", others_leave_one_by_one, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"a long computation while rank 0 is stopped",
     one_computes_while_rank_0_is_stopped,
     3,
     TIMEOUT,
     EXIT_OK,
     {NULL}},
    {"a wait while rank 0 is slow", one_waits_while_rank_0_is_slow, 3, TIMEOUT, EXIT_OK, {NULL}},
    {"no descriptor",
     one_cannot_accept,
     2,
     TIMEOUT,
     EXIT_SYSTEM,
     {"error[71] rank 0 cannot accept the connection of another rank: Too many open files; raise "
      "ulimit -n\n"}},
    {"no room to connect",
     one_cannot_connect,
     2,
     TIMEOUT,
     EXIT_HANG,
     {"error[86] rank 1 dp 1: group world, call 1, barrier: rank 1 has waited 1 s "
      "(parallel.timeout) for rank 0, which has not arrived\n"}},
    {"strangers", strangers_wait, 2, TIMEOUT, EXIT_OK, {NULL}},
};

static void test_ranks_that_get_no_answer_end_or_continue_as_expected(void **state)
{
    (void)state;
    socket_hub_set_last_wait(TIMEOUT);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        process_expect_end(&ends[i], ends[i].timeout);
}

/* At the end, a short timeout does not limit how long a rank may take to leave. */
static void test_at_the_end_a_rank_may_take_longer_than_a_short_timeout_to_leave(void **state)
{
    const ProcessEnd end = {"a slow end", others_leave_one_by_one, 2, 0.2, EXIT_OK, {NULL}};
    (void)state;
    socket_hub_set_last_wait(30);
    process_expect_end(&end, 1);
}

/* ---- a rank fails before it has joined the others -------------------------------------------- */

static void be_rank(SocketLinks *links, int rank)
{
    const struct rlimit none = {0};
    ends_share(true);
    if (rank == 0) setrlimit(RLIMIT_NOFILE, &none);
    Comm world = socket_world_join(links, rank, TIMEOUT);
    comm_barrier(&world);
    _exit(0);
}

static void join_without_descriptors(void *context)
{
    char err[256];
    int code[2] = {0}, status;
    pid_t process[2];
    SocketLinks *links = socket_links_create(2, err, sizeof err);
    (void)context;
    for (int rank = 1; rank >= 0; rank--) {
        process[rank] = fork();
        if (process[rank] == 0) be_rank(links, rank);
    }
    socket_links_release(links);
    for (int rank = 0; rank < 2; rank++)
        if (waitpid(process[rank], &status, 0) == process[rank]) code[rank] = WEXITSTATUS(status);
    _exit(code[1] == EXIT_SYSTEM ? code[0] : 0);
}

static void test_a_rank_that_fails_before_joining_ends_the_other_ranks(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(child_run(join_without_descriptors, NULL, text, sizeof text), EXIT_SYSTEM);
    assert_string_equal(text, "error[71] no descriptor for rank 0: Too many open files; raise "
                              "ulimit -n\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_get_no_answer_end_or_continue_as_expected),
        cmocka_unit_test(test_at_the_end_a_rank_may_take_longer_than_a_short_timeout_to_leave),
        cmocka_unit_test(test_a_rank_that_fails_before_joining_ends_the_other_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
