/* test_socket_packets.c -- packets over streams that transfer a few bytes at a time, packets of
 * invalid length, and which packets rank 0 accepts from other ranks. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "tests/fuzz/fuzz_packets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- streams --------------------------------------------------------------------------------- */

typedef struct {
    int fd[2];
    SocketStream stream; /* uses fd[0]; the test writes to fd[1] and reads from fd[1] */
} Pair;

static Pair make_pair(void)
{
    Pair p = {.fd = {-1, -1}};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, p.fd), 0);
    p.stream.fd = p.fd[0];
    return p;
}

static void free_pair(const Pair *p)
{
    close(p->fd[0]);
    close(p->fd[1]);
}

static SocketPacket random_packet(unsigned *seed)
{
    SocketPacket packet = {0};
    switch (rand_r(seed) % 3) {
    case 0:
        packet.word = socket_word(
            (SocketPacketKind)(PACKET_CLAIM + rand_r(seed) % (PACKET_ENDED - PACKET_CLAIM + 1)));
        packet.word.asked = (uint64_t)rand_r(seed);
        packet.word.rank = rand_r(seed) % 5;
        break;
    case 1:
        packet.report = (SocketReport){.head = {.kind = PACKET_REPORT}, .asked = 7};
        packet.report.wait.whos = rand_r(seed) % (SOCKET_NAMED + 1);
        packet.report.wait.gones = rand_r(seed) % (SOCKET_NAMED + 1);
        packet.report.wait.rank[0] = rand_r(seed);
        packet.head.bytes = (uint32_t)socket_report_bytes(&packet.report);
        break;
    default:
        packet.group = (SocketGroupReport){.head = {.kind = PACKET_GROUP}};
        packet.group.runs = rand_r(seed) % (RUNS_IN_PACKET + 1);
        packet.group.id = (uint64_t)rand_r(seed);
        packet.head.bytes = (uint32_t)socket_group_report_bytes(&packet.group);
    }
    return packet;
}

/* Passes on some of what `from` has sent to `to`: a piece of random length, as a network may do. */
static void pass_some(const Pair *from, const Pair *to, unsigned *seed)
{
    char bytes[PACKET_BYTES];
    ssize_t n = read(from->fd[1], bytes, 1 + (size_t)rand_r(seed) % 300);
    if (n > 0) assert_int_equal(write(to->fd[1], bytes, (size_t)n), n);
}

