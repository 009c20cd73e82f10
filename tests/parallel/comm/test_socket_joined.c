/* test_socket_joined.c -- ranks that have joined over TCP: connections of strangers (processes that
 * are no ranks), and a world of hundreds of ranks. How the program ends is in
 * test_socket_joined_ends.c. What does not depend on the links is tested by the other files of this
 * folder with TEST_LINKS=tcp. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t x[4];

static void reduce(Comm *world)
{
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 2), REDUCE_SUM);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* Connects to rank 0 as a stranger: a process that is no rank. */
static int connect_to_rank_0(Comm *world)
{
    struct sockaddr_storage address;
    socklen_t bytes = socket_links_address(socket_group(world)->world->links, 0, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&address, bytes) != 0)
        rank_wrong(world, "a stranger cannot connect");
    return fd;
}

/* Connects to rank 0 as a stranger that, by kind, sends nothing (0), sends garbage (1), closes its
 * direction (2), has another secret (3), or sends half a hello (4). run_beside_strangers makes more
 * of these connections than rank 0 accepts at once. */
static void come_as(Comm *world, int kind)
{
    const unsigned char secret[SHA256_BYTES] = {1, 2, 3};
    char garbage[HANDSHAKE_BYTES];
    Handshake handshake;
    int fd = connect_to_rank_0(world);
    memset(garbage, 'x', sizeof garbage);
    handshake_begin(&handshake, secret, false, 1);
    if (kind == 1 && send(fd, garbage, sizeof garbage, 0) < 0) rank_wrong(world, "no garbage");
    if (kind == 2) shutdown(fd, SHUT_WR);
    if (kind == 3) handshake_move(&handshake, fd);
    if (kind == 4 && send(fd, handshake.hello, 20, 0) < 0) rank_wrong(world, "no half hello");
}

static void run_beside_strangers(Comm *world, void *context)
{
    enum { KINDS = 5, EACH = STRANGERS / 2 };
    (void)context;
    if (world->rank == 1)
        for (int i = 0; i < KINDS * EACH; i++)
            come_as(world, i % KINDS);
    double start = seconds_now();
    for (int i = 0; i < 10; i++)
        reduce(world);
    double seconds = seconds_now() - start;
    if (world->rank == 1 && seconds > 1) rank_wrong(world, "strangers delay it by %g s", seconds);
    if (socket_group(world)->world->strangers > STRANGERS) rank_wrong(world, "too many strangers");
}

