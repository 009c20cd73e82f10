/* test_socket_large.c -- how rank 0's service thread handles the reports of 65,536 ranks. The ranks
 * do not exist: the test puts their reports into the table directly. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/hub.h"
#include "tests/support/files/child.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = COMM_MAX_RANKS, MISSING = 40001, AXIS = 256 };

/* Links of ranks without any connection. */
static SocketLinks *make_links(void)
{
    SocketLinks *links = must_calloc(1, sizeof *links);
    links->ranks = RANKS;
    links->launcher[0] = links->launcher[1] = -1;
    links->listener = must_alloc(RANKS * sizeof *links->listener);
    links->place = must_calloc(RANKS, sizeof *links->place);
    for (int i = 0; i < 2; i++)
        links->star[i] = must_alloc(RANKS * sizeof *links->star[i]);
    for (int i = 0; i < RANKS; i++)
        links->star[0][i] = links->star[1][i] = links->listener[i] = -1;
    return links;
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Member `member` of the group of these evenly spaced ranks reports how many meetings it has begun.
 */
static void report_group(SocketHub *hub, uint64_t id, RankRun run, int member, int64_t meetings)
{
    SocketPacket p = {.group = {.head = {.kind = PACKET_GROUP},
                                .id = id,
                                .name = "some",
                                .size = run.count,
                                .member = member,
                                .meetings = meetings,
                                .runs = 1,
                                .run = {run}}};
    CHECK(socket_hub_take(hub, rank_run_at(&run, member), &p), "member %d", member);
}

/* The rank waits at the first meeting of a group, or computes. */
static void report_wait(SocketHub *hub, int rank, uint64_t group, bool waits, uint64_t asked)
{
    SocketPacket p = {.report = {.head = {.kind = PACKET_REPORT}, .asked = asked}};
    p.report.wait = (SocketWait){.waits = waits,
                                 .meets = waits,
                                 .wait = 1,
                                 .group = group,
                                 .meeting = 1,
                                 .confirmed = asked,
                                 .call = "group some, call 1, barrier"};
    CHECK(socket_hub_take(hub, rank, &p), "rank %d", rank);
}

/* Every rank is in the world's group, in a group of neighbouring ranks and in a group of ranks that
 * are far apart, as on a grid. All ranks but one wait in the world's group. */
static void report_all(SocketHub *hub)
{
    const RankRun world = {.first = 0, .stride = 1, .count = RANKS};
    for (int i = 0; i < RANKS; i++) {
        RankRun near = {.first = i / AXIS * AXIS, .stride = 1, .count = AXIS},
                far = {.first = i % AXIS, .stride = AXIS, .count = RANKS / AXIS};
        report_group(hub, 0, world, i, i != MISSING);
        report_group(hub, (uint64_t)(1 + near.first) << 40, near, i % AXIS, 7);
        report_group(hub, (uint64_t)(1 + far.first) << 40 | 1, far, i / AXIS, 7);
        report_wait(hub, i, 0, i != MISSING, 0);
    }
}

static void wait_for_one(void *context)
{
    SocketService service = {.nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    size_t before = allocated();
    SocketHub *hub = socket_hub_create(&service, make_links(), 1);
    double start = seconds_now(), *most = context;
    report_all(hub);
    CHECK(hub->groups == 1 + AXIS + RANKS / AXIS, "%d groups", hub->groups);
    for (int i = 0; i < 20; i++)
        CHECK(!socket_hub_judge(hub, 0.01), "too soon");
    CHECK(socket_hub_judge(hub, 1), "it asks");
    for (int i = 0; i < RANKS; i++)
        report_wait(hub, i, 0, i != MISSING, hub->asked);
    CHECK(allocated() - before < (size_t)512 << 20, "%zu bytes", allocated() - before);
    CHECK(seconds_now() - start < *most, "%.1f s", seconds_now() - start);
    socket_hub_judge(hub, 0.01);
    (fail)(EXIT_OK, "nobody is blamed");
}

static void test_rank_0_finds_the_one_of_65536_ranks_that_all_others_wait_for(void **state)
{
    char text[1024];
    double most = getenv("TEST_SAMPLE") ? 20 : 4, start = seconds_now();
    (void)state;
    assert_int_equal(child_run(wait_for_one, &most, text, sizeof text), EXIT_HANG);
    if (!strstr(text, "has waited 1 s (parallel.timeout) for rank 40001, which has not arrived"))
        fail_msg("%s", text);
    if (seconds_now() - start > most + 2) fail_msg("%.1f s", seconds_now() - start);
}

/* Half of the ranks have left the world after a meeting. Rank 0 knows the other half only as ranks
 * that wait for the answer of that meeting, which is on its way. */
static void leave_in_order(void *context)
{
    const RankRun world = {.first = 0, .stride = 1, .count = RANKS};
    SocketService service = {.nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    SocketHub *hub = socket_hub_create(&service, make_links(), 1);
    double start = seconds_now(), *most = context;
    for (int i = 0; i < RANKS; i++) {
        report_group(hub, 0, world, i, 1);
        report_wait(hub, i, 0, true, 0);
    }
    for (int i = 0; i < RANKS / 2; i++) {
        SocketPacket p = {.group = {.head = {.kind = PACKET_GROUP},
                                    .size = RANKS,
                                    .member = i,
                                    .meetings = 1,
                                    .closed = true}};
        CHECK(socket_hub_take(hub, i, &p), "rank %d", i);
    }
    for (int i = 0; i < 10; i++)
        CHECK(!socket_hub_judge(hub, 0.01), "nobody is late");
    CHECK(seconds_now() - start < *most, "%.1f s", seconds_now() - start);
    _exit(EXIT_OK);
}

static void test_an_orderly_end_of_65536_ranks_takes_little_work(void **state)
{
    char text[1024];
    double most = getenv("TEST_SAMPLE") ? 20 : 4;
    (void)state;
    if (child_run(leave_in_order, &most, text, sizeof text) != EXIT_OK) fail_msg("%s", text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_0_finds_the_one_of_65536_ranks_that_all_others_wait_for),
        cmocka_unit_test(test_an_orderly_end_of_65536_ranks_takes_little_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
