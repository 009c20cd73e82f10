/* test_guard.c -- the guard is the thread that ends the process if the thread that enforces a
 * deadline is stuck itself (guard.h): in the driver of a GPU, or at a lock whose owner is frozen.
 * It must not end a run in which waits are allowed to take long. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "parallel/comm/local/group.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/device/standing_device.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds. TIMEOUT: parallel.timeout of these ranks. GRACE: how much longer than that the guard
 * waits (half a minute outside tests). LONG must not be reached. */
static const double TIMEOUT = 0.4, GRACE = 0.3, LONG = 60;

/* The devices do not complete a call, and a query of their progress does not return. So the
 * watchdog cannot enforce its deadline. */
static void a_watchdog_is_stuck(Comm *world, void *context)
{
    Device dev;
    (void)context;
    guard_set_grace(GRACE);
    standing_device_open(world, &dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){0}, TIMEOUT);
    standing_device_stand(world, 3);
    standing_device_silence(true);
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_SUM);
    standing_device_hang();
}

/* Rank 1 freezes while it owns the mutex that rank 0 needs to wake up. `mute`: nobody reads the
 * error message. */
static void an_owner_freezes(Comm *world, void *context)
{
    LocalGroup *group = local_group(world);
    const bool *mute = context;
    int ends[2];
    guard_set_grace(GRACE);
    if (world->rank == 0) {
        if (*mute && (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0)) _exit(1);
        while (*mute && log_can_write(STDERR_FILENO, 0))
            if (write(STDERR_FILENO, "", 1) < 0) _exit(1);
        comm_barrier(world);
    }
    while (!atomic_load(&group->member[0].asleep))
        sched_yield();
    pthread_mutex_lock(&group->mutex);
    standing_device_hang();
}

static const RankEnd ends[] = {
    {"the watchdog",
     a_watchdog_is_stuck,
     2,
     EXIT_HANG,
     {"error[86] group dp, call ", ", all-reduce: rank ",
      " has waited 0.7 s (parallel.timeout and 0.3 s more), and the watchdog of NCCL, which holds "
      "the deadline, does not answer; rank ",
      " is in group dp, call "}},
    {"the owner of a mutex",
     an_owner_freezes,
     2,
     EXIT_HANG,
     {"error[86] group world, call 1, barrier: rank 0 has waited 0.7 s (parallel.timeout and 0.3 s "
      "more), and its own thread, which holds the deadline, does not answer\n"}},
    {"a console that nobody reads", an_owner_freezes, 2, EXIT_HANG, {""}},
};

static void test_the_guard_ends_a_process_whose_deadlines_are_not_enforced(void **state)
{
    bool mute[] = {false, false, true};
    enum { N = sizeof ends / sizeof *ends };
    pid_t child[N];
    int said[N];
    (void)state;
    fake_nccl_use();
    for (int i = 0; i < N; i++)
        child[i] = rank_end_start(&ends[i], i == 0 ? LONG : TIMEOUT, &mute[i], &said[i]);
    for (int i = 0; i < N; i++)
        rank_end_check(&ends[i], child[i], said[i]);
}

/* Rank 0 waits on the host for rank 1, which is in an NCCL call with a longer deadline. The wait
 * takes three times as long as rank 0's own timeout and the guard's extra time together. */
static void another_thread_enforces_the_deadline(Comm *world, void *context)
{
    static LocalWorld *hasty;
    Device dev;
    (void)context;
    guard_set_grace(0.1);
    if (world->rank == 0) hasty = local_world_create(world->size, 0.1);
    comm_barrier(world);
    Comm all = local_world_join(hasty, world->rank),
         dp = comm_split(world, "dp", world->rank == 0, 0);
    standing_device_open(world, &dev);
    nccl_connect(&dp, &dev, (NcclUse){0}, LONG);
    standing_device_stand(world, 6);
    if (world->rank > 0) comm_all_reduce(&dp, &dev, standing_device_numbers(5), REDUCE_SUM);
    comm_barrier(world);
    if (world->rank == 0) comm_receive(&all, NULL, standing_device_numbers(1), 1);
    usleep(600000);
    _exit(0);
}

static void test_the_guard_does_not_act_while_another_thread_enforces_the_deadline(void **state)
{
    (void)state;
    fake_nccl_use();
    rank_end_expect(&(RankEnd){"held elsewhere", another_thread_enforces_the_deadline, 3, 0, {""}},
                    LONG, NULL);
}

static int64_t no_progress(const void *context)
{
    (void)context;
    return 1;
}

static void describe_wait(const void *context, char *text, size_t n)
{
    snprintf(text, n, "%s", (const char *)context);
}