static void test_strangers_are_refused_and_delay_no_rank(void **state)
{
    char wrong[512];
    (void)state;
    process_links_choose(LINKS_IPV4);
    assert_int_equal(process_ranks(3, 10, run_beside_strangers, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

/* A stranger that stays connected and sends nothing is dropped after some seconds, while rank 0
 * waits for rank 2. */
static void wait_with_strangers(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 1) come_as(world, 0);
    if (world->rank == 2) usleep(6500000);
    reduce(world);
    if (world->rank == 0 && socket_group(world)->world->strangers != 0)
        rank_wrong(world, "%d strangers are left", socket_group(world)->world->strangers);
}

static void test_silent_strangers_are_dropped_after_some_seconds(void **state)
{
    char wrong[512];
    (void)state;
    if (getenv("TEST_SAMPLE")) {
        print_message("skipped: it waits for seconds\n");
        skip();
    }
    process_links_choose(LINKS_IPV4);
    assert_int_equal(process_ranks(3, 20, wait_with_strangers, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

/* ---- a large world --------------------------------------------------------------------------- */

enum { MANY = 500, FEW = 80 };

/* Returns how many connections to other ranks this process has. */
static int connections(const Comm *world)
{
    const SocketWorld *w = socket_group(world)->world;
    int n = 0;
    for (int i = 0; i < w->ranks; i++)
        n += w->peer[i] != NULL;
    return n;
}

/* Returns how many connections a rank needs for the meetings of the world. */
static int connections_to_meet(const Comm *world)
{
    TreePlace place = socket_tree_place(world->size, world->rank);
    return place.children + (place.parent >= 0);
}

static void check_small_collectives(Comm *world)
{
    enum { N = 300 }; /* so many that the numbers of all ranks do not fit in one meeting */
    int64_t sum[N], n = world->size, *all = must_calloc((size_t)n, 3 * sizeof *all),
                    *part = all + n;
    for (int i = 0; i < N; i++)
        sum[i] = world->rank + i;
    comm_all_reduce(world, NULL, tensor_1d(sum, I64, N), REDUCE_SUM);
    for (int64_t i = 0; i < N; i++)
        if (sum[i] != n * (n - 1) / 2 + n * i) rank_wrong(world, "sum %d", (int)i);
    x[0] = world->rank == 3 ? 77 : 0;
    comm_broadcast(world, NULL, tensor_1d(x, I64, 1), 3);
    if (x[0] != 77) rank_wrong(world, "a broadcast of %lld", (long long)x[0]);
    x[0] = 1000 + world->rank;
    comm_all_gather(world, NULL, tensor_1d(all, I64, n), tensor_1d(x, I64, 1));
    for (int64_t i = 0; i < n; i++)
        if (all[i] != 1000 + i) rank_wrong(world, "part %d", (int)i);
    comm_reduce_scatter(world, NULL, tensor_1d(part, I64, 1), tensor_1d(all, I64, n));
    if (part[0] != n * (1000 + world->rank)) rank_wrong(world, "%lld", (long long)part[0]);
    free(all);
}

/* All ranks pass barriers, make small collectives, split into groups of four neighbours and groups
 * of every fourth rank, make small collectives in both, and pass another barrier. */
static void meet_and_part(Comm *world, void *context)
{
    (void)context;
    for (int i = 0; i < 3; i++)
        comm_barrier(world);
    check_small_collectives(world);
    int expected = connections_to_meet(world);
    if (connections(world) != expected || expected > TREE_FAN_OUT + 1)
        rank_wrong(world, "%d connections, not %d", connections(world), expected);
    Comm four = comm_split(world, "four", world->rank / 4, 0),
         fourth = comm_split(world, "fourth", world->rank % 4, -world->rank);
    if (four.size != 4 || four.rank != world->rank % 4 || fourth.size != world->size / 4 ||
        fourth.rank != fourth.size - 1 - world->rank / 4)
        rank_wrong(world, "rank %d of %d, %d of %d", four.rank, four.size, fourth.rank,
                   fourth.size);
    check_small_collectives(&four);
    check_small_collectives(&fourth);
    comm_close(&fourth);
    comm_close(&four);
    comm_barrier(world);
}

static void test_hundreds_of_ranks_join_with_few_connections_each(void **state)
{
    char wrong[512];
    (void)state;
    process_links_choose(LINKS_IPV4);
    double start = seconds_now();
    int ranks = getenv("TEST_SAMPLE") ? FEW : MANY;
    assert_int_equal(process_ranks(ranks, 30, meet_and_part, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
    double seconds = seconds_now() - start;
    if (seconds > 20) fail_msg("%d ranks have needed %.1f s", ranks, seconds);
}

/* ---- sums ------------------------------------------------------------------------------------ */

enum { MORE_THAN_64 = 70, OVER_0 = 1000, EXCHANGED = 1500 };

static float input(int rank, int i)
{
    return 1.0f / (float)(1 + (i * 7 + rank * 1237) % 10007) - 3e-4f * (float)rank;
}

/* The first tensor is summed through member 0. The second one is larger, and the ranks exchange it
 * directly. */
static void sum_over_many(Comm *world, void *context)
{
    static float all[EXCHANGED];
    const DeviceOptions options = {.threads = 1, .blas = BLAS_BUILTIN};
    char err[256];
    Device device;
    (void)context;
    if (!device_open(&device, "cpu", &options, err, sizeof err)) _exit(EXIT_SYSTEM);
    for (int n = OVER_0; n <= EXCHANGED; n += EXCHANGED - OVER_0) {
        for (int i = 0; i < n; i++)
            all[i] = input(world->rank, i);
        comm_all_reduce(world, &device, tensor_1d(all, F32, n), REDUCE_SUM);
        for (int i = 0; i < n; i++) {
            float sum = input(0, i);
            for (int r = 1; r < world->size; r++)
                sum += input(r, i);
            if (all[i] != sum)
                rank_wrong(world, "%d of %d: %.9g, not %.9g", i, n, (double)all[i], (double)sum);
        }
        int most = n == EXCHANGED ? world->size - 1 : connections_to_meet(world);
        if (connections(world) > most) rank_wrong(world, "%d connections", connections(world));
    }
    device_close(&device);
}

static void test_sums_of_over_64_ranks_have_the_same_bits_as_sums_in_rank_order(void **state)
{
    char wrong[512];
    (void)state;
    process_links_choose(LINKS_IPV4);
    assert_int_equal(process_ranks(MORE_THAN_64, 60, sum_over_many, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hundreds_of_ranks_join_with_few_connections_each),
        cmocka_unit_test(test_sums_of_over_64_ranks_have_the_same_bits_as_sums_in_rank_order),
        cmocka_unit_test(test_strangers_are_refused_and_delay_no_rank),
        cmocka_unit_test(test_silent_strangers_are_dropped_after_some_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
