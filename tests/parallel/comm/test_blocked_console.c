/* test_blocked_console.c -- rank 0 waits in a write to a console that nobody reads. It does not
 * count as absent: the other ranks wait for it without limit, in host calls and in NCCL. But if
 * another rank hangs meanwhile, the process still ends. */
#include "model/core/check.h"
#include "model/core/guard.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/device/standing_device.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds: parallel.timeout, and how long nobody reads the console. LONG must not be reached. */
static const double TIMEOUT = 0.3, LONG = 60;
enum { UNREAD = 1, BYTES = 1 << 20 /* more than a pipe holds */ };

/* Rank 0 prints more than the console takes before somebody reads it. */
static void print_much(void)
{
    guard_set_grace(0.1); /* the guard must not count this as absence, either */
    for (int i = 0; i < BYTES / 64; i++)
        printf("%063d\n", i);
    fflush(stdout);
}

/* Rank 2 waits for ranks 0 and 1, and rank 1 waits for rank 0. */
static void hosts_wait(Comm *world, void *context)
{
    (void)context;
    Comm pair = comm_split(world, "pair", world->rank < 2, world->rank);
    if (world->rank == 0) print_much();
    if (world->rank < 2) comm_barrier(&pair);
    comm_barrier(world);
}

/* Rank 1 is in an NCCL call that rank 0 has not made. */
static void a_device_waits(Comm *world, void *context)
{
    Device dev;
    (void)context;
    standing_device_open(world, &dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){0}, TIMEOUT);
    if (world->rank == 0) print_much();
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_SUM);
    comm_close(&all);
    device_close(&dev);
}

/* Rank 1 hangs, too, and rank 2 waits for both. */
static void another_rank_hangs(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) print_much();
    if (world->rank == 1) standing_device_hang();
    comm_barrier(world);
}

static void test_a_rank_blocked_by_its_console_does_not_count_as_absent(void **state)
{
    const RankEnd goes_on[] = {{"hosts", hosts_wait, 3, 0, {"\n0"}},
                               {"a device", a_device_waits, 2, 0, {"\n0"}}};
    double timeout[] = {TIMEOUT, LONG};
    enum { N = sizeof goes_on / sizeof *goes_on };
    pid_t child[N];
    int said[N];
    (void)state;
    fake_nccl_use();
    for (int i = 0; i < N; i++)
        child[i] = rank_end_start(&goes_on[i], timeout[i], NULL, &said[i]);
    sleep(UNREAD);
    for (int i = 0; i < N; i++)
        rank_end_check(&goes_on[i], child[i], said[i]);
}

static void run_another_rank_hangs(void *context)
{
    int ends[2];
    (void)context;
    /* the console, which nobody reads */
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) _exit(1);
    thread_ranks(3, TIMEOUT, another_rank_hangs, NULL);
}

static void test_a_rank_that_hangs_while_the_console_is_blocked_ends_the_process(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(child_run(run_another_rank_hangs, NULL, text, sizeof text), EXIT_HANG);
    assert_string_equal(text, "error[86] rank 2: group world, call 1, barrier: rank 2 has waited "
                              "0.3 s (parallel.timeout) "
                              "for ranks 0, 1, which have not arrived\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_blocked_by_its_console_does_not_count_as_absent),
        cmocka_unit_test(test_a_rank_that_hangs_while_the_console_is_blocked_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