static GuardWatch watch_of(void *wait)
{
    return (GuardWatch){.context = wait,
                        .timeout = 0.2,
                        .holder = "nobody",
                        .turn = no_progress,
                        .describe = describe_wait};
}

static void hang(void)
{
    alarm(30); /* ends the process if the guard does not */
    standing_device_hang();
}

static void one_of_two_watches_is_removed(void *context)
{
    GuardWatch removed = watch_of("the removed wait"), kept = watch_of(context);
    guard_set_grace(0.1);
    guard_add(&kept);
    guard_add(&removed);
    guard_remove(&removed);
    hang();
}

static atomic_bool looked;

static int64_t nothing_is_awaited(const void *context)
{
    (void)context;
    atomic_store(&looked, true);
    return 0;
}

/* A fork does not copy the guard's thread, so the child's own watch must start it again. */
static void a_watched_process_forks(void *context)
{
    GuardWatch parent = watch_of("the wait of the parent"), child = watch_of(context);
    int status = 0;
    parent.turn = nothing_is_awaited;
    guard_set_grace(0.1);
    guard_add(&parent);
    while (!atomic_load(&looked)) /* ASan can hang if a process forks while it starts a thread */
        usleep(1000);
    pid_t process = fork();
    if (process == 0) {
        guard_add(&child);
        hang();
    }
    if (waitpid(process, &status, 0) != process) _exit(1);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void expect_the_only_wait(ChildBody body)
{
    char wait[] = "the only wait", text[256];
    assert_int_equal(child_run(body, wait, text, sizeof text), EXIT_HANG);
    assert_string_equal(text, "error[86] the only wait: rank 0 has waited 0.3 s (parallel.timeout "
                              "and 0.1 s more), and nobody, which holds the deadline, does not "
                              "answer\n");
}

static void test_the_guard_still_ends_a_wait_after_another_wait_was_removed(void **state)
{
    (void)state;
    expect_the_only_wait(one_of_two_watches_is_removed);
}

/* Returns the lowest free descriptor. A second call returns the same if no descriptor was left open
 * in between. */
static int next_descriptor(void)
{
    int fd = dup(STDIN_FILENO);
    close(fd);
    return fd;
}

static void watch_twice(void *context)
{
    int next[2];
    for (int i = 0; i < 2; i++) {
        GuardWatch watch = watch_of(context);
        watch.turn = nothing_is_awaited;
        guard_add(&watch);
        guard_remove(&watch);
        next[i] = next_descriptor();
    }
    _exit(next[0] != next[1]);
}

static void test_the_guard_leaves_no_descriptor_open_when_it_starts_again(void **state)
{
    char wait[] = "no wait", text[256];
    (void)state;
    assert_int_equal(child_run(watch_twice, wait, text, sizeof text), 0);
}

void __tsan_init(void) __attribute__((weak));

static void test_the_guard_also_ends_a_wait_in_a_child_of_a_watched_process(void **state)
{
    (void)state;
    if (__tsan_init) {
        print_message("skipped: TSan starts no thread in a child of a process with threads\n");
        skip();
    }
    expect_the_only_wait(a_watched_process_forks);
}

/* ---- the end of a process -------------------------------------------------------------------- */

/* Stands for a request for permission to print that rank 0 never answers. */
static bool get_no_answer(void *context, ExitCode code)
{
    (void)context, (void)code;
    standing_device_hang();
    return true;
}

static void fail_without_an_answer(void *context)
{
    (void)context;
    ends_share(true);
    ends_set_claim(get_no_answer, NULL);
    (fail)(EXIT_DAMAGED, "a file is torn");
}

static void test_a_failing_rank_ends_in_5_s_if_its_request_to_print_gets_no_answer(void **state)
{
    char text[256];
    double start = seconds_now();
    (void)state;
    assert_int_equal(child_run(fail_without_an_answer, NULL, text, sizeof text), EXIT_DAMAGED);
    assert_string_equal(text, "");
    assert_true(seconds_now() - start < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_guard_ends_a_process_whose_deadlines_are_not_enforced),
        cmocka_unit_test(test_the_guard_does_not_act_while_another_thread_enforces_the_deadline),
        cmocka_unit_test(test_the_guard_still_ends_a_wait_after_another_wait_was_removed),
        cmocka_unit_test(test_the_guard_leaves_no_descriptor_open_when_it_starts_again),
        cmocka_unit_test(test_the_guard_also_ends_a_wait_in_a_child_of_a_watched_process),
        cmocka_unit_test(test_a_failing_rank_ends_in_5_s_if_its_request_to_print_gets_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
