/* test_socket.c -- ranks that are processes: sums of tensors larger than a block, memory,
 * connections of processes that are no ranks (strangers), messages from ranks that are not in a
 * group, and when rank 0 asks for reports. How the program ends is in test_socket_ends.c. What
 * processes and threads have in common is tested by the other files of this folder with
 * TEST_RANKS=processes. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/process_ranks.h"
#include "tests/support/grid/thread_ranks.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t x[4];

static void reduce(Comm *world)
{
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 2), REDUCE_SUM);
}

/* ---- large tensors --------------------------------------------------------------------------- */

enum { LARGE = 300001 };

static float input(int rank, int64_t i)
{
    return 1.0f / (float)(1 + (i * 7 + rank * 1237) % 10007) - 3e-4f * (float)rank;
}

/* More than one block for each rank, and parts of different lengths. */
static void run_large(Comm *world, void *context)
{
    (void)context;
    int n = world->size, me = world->rank;
    float *all = must_calloc((size_t)n * LARGE, sizeof *all),
          *part = must_calloc(LARGE, sizeof *part);
    for (int64_t i = 0; i < (int64_t)n * LARGE; i++)
        all[i] = input(me, i);
    comm_reduce_scatter(world, NULL, tensor_1d(part, F32, LARGE),
                        tensor_1d(all, F32, (int64_t)n * LARGE));
    comm_all_reduce(world, NULL, tensor_1d(all, F32, (int64_t)n * LARGE), REDUCE_SUM);
    for (int64_t i = 0; i < (int64_t)n * LARGE; i++) {
        float sum = input(0, i);
        for (int r = 1; r < n; r++)
            sum += input(r, i);
        bool own = i / LARGE == me;
        if (all[i] != sum || (own && part[i % LARGE] != sum)) {
            rank_wrong(world, "element %lld: %.9g, not %.9g", (long long)i, (double)all[i],
                       (double)sum);
            break;
        }
    }
    free(all);
    free(part);
}

static void test_sums_of_many_blocks_have_the_same_bits_as_sums_in_rank_order(void **state)
{
    char wrong[512];
    (void)state;
    assert_int_equal(process_ranks(3, 60, run_large, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

/* ---- memory, strangers ----------------------------------------------------------------------- */

static void step(Comm *world, float *all, int64_t n)
{
    int next = (world->rank + 1) % world->size,
        before = (world->rank + world->size - 1) % world->size;
    Tensor t = tensor_1d(all, F32, n);
    comm_all_reduce(world, NULL, t, REDUCE_SUM);
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 1), REDUCE_MAX);
    comm_group_begin(world);
    comm_send(world, NULL, t, next);
    comm_receive(world, NULL, tensor_1d(all + n, F32, n), before);
    comm_group_end(world);
    comm_broadcast(world, NULL, t, 0);
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void run_steps(Comm *world, void *context)
{
    enum { N = 100000 };
    float *all = must_calloc((size_t)2 * N, sizeof *all);
    (void)context;
    step(world, all, N);
    size_t used = allocated();
    for (int i = 0; i < 20; i++)
        step(world, all, N);
    if (allocated() != used)
        rank_wrong(world, "steps have allocated %zd bytes", (ssize_t)(allocated() - used));
    free(all);
}

static void test_steps_after_the_first_allocate_nothing(void **state)
{
    char wrong[512];
    (void)state;
    assert_int_equal(process_ranks(3, 60, run_steps, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

/* Before the ranks connect, two other connections are made to rank 0: one claims to be rank 1 but
 * has a wrong secret, and the other sends nothing. */
static void run_beside_strangers(Comm *world, void *context)
{
    const SocketLinks *links = socket_group(world)->world->links;
    struct sockaddr_storage address;
    socklen_t bytes = socket_links_address(links, 0, &address);
    unsigned char wrong[SHA256_BYTES] = {0};
    Handshake handshake;
    int fd[2] = {-1, -1};
    (void)context;
    for (int i = 0; i < 2 && world->rank == 1; i++) {
        fd[i] = socket(address.ss_family, SOCK_STREAM, 0);
        if (connect(fd[i], (const struct sockaddr *)&address, bytes) != 0)
            rank_wrong(world, "a stranger cannot connect");
    }
    handshake_begin(&handshake, wrong, false, 1);
    if (world->rank == 1) handshake_move(&handshake, fd[0]);
    for (int i = 0; i < 10; i++)
        reduce(world);
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0) close(fd[i]);
}

static void test_a_process_that_does_not_know_the_secret_is_not_taken_for_a_rank(void **state)
{
    char wrong[512];
    (void)state;
    assert_int_equal(process_ranks(2, 10, run_beside_strangers, NULL, wrong, sizeof wrong), 0);
    assert_string_equal(wrong, "");
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Rank 0 asks all ranks for reports once a rank has waited for as long as the timeout. The time
 * starts anew with each wait. */
static void test_rank_0_asks_for_reports_when_a_wait_reaches_the_timeout(void **state)
{
    char err[256];
    SocketService service = {.nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    SocketLinks *links = socket_links_create(2, err, sizeof err);
    SocketHub *hub = socket_hub_create(&service, links, 1);
    SocketPacket group = {.group = {.head = {.kind = PACKET_GROUP},
                                    .size = 2,
                                    .member = 1,
                                    .meetings = 1,
                                    .runs = 1,
                                    .run = {{.first = 0, .stride = 1, .count = 2}}}};
    SocketPacket report = {.report = {.head = {.kind = PACKET_REPORT},
                                      .wait = {.waits = true, .meets = true, .meeting = 1}}};
    (void)state;
    assert_true(socket_hub_take(hub, 1, &group));
    for (report.report.wait.wait = 1; report.report.wait.wait < 4; report.report.wait.wait++) {
        assert_true(socket_hub_take(hub, 1, &report));
        assert_false(socket_hub_judge(hub, 0.9));
        assert_true(socket_hub_judge(hub, 0.2));
    }
    socket_hub_destroy(hub);
    socket_links_destroy(links);
    close(service.nudge);
}

/* ---- who is in a group ----------------------------------------------------------------------- */

static int members[] = {0, 3}, order[] = {0, 1};
static SocketGroup pair = {
    .share = {.id = 7,
              .name = "pair",
              .members = {.size = 2, .rank = members, .order = order, .indexed = true}}};

/* A rank offers a message to a group that it is not in. */
static void hear_a_stranger(void *context)
{
    static SocketPeer *peers[6];
    static SocketWorld world = {.ranks = 6, .peer = peers, .messages = &pair};
    const SocketFrame offer = {.kind = FRAME_OFFER, .group = pair.share.id};
    (void)context;
    socket_offered(&world, 5, &offer);
}

static void test_a_rank_that_is_not_in_a_group_cannot_send_to_it(void **state)
{
    char text[1024];
    (void)state;
    assert_int_equal(socket_member(&pair, 0), 0);
    assert_int_equal(socket_member(&pair, 3), 1);
    assert_int_equal(child_run(hear_a_stranger, NULL, text, sizeof text), EXIT_BUG);
    assert_non_null(strstr(text, "rank 5 is not in group pair"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_of_many_blocks_have_the_same_bits_as_sums_in_rank_order),
        cmocka_unit_test(test_steps_after_the_first_allocate_nothing),
        cmocka_unit_test(test_a_process_that_does_not_know_the_secret_is_not_taken_for_a_rank),
        cmocka_unit_test(test_rank_0_asks_for_reports_when_a_wait_reaches_the_timeout),
        cmocka_unit_test(test_a_rank_that_is_not_in_a_group_cannot_send_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
