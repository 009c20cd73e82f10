/* test_comm_messages.c -- thousands of messages between thread ranks that wait for each other again
 * and again: each arrives, in order, before its sender may write there anew, and no rank stays
 * asleep when what it waits for has come. */
#include "model/core/pool.h"
#include "parallel/comm/local/group.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LENGTH = 64 };

static int rounds(void)
{
    return getenv("TEST_SAMPLE") ? 3000 : 20000;
}

static void fill(int64_t *x, int64_t number)
{
    for (int i = 0; i < LENGTH; i++)
        x[i] = number + i;
}

static void expect(const Comm *world, const int64_t *x, int64_t number)
{
    for (int i = 0; i < LENGTH; i++)
        if (x[i] != number + i) {
            rank_wrong(world, "element %d is %lld, not %lld", i, (long long)x[i],
                       (long long)number + i);
            return;
        }
}

/* Around the ring, one message at a time: all but one rank wait. */
static void run_token(Comm *world, void *context)
{
    int next = (world->rank + 1) % world->size, n = world->size;
    int before = (world->rank + n - 1) % n;
    int64_t x[LENGTH];
    Tensor t = tensor_1d(x, I64, LENGTH);
    (void)context;
    for (int i = 0; i < rounds() / n; i++) {
        int64_t number = (int64_t)i * n + world->rank;
        if (number > 0) {
            comm_receive(world, NULL, t, before);
            expect(world, x, number - 1);
        }
        fill(x, number);
        if (world->rank < n - 1 || i < rounds() / n - 1) comm_send(world, NULL, t, next);
    }
}

/* To and from every other rank at once, two messages each way, as stages do that exchange
 * activations for gradients; then a call of all ranks. */
static void run_exchanges(Comm *world, void *context)
{
    enum { MOST = 8, EACH = 2 };
    int64_t out[MOST][EACH][LENGTH], in[MOST][EACH][LENGTH], sum;
    (void)context;
    for (int i = 0; i < rounds() / (4 * world->size); i++) {
        comm_group_begin(world);
        for (int m = 0; m < EACH * world->size; m++) {
            int peer = m % world->size, e = m / world->size;
            if (peer == world->rank) continue;
            fill(out[peer][e], 1000 * i + 100 * world->rank + 10 * peer + e);
            comm_receive(world, NULL, tensor_1d(in[peer][e], I64, LENGTH), peer);
            comm_send(world, NULL, tensor_1d(out[peer][e], I64, LENGTH), peer);
        }
        comm_group_end(world);
        for (int m = 0; m < EACH * world->size; m++) {
            int peer = m % world->size, e = m / world->size;
            if (peer != world->rank)
                expect(world, in[peer][e], 1000 * i + 100 * peer + 10 * world->rank + e);
        }
        sum = i;
        if (i % 16 == 0) comm_all_reduce(world, NULL, tensor_1d(&sum, I64, 1), REDUCE_SUM);
        if (i % 16 == 0 && sum != (int64_t)i * world->size)
            rank_wrong(world, "the sum of round %d is %lld", i, (long long)sum);
    }
}

/* A group of more messages than a step ever has at once, the first that the communicator carries:
 * nothing is allocated for it. */
static void run_first(Comm *world, void *context)
{
    enum { MOST = 3 };
    int64_t out = world->rank, in[MOST] = {0};
    int next = (world->rank + 1) % world->size,
        before = (world->rank + world->size - 1) % world->size;
    Comm group = comm_split(world, "pp", 0, world->rank);
    for (int i = 0; i < 2; i++) {
        Comm *comm = i ? &group : world;
        const LocalMessage *note = local_member(comm)->note;
        comm_group_begin(comm);
        for (int m = 0; m < MOST; m++) {
            comm_send(comm, NULL, tensor_1d(&out, I64, 1), next);
            comm_receive(comm, NULL, tensor_1d(&in[m], I64, 1), before);
        }
        comm_group_end(comm);
        if (note == NULL || local_member(comm)->note != note || in[MOST - 1] != before)
            rank_wrong(world, "group %s: places of messages are made when the first are sent",
                       comm->name);
    }
    (void)context;
    comm_close(&group);
}

/* Without a deadline, whose slices would wake who sleeps: a rank that is not woken hangs. */
static void each_world(RankBody body)
{
    int cores = pool_allowed_cores();
    const int ranks[] = {2, 3, cores < 7 ? cores + 1 : 8,
                         8}; /* those that look, those that do not */
    alarm(60);
    for (int i = 0; i < (int)(sizeof ranks / sizeof *ranks); i++)
        thread_ranks(ranks[i], 0, body, NULL);
    alarm(0);
}

static void test_one_message_after_the_other(void **state)
{
    (void)state;
    each_world(run_token);
}

static void test_exchanges_with_all_peers(void **state)
{
    (void)state;
    each_world(run_exchanges);
}

static void test_first_messages_allocate_nothing(void **state)
{
    (void)state;
    thread_ranks(3, 0, run_first, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_messages_allocate_nothing),
        cmocka_unit_test(test_one_message_after_the_other),
        cmocka_unit_test(test_exchanges_with_all_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
