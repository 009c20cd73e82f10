/* test_comm_stops.c -- thread ranks in a process that is stopped and continued (Ctrl-Z, or a batch
 * system that suspends a job). No rank can arrive while the process is stopped, so this time must
 * not count as waiting. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/deadline.h"
#include "tests/support/grid/rank_ends.h"

#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TIMEOUT 1.5 /* seconds */

/* The pipes with which the child reports that it is ready and the parent lets it continue. */
typedef struct {
    int ready[2], go[2];
} Pipes;

static int64_t x[4];

/* Rank 1 makes the call only when the parent tells it to. */
static void wait_in(Comm *world, const Pipes *pipes, void (*call)(Comm *world))
{
    char byte = 0;
    comm_barrier(world);
    if (world->rank == 1 &&
        (write(pipes->ready[1], &byte, 1) != 1 || read(pipes->go[0], &byte, 1) != 1))
        rank_wrong(world, "no word to or from the parent");
    call(world);
}

static void meet(Comm *world)
{
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 1), REDUCE_SUM);
}

static void receive(Comm *world)
{
    if (world->rank == 1) comm_send(world, NULL, tensor_1d(x, I64, 2), 0);
    if (world->rank == 0) comm_receive(world, NULL, tensor_1d(x + 2, I64, 2), 1);
}

static void send(Comm *world)
{
    if (world->rank == 0) comm_send(world, NULL, tensor_1d(x, I64, 2), 1);
    if (world->rank == 1) comm_receive(world, NULL, tensor_1d(x + 2, I64, 2), 0);
}

static void wait_in_meeting(Comm *world, void *context)
{
    wait_in(world, context, meet);
}

static void wait_in_receive(Comm *world, void *context)
{
    wait_in(world, context, receive);
}

static void wait_in_send(Comm *world, void *context)
{
    wait_in(world, context, send);
}

static const RankEnd stops[] = {
    {"all-reduce", wait_in_meeting, 2, 0, {NULL}},
    {"receive", wait_in_receive, 2, 0, {NULL}},
    {"send", wait_in_send, 2, 0, {NULL}},
};

static void test_time_while_the_process_is_stopped_does_not_count_as_waiting(void **state)
{
    enum { N = sizeof stops / sizeof *stops };
    Pipes pipes[N];
    pid_t child[N];
    int said[N], status;
    char byte = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        assert_true(pipe(pipes[i].ready) == 0 && pipe(pipes[i].go) == 0);
        child[i] = rank_end_start(&stops[i], TIMEOUT, &pipes[i], &said[i]);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(read(pipes[i].ready[0], &byte, 1), 1);
    poll(NULL, 0, 50); /* by now rank 0 is waiting */
    for (int i = 0; i < N; i++) {
        kill(child[i], SIGSTOP);
        assert_int_equal(waitpid(child[i], &status, WUNTRACED), child[i]);
        assert_true(WIFSTOPPED(status));
    }
    poll(NULL, 0, (int)(1000 * TIMEOUT));
    for (int i = 0; i < N; i++)
        kill(child[i], SIGCONT);
    poll(NULL, 0, 100);         /* time for rank 0 to check how long it has waited */
    for (int i = 0; i < N; i++) /* so no child has to wait until another one has ended */
        assert_int_equal(write(pipes[i].go[1], &byte, 1), 1);
    for (int i = 0; i < N; i++) {
        rank_end_check(&stops[i], child[i], said[i]);
        for (int k = 0; k < 2; k++) {
            close(pipes[i].ready[k]);
            close(pipes[i].go[k]);
        }
    }
}

/* On a busy machine every sleep is late; if the lateness did not count, a thread that sleeps 10 ms
 * at a time would notice a deadline much too late. */
static void test_oversleeping_counts_as_waiting_but_at_most_50_ms_of_it(void **state)
{
    (void)state;
    double now = seconds_now();
    assert_true(deadline_passed(now - 1e-3, 100) >= 1e-3);
    assert_true(deadline_passed(now - 0.04, 0.01) >= 0.04);
    assert_true(fabs(deadline_passed(now - 100, 0.01) - 0.06) < 1e-9);
    assert_true(fabs(deadline_passed(now - 100, 1) - 1.05) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_while_the_process_is_stopped_does_not_count_as_waiting),
        cmocka_unit_test(test_oversleeping_counts_as_waiting_but_at_most_50_ms_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