static void test_packets_arrive_whole_and_in_order_however_they_are_split(void **state)
{
    enum { PACKETS = 2000 };
    Pair a = make_pair(), b = make_pair();
    unsigned seed = 1, again = 1;
    int sent = 0, taken = 0, small = 1;
    SocketPacket next = random_packet(&seed), packet;
    (void)state;
    /* With so small a buffer the system accepts only parts of packets. */
    setsockopt(a.fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    unsigned pieces = 2;
    while (taken < PACKETS) {
        while (sent < PACKETS && socket_stream_put(&a.stream, &next)) {
            sent++;
            next = random_packet(&seed);
        }
        socket_stream_flush(&a.stream);
        pass_some(&a, &b, &pieces);
        while (socket_stream_take(&b.stream, &packet)) {
            SocketPacket expected = random_packet(&again);
            assert_memory_equal(&packet, &expected, expected.head.bytes);
            taken++;
        }
        assert_false(b.stream.lost);
    }
    free_pair(&a);
    free_pair(&b);
}

static void test_a_peer_that_sends_an_invalid_packet_counts_as_lost(void **state)
{
    const struct {
        SocketPacketHead head;
    } bad[] = {{{0, PACKET_ASK, 0}},
               {{sizeof(SocketPacketHead) - 1, PACKET_ASK, 0}},
               {{PACKET_BYTES + 1, PACKET_REPORT, 0}},
               {{UINT32_MAX, PACKET_REPORT, 0}},
               {{sizeof(SocketWord), -1, 0}},
               {{sizeof(SocketWord), PACKET_ENDED + 1, 0}},
               {{sizeof(SocketWord) - 4, PACKET_ASK, 0}},
               {{sizeof(SocketWord) + 4, PACKET_ASK, 0}},
               {{sizeof(SocketReport), PACKET_REPORT, 0}}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Pair p = make_pair();
        SocketWord word = socket_word(PACKET_ASK);
        SocketPacket packet = {.head = bad[i].head};
        assert_int_equal(write(p.fd[1], &word, sizeof word), sizeof word);
        assert_int_equal(write(p.fd[1], &packet, sizeof packet), sizeof packet);
        assert_true(socket_stream_take(&p.stream, &packet)); /* the valid packet before it is still
                                                              * delivered */
        assert_false(socket_stream_take(&p.stream, &packet));
        if (!p.stream.lost) fail_msg("bad packet %d is accepted", (int)i);
        free_pair(&p);
    }
}

static void test_an_incomplete_packet_is_not_delivered(void **state)
{
    Pair p = make_pair();
    SocketWord word = socket_word(PACKET_ASK);
    SocketPacket packet;
    (void)state;
    for (size_t n = 0; n < sizeof word; n++) {
        assert_false(socket_stream_take(&p.stream, &packet));
        assert_false(p.stream.lost);
        assert_int_equal(write(p.fd[1], (char *)&word + n, 1), 1);
    }
    assert_true(socket_stream_take(&p.stream, &packet));
    assert_int_equal(write(p.fd[1], &word, sizeof word - 1), sizeof word - 1);
    shutdown(p.fd[1], SHUT_WR);
    assert_false(socket_stream_take(&p.stream, &packet));
    assert_true(p.stream.lost);
    free_pair(&p);
}

static void test_a_packet_counts_as_being_sent_until_the_other_side_has_it(void **state)
{
    Pair p = make_pair();
    SocketWord word = socket_word(PACKET_ASK);
    (void)state;
    assert_false(socket_stream_is_sending(&p.stream));
    assert_true(socket_stream_put(&p.stream, &word));
    assert_int_equal(p.stream.left, 0);
    assert_true(socket_stream_is_sending(&p.stream));
    assert_int_equal(read(p.fd[1], &word, sizeof word), sizeof word);
    assert_false(socket_stream_is_sending(&p.stream));
    free_pair(&p);
}

/* If a receiver is stopped, packets are queued only as long as there is room for a whole one. */
static void test_a_packet_that_does_not_fit_is_refused_as_a_whole(void **state)
{
    Pair p = make_pair();
    SocketWord word = socket_word(PACKET_ASK);
    int sent = 0;
    (void)state;
    while (socket_stream_put(&p.stream, &word))
        sent++;
    assert_true(p.stream.left > 0 && !p.stream.shut);
    int left = p.stream.left;
    assert_false(socket_stream_put(&p.stream, &word));
    assert_int_equal(p.stream.left, left);
    assert_true(sent > 0);
    close(p.fd[1]);
    socket_stream_flush(&p.stream);
    assert_true(p.stream.shut);
    assert_false(socket_stream_put(&p.stream, &word));
    close(p.fd[0]);
}

/* ---- any bytes ------------------------------------------------------------------------------- */

/* Packets that a rank may send, with a few bytes changed. */
static void test_altered_packets_do_not_damage_the_state_of_rank_0(void **state)
{
    unsigned seed = 5;
    int runs = getenv("TEST_SAMPLE") ? 500 : 5000;
    (void)state;
    for (int i = 0; i < runs; i++) {
        unsigned char bytes[8 * PACKET_BYTES];
        size_t n = 0;
        for (int k = rand_r(&seed) % 8; k >= 0; k--) {
            SocketPacket p = random_packet(&seed);
            if (p.head.kind == PACKET_GROUP) { /* make it a report that a rank may send */
                p.group.runs = 1;
                p.group.size = 3;
                p.group.member = 1;
                p.group.id %= 3;
                p.group.run[0] = (RankRun){.first = 1, .stride = 1, .count = 3};
                p.head.bytes = (uint32_t)socket_group_report_bytes(&p.group);
            }
            p.head.rank = 2 + rand_r(&seed) % 2;
            memcpy(bytes + n, &p, p.head.bytes);
            n += p.head.bytes;
        }
        for (int k = rand_r(&seed) % 4; k > 0; k--)
            bytes[(size_t)rand_r(&seed) % n] = (unsigned char)rand_r(&seed);
        fuzz_packets(bytes, n);
    }
}

/* ---- what rank 0 accepts --------------------------------------------------------------------- */

static SocketHub *make_hub(SocketService *service, SocketLinks **links, int ranks)
{
    char err[256];
    *service = (SocketService){.wake = -1};
    *links = socket_links_create(ranks, err, sizeof err);
    assert_non_null(*links);
    return socket_hub_create(service, *links, 1);
}

static SocketPacket group_of(int size, int member, const int *rank)
{
    SocketPacket p = {.group = {.head = {.kind = PACKET_GROUP}, .id = 5, .size = size}};
    p.group.member = member;
    p.group.meetings = 1;
    p.group.runs = rank_runs(rank, size, p.group.run, RUNS_IN_PACKET);
    p.head.bytes = (uint32_t)socket_group_report_bytes(&p.group);
    return p;
}

static void test_rank_0_rejects_reports_that_no_rank_can_make(void **state)
{
    static const int members[] = {1, 3, 2};
    SocketService service;
    SocketLinks *links;
    SocketHub *hub = make_hub(&service, &links, 4);
    SocketPacket p = group_of(3, 1, members);
    (void)state;
    assert_true(socket_hub_take(hub, 3, &p));
    assert_int_equal(socket_hub_group(hub, 5)->known, 3);
    assert_int_equal(socket_members_find(&socket_hub_group(hub, 5)->members, 2), 2);
    assert_false(socket_hub_take(hub, 2, &p)); /* rank 2 is not the member that the report names */
    SocketPacket bad = p;
    bad.group.size = 2; /* the group has three members */
    assert_false(socket_hub_take(hub, 3, &bad));
    static const int sizes[] = {-1, 0, 5}; /* impossible in a world of 4 ranks */
    for (int i = 0; i < 3; i++) {
        bad = group_of(3, 0, members);
        bad.group.id = 6;
        bad.group.size = sizes[i];
        assert_false(socket_hub_take(hub, 1, &bad));
    }
    const RankRun runs[] = {{.first = 2, .stride = 1, .count = 3}, /* contains rank 4, which does
                                                                    * not exist */
                            {.first = 1, .stride = 1, .count = 0},
                            {.first = -1, .stride = 1, .count = 2},
                            {.first = 0, .stride = INT32_MAX, .count = 3},
                            {.first = 0, .stride = 1, .count = 4}}; /* more than three members */
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        bad = group_of(3, 1, members);
        bad.group.id = 7;
        bad.group.runs = 1;
        bad.group.run[0] = runs[i];
        if (socket_hub_take(hub, 3, &bad)) fail_msg("run %d is accepted", (int)i);
    }
    bad = (SocketPacket){.report = {.head = {.kind = PACKET_REPORT}, .wait = {.whos = 1}}};
    assert_true(socket_hub_take(hub, 3, &bad));
    bad.report.wait.rank[0] = 4;
    assert_false(socket_hub_take(hub, 3, &bad));
    bad.word = socket_word(PACKET_VERDICT); /* only rank 0 sends verdicts */
    assert_false(socket_hub_take(hub, 3, &bad));
    bad = (SocketPacket){.watched = {.head = {.kind = PACKET_WATCHED}, .calls = 2, .at = 1}};
    bad.watched.call = (WatchedCall){.rank = 3, .members = watched_members(members, 3)};
    assert_true(socket_hub_take(hub, 3, &bad));
    assert_false(socket_hub_take(hub, 2, &bad));
    bad.watched.at = 2;
    assert_false(socket_hub_take(hub, 3, &bad));
    socket_hub_destroy(hub);
    socket_links_destroy(links);
}

