/* test_frozen_rank.c -- how the process ends if the thread of a rank freezes: in its sleep, or
 * while it owns a mutex that the other ranks need in order to end. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/local/group.h"
#include "tests/support/grid/rank_ends.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds: parallel.timeout of these ranks. */
static const double TIMEOUT = 0.4;

static int64_t x;

static Tensor one(void)
{
    return tensor_1d(&x, I64, 1);
}

static atomic_bool frozen;

/* The handler of a signal that freezes the thread in which it arrives. */
static void freeze(int number)
{
    (void)number;
    atomic_store(&frozen, true);
    for (;;)
        pause();
}

/* Returns the thread of rank 1, which a signal may freeze from now on. */
static pthread_t thread_of_rank_1(Comm *world)
{
    static pthread_t thread;
    if (world->rank == 1) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        signal(SIGUSR1, freeze);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        thread = pthread_self();
    }
    comm_barrier(world);
    return thread;
}

/* Returns whether rank 1 is asleep in its second call. (Its first call is the barrier in
 * thread_of_rank_1.) */
static bool sleeps(LocalGroup *group)
{
    const LocalMember *member = &group->member[1];
    pthread_mutex_lock(&group->mutex);
    bool is = atomic_load(&member->asleep) && member->calls == 2;
    pthread_mutex_unlock(&group->mutex);
    return is;
}

/* Rank 0 freezes rank 1 in its sleep. */
static void freeze_rank_1(Comm *world, pthread_t thread)
{
    while (!sleeps(local_group(world)))
        sched_yield();
    pthread_kill(thread, SIGUSR1);
    while (!atomic_load(&frozen))
        sched_yield();
}

/* Rank 1 freezes in a receive, and rank 0 sends the message. */
static void frozen_in_a_receive(Comm *world, void *context)
{
    (void)context;
    pthread_t thread = thread_of_rank_1(world);
    if (world->rank == 1) comm_receive(world, NULL, one(), 0);
    freeze_rank_1(world, thread);
    comm_send(world, NULL, one(), 1);
}

/* Rank 1 freezes in a send. Rank 0 takes the message and waits for another one. */
static void frozen_in_a_send(Comm *world, void *context)
{
    (void)context;
    pthread_t thread = thread_of_rank_1(world);
    if (world->rank == 1) comm_send(world, NULL, one(), 0);
    freeze_rank_1(world, thread);
    comm_receive(world, NULL, one(), 1);
    comm_receive(world, NULL, one(), 1);
}

static const RankEnd asleep[] = {
    {"frozen in a receive",
     frozen_in_a_receive,
     2,
     EXIT_HANG,
     {"group world, call 2, send of 1 i64 in host memory to rank 1: rank 0 has waited 0.4 s "
      "(parallel.timeout) for rank 1, which has not arrived\n"}},
    {"frozen in a send",
     frozen_in_a_send,
     2,
     EXIT_HANG,
     {"group world, call 3, receive of 1 i64 in host memory from rank 1: rank 0 has waited 0.4 s "
      "(parallel.timeout) for rank 1, which has not arrived\n"}},
};

/* Rank 0 has done its part of the call in which rank 1 is still asleep. So the two do not wait for
 * each other: rank 1 is the cause. */
static void test_a_rank_that_freezes_in_a_call_is_named_as_the_cause(void **state)
{
    (void)state;
    rank_end_expect(&asleep[0], TIMEOUT, NULL);
    rank_end_expect(&asleep[1], TIMEOUT, NULL);
}

/* Rank 1 freezes while it owns the mutex of the world. */
static void owner_of_the_world(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 1) pthread_mutex_lock(&local_group(world)->world->mutex);
    if (world->rank == 1) freeze(0);
    comm_barrier(world);
}

/* Rank 2 freezes while it owns the mutex of its group with rank 1. The others wait elsewhere. */
static void owner_of_a_group(Comm *world, void *context)
{
    (void)context;
    Comm pair = comm_split(world, "pair", world->rank > 0, world->rank);
    if (world->rank == 2) pthread_mutex_lock(&local_group(&pair)->mutex);
    if (world->rank == 2) freeze(0);
    comm_barrier(world);
}

static const RankEnd owners[] = {
    {"the owner of the world",
     owner_of_the_world,
     2,
     EXIT_HANG,
     {"group world, call 1, barrier: rank 0 has waited 0.4 s (parallel.timeout) for rank 1, which "
      "has not arrived\n"}},
    {"the owner of a group",
     owner_of_a_group,
     3,
     EXIT_HANG,
     {"group world, call 2, barrier: rank ",
      " has waited 0.4 s (parallel.timeout) for rank 2, which has not arrived\n"}},
};

static void test_a_frozen_owner_of_a_mutex_does_not_keep_the_others_from_ending(void **state)
{
    double start = seconds_now();
    (void)state;
    rank_end_expect(&owners[0], TIMEOUT, NULL);
    rank_end_expect(&owners[1], TIMEOUT, NULL);
    assert_true(seconds_now() - start < 2 * (TIMEOUT + 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_freezes_in_a_call_is_named_as_the_cause),
        cmocka_unit_test(test_a_frozen_owner_of_a_mutex_does_not_keep_the_others_from_ending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
