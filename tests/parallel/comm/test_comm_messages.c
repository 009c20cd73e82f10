/* test_comm_messages.c -- thousands of messages between thread ranks that repeatedly wait for each
 * other. Each message must arrive, in order, before its sender may overwrite it, and no rank may
 * stay asleep after the event that it waits for. */
#include "model/core/pool.h"
#include "parallel/comm/local/group.h"
#include "parallel/comm/socket/world.h"
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

/* Passes one message at a time around the ring, so all ranks but one are waiting. */
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

/* Exchanges two messages each way with every other rank at once, as pipeline stages exchange
 * activations for gradients. Every 16th round also makes a collective call. */
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

/* Returns the address of the array in which the communicator keeps the messages of a group. */
static const void *notes_of(const Comm *comm)
{
    return ranks_are_processes() ? (void *)socket_group(comm)->note
                                 : (void *)local_member(comm)->note;
}

/* The first group of messages that a communicator carries has more messages than a training step
 * ever has at once. It must not allocate memory. */
static void run_first(Comm *world, void *context)
{
    enum { MOST = 3 };
    int64_t out = world->rank, in[MOST] = {0};
    int next = (world->rank + 1) % world->size,
        before = (world->rank + world->size - 1) % world->size;
    Comm group = comm_split(world, "pp", 0, world->rank);
    for (int i = 0; i < 2; i++) {
        Comm *comm = i ? &group : world;
        const void *note = notes_of(comm);
        comm_group_begin(comm);
        for (int m = 0; m < MOST; m++) {
            comm_send(comm, NULL, tensor_1d(&out, I64, 1), next);
            comm_receive(comm, NULL, tensor_1d(&in[m], I64, 1), before);
        }
        comm_group_end(comm);
        if (note == NULL || notes_of(comm) != note || in[MOST - 1] != before)
            rank_wrong(world, "group %s: places of messages are made when the first are sent",
                       comm->name);
    }
    (void)context;
    comm_close(&group);
}

/* Uses no timeout, because its slices would wake a sleeping rank: a rank that is never woken must
 * hang, until the alarm. */
static void each_world(RankBody body)
{
    int cores = pool_allowed_cores();
    const int ranks[] = {2, 3, cores < 7 ? cores + 1 : 8,
                         8}; /* if there is a core for each rank, ranks poll for longer before they
                              * sleep (local.c) */
    alarm(60);
    for (int i = 0; i < (int)(sizeof ranks / sizeof *ranks); i++)
        thread_ranks(ranks[i], 0, body, NULL);
    alarm(0);
}

static void test_a_message_passed_around_a_ring_arrives_every_time(void **state)
{
    (void)state;
    each_world(run_token);
}

static void test_messages_exchanged_with_all_peers_arrive_every_time(void **state)
{
    (void)state;
    each_world(run_exchanges);
}

static void test_the_first_messages_of_a_group_allocate_nothing(void **state)
{
    (void)state;
    thread_ranks(3, 0, run_first, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_messages_of_a_group_allocate_nothing),
        cmocka_unit_test(test_a_message_passed_around_a_ring_arrives_every_time),
        cmocka_unit_test(test_messages_exchanged_with_all_peers_arrive_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
