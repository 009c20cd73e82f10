/* test_frozen_rank.c -- how the process ends if the thread of a rank freezes: in its sleep, or
 * while it owns what the others need in order to end. */
#include "model/core/check.h"
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

/* Returns whether rank 1 is asleep in its second call; the first one is the barrier above. */
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
static void test_a_rank_that_does_not_wake_up_is_the_cause(void **state)
{
    (void)state;
    rank_end_expect(&asleep[0], TIMEOUT, NULL);
    rank_end_expect(&asleep[1], TIMEOUT, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_does_not_wake_up_is_the_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