/* If the ranks of a group are so unevenly spaced that one packet cannot hold the list, member 0
 * sends it in several. */
static void test_rank_0_learns_the_ranks_of_an_uneven_group_from_several_packets(void **state)
{
    enum { RANKS = 2000, SIZE = 600 };
    static int rank[SIZE];
    SocketService service;
    SocketLinks *links;
    SocketHub *hub = make_hub(&service, &links, RANKS);
    (void)state;
    for (int i = 0; i < SIZE; i++)
        rank[i] = (i * i * 7 + 3 * i) % 4 + 3 * (SIZE - 1 - i); /* descending, uneven */
    SocketPacket p = group_of(SIZE, 17, rank);
    assert_true(p.group.runs > RUNS_IN_PACKET);
    p.group.runs = 0;
    assert_true(socket_hub_take(hub, rank[17], &p));
    SocketHubGroup *group = socket_hub_group(hub, 5);
    assert_int_equal(group->known, 1);
    for (int at = 0; at < SIZE;) {
        p = (SocketPacket){.group = {.head = {.kind = PACKET_GROUP}, .id = 5, .size = SIZE}};
        p.group.at = at;
        while (at < SIZE && p.group.runs < RUNS_IN_PACKET)
            at += rank_run_next(rank + at, SIZE - at, &p.group.run[p.group.runs++]);
        assert_true(socket_hub_take(hub, rank[0], &p));
    }
    assert_int_equal(group->known, SIZE);
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(socket_members_find(&group->members, rank[i]), i);
    assert_int_equal(socket_members_find(&group->members, RANKS - 1), -1);
    socket_hub_destroy(hub);
    socket_links_destroy(links);
}

/* Groups are found by id, however many there are, until all their members have left. */
static void test_groups_are_kept_until_all_members_have_left(void **state)
{
    enum { GROUPS = 5000 };
    static const int members[] = {0, 1};
    SocketService service;
    SocketLinks *links;
    SocketHub *hub = make_hub(&service, &links, 2);
    (void)state;
    for (int closed = 0; closed < 2; closed++)
        for (int i = 1; i <= GROUPS; i++)
            for (int rank = 0; rank < 2; rank++) {
                SocketPacket p = group_of(2, rank, members);
                p.group.id = (uint64_t)i << 40;
                p.group.closed = closed;
                assert_true(socket_hub_take(hub, rank, &p));
                bool left = closed && rank == 1;
                assert_int_equal(socket_hub_group(hub, p.group.id) == NULL, left);
            }
    assert_int_equal(hub->groups, 1); /* the world */
    socket_hub_destroy(hub);
    socket_links_destroy(links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packets_arrive_whole_and_in_order_however_they_are_split),
        cmocka_unit_test(test_a_peer_that_sends_an_invalid_packet_counts_as_lost),
        cmocka_unit_test(test_an_incomplete_packet_is_not_delivered),
        cmocka_unit_test(test_a_packet_counts_as_being_sent_until_the_other_side_has_it),
        cmocka_unit_test(test_a_packet_that_does_not_fit_is_refused_as_a_whole),
        cmocka_unit_test(test_altered_packets_do_not_damage_the_state_of_rank_0),
        cmocka_unit_test(test_rank_0_rejects_reports_that_no_rank_can_make),
        cmocka_unit_test(test_rank_0_learns_the_ranks_of_an_uneven_group_from_several_packets),
        cmocka_unit_test(test_groups_are_kept_until_all_members_have_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
