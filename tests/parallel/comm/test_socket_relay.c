/* test_socket_relay.c -- which control packets a rank of the control tree forwards, to which ranks,
 * and when. Its thread does not run: the test holds the other end of each connection. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* Rank 3 of 19: its parent is rank 1, its children are 7 and 8. Rank 8 is the parent of 17 and 18.
 */
enum { WORLD = 19, SELF = 3, CHILDREN = 2, TIMEOUT = 10 };
enum { TO_STAR, TO_PARENT, TO_7, TO_8, ENDS };

typedef struct {
    SocketService service;
    SocketLinks links;
    int parent[WORLD], star[2][WORLD];
    SocketStream end[ENDS]; /* the test's ends of the connections */
} Fixture;

/* Returns the rank's end of a new connection; the other one is the test's. */
static int connect_end(Fixture *f, int which)
{
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    f->end[which].fd = fd[1];
    return fd[0];
}

static void plant(Fixture *f)
{
    static const int rank[CHILDREN] = {7, 8};
    int parent = connect_end(f, TO_PARENT), fd[CHILDREN] = {0};
    for (int k = 0; k < CHILDREN; k++)
        fd[k] = connect_end(f, TO_7 + k);
    socket_relay_plant(&f->service, parent, CHILDREN, rank, fd);
}

static Fixture *open_fixture(void)
{
    Fixture *f = must_calloc(1, sizeof *f);
    for (int r = 0; r < WORLD; r++)
        f->parent[r] = r == 0 ? -1 : (r - 1) / 2;
    memset(f->star, -1, sizeof f->star);
    f->links = (SocketLinks){
        .ranks = WORLD, .joined = true, .star = {f->star[0], f->star[1]}, .parent = f->parent};
    f->service = (SocketService){.links = &f->links,
                                 .rank = SELF,
                                 .timeout = TIMEOUT,
                                 .wake = eventfd(0, EFD_NONBLOCK),
                                 .relay = {.parent = {.fd = -1}, .suspect = -1}};
    pthread_mutex_init(&f->service.sends, NULL);
    pthread_mutex_init(&f->service.mutex, NULL);
    f->service.zero.fd = f->star[1][SELF] = connect_end(f, TO_STAR);
    return f;
}

static void close_fixture(Fixture *f)
{
    socket_relay_close(&f->service);
    if (f->service.zero.fd >= 0) close(f->service.zero.fd);
    close(f->service.wake);
    for (int i = 0; i < ENDS; i++)
        if (f->end[i].fd > 0) close(f->end[i].fd);
    free(f);
}

/* Makes the rank switch to the tree: the test, as rank 0, closes the star's connection. */
static void use_tree(Fixture *f)
{
    SocketPacket packet;
    plant(f);
    socket_relay_stands(&f->service);
    socket_relay_serve(&f->service);
    close(f->end[TO_STAR].fd);
    f->end[TO_STAR].fd = -1;
    assert_false(socket_stream_take(&f->service.zero, &packet));
    socket_relay_serve(&f->service);
    assert_int_equal(f->service.relay.up, UP_TREE);
    for (int i = TO_PARENT; i < ENDS; i++) /* discard the signs of life */
        while (socket_stream_take(&f->end[i], &packet))
            assert_int_equal(packet.head.kind, PACKET_ALIVE);
}

static SocketWord word_of(SocketPacketKind kind, int rank)
{
    SocketWord word = socket_word(kind);
    word.head.rank = rank;
    return word;
}

static bool takes(Fixture *f, int end, SocketPacket *packet)
{
    return socket_stream_take(&f->end[end], packet);
}

/* Receives the next packet at this end, which must be of this kind and rank. Returns it. */
static SocketWord expect_word(Fixture *f, int end, SocketPacketKind kind, int rank)
{
    SocketPacket packet;
    assert_true(takes(f, end, &packet));
    assert_int_equal(packet.head.kind, kind);
    assert_int_equal(packet.head.rank, rank);
    return packet.word;
}

static void expect_nothing(Fixture *f, int end)
{
    SocketPacket packet;
    assert_false(takes(f, end, &packet));
}

/* Queues packets for the parent until the socket takes no more, so that there is no room. */
static void fill_parent(Fixture *f)
{
    SocketWord claim = word_of(PACKET_CLAIM, SELF);
    while (f->service.relay.parent.left == 0)
        assert_true(socket_relay_put(&f->service, &claim));
}

/* ---- upwards --------------------------------------------------------------------------------- */

static void test_a_rank_uses_the_tree_once_rank_0_has_closed_its_star_connection(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    SocketService *s = &f->service;
    SocketWord claim = word_of(PACKET_CLAIM, SELF);
    SocketPacket packet;
    plant(f);
    s->relay.quiet = TIMEOUT;
    s->relay.suspect = 1;
    socket_relay_serve(s);
    assert_int_equal(s->relay.up, UP_STAR);
    assert_int_equal(socket_relay_suspect(s), 0); /* the rank does not depend on its parent yet */
    assert_true(socket_relay_put(s, &claim));
    expect_word(f, TO_STAR, PACKET_CLAIM, SELF);
    socket_relay_stands(s);
    socket_relay_serve(s);
    assert_int_equal(s->relay.up, UP_LEAVES);
    assert_int_equal(socket_relay_suspect(s), 0);
    expect_word(f, TO_STAR, PACKET_TREE, SELF);
    assert_false(socket_relay_put(s, &claim)); /* packets must not overtake each other */
    expect_nothing(f, TO_PARENT);
    close(f->end[TO_STAR].fd);
    f->end[TO_STAR].fd = -1;
    assert_false(socket_stream_take(&s->zero, &packet));
    socket_relay_serve(s);
    assert_int_equal(s->relay.up, UP_TREE);
    assert_true(socket_relay_put(s, &claim));
    expect_word(f, TO_PARENT, PACKET_CLAIM, SELF);
    close_fixture(f);
}

static void test_a_child_may_send_packets_only_of_itself_and_ranks_below_it(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    const SocketWord own = word_of(PACKET_CLAIM, 8), below = word_of(PACKET_CLAIM, 18),
                     other = word_of(PACKET_CLAIM, 7);
    use_tree(f);
    assert_true(socket_stream_put(&f->end[TO_8], &own));
    assert_true(socket_stream_put(&f->end[TO_8], &below));
    socket_relay_serve(&f->service);
    expect_word(f, TO_PARENT, PACKET_CLAIM, 8);
    expect_word(f, TO_PARENT, PACKET_CLAIM, 18);
    assert_true(socket_stream_put(&f->end[TO_8], &other));
    socket_relay_serve(&f->service);
    SocketWord lost = expect_word(f, TO_PARENT, PACKET_LOST, SELF);
    assert_int_equal(lost.rank, 8);
    assert_int_equal(lost.code, EXIT_PEER_LOST);
    socket_relay_serve(&f->service);
    expect_nothing(f, TO_PARENT); /* the loss is reported only once */
    close_fixture(f);
}

static void test_a_lost_child_is_reported_unless_all_ranks_have_left(void **state)
{
    (void)state;
    for (int farewell = 0; farewell <= 1; farewell++) {
        Fixture *f = open_fixture();
        use_tree(f);
        f->service.farewell = farewell;
        close(f->end[TO_7].fd);
        f->end[TO_7].fd = -1;
        socket_relay_serve(&f->service);
        if (farewell)
            expect_nothing(f, TO_PARENT);
        else
            assert_int_equal(expect_word(f, TO_PARENT, PACKET_LOST, SELF).rank, 7);
        close_fixture(f);
    }
}

static void test_packets_of_children_wait_while_the_buffer_to_the_parent_is_full(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    const SocketWord claim = word_of(PACKET_CLAIM, 7);
    struct pollfd own[SERVICE_FDS] = {{.fd = f->service.wake, .events = POLLIN}};
    SocketPacket packet;
    int n, claims = 0;
    use_tree(f);
    fill_parent(f);
    assert_true(socket_stream_put(&f->end[TO_7], &claim));
    socket_relay_serve(&f->service);
    struct pollfd *fd = socket_relay_poll(&f->service, own, &n);
    assert_int_equal(n, SERVICE_FDS + CHILDREN);
    assert_int_equal(fd[2].fd, f->service.relay.parent.fd);
    assert_int_equal(fd[2].events, POLLIN | POLLOUT);
    assert_int_equal(fd[3].fd, -1);
    assert_int_equal(fd[4].fd, -1);
    while (takes(f, TO_PARENT, &packet)) {
        assert_int_equal(packet.head.rank, SELF);
        socket_relay_flush(&f->service);
    }
    socket_relay_serve(&f->service);
    while (takes(f, TO_PARENT, &packet))
        claims += packet.head.rank == 7;
    assert_int_equal(claims, 1);
    close_fixture(f);
}

static void test_a_rank_polls_rank_0_first_and_later_its_parent_and_children(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    struct pollfd own[SERVICE_FDS] = {{.fd = f->service.wake, .events = POLLIN}};
    int n;
    assert_ptr_equal(socket_relay_poll(&f->service, own, &n), own);
    assert_int_equal(n, SERVICE_FDS);
    assert_int_equal(own[1].fd, f->service.zero.fd);
    assert_int_equal(own[2].fd, -1);
    use_tree(f);
    struct pollfd *fd = socket_relay_poll(&f->service, own, &n);
    assert_int_equal(n, SERVICE_FDS + CHILDREN);
    assert_int_equal(fd[0].fd, f->service.wake);
    assert_int_equal(fd[1].fd, -1);
    assert_int_equal(fd[2].fd, f->service.relay.parent.fd);
    for (int k = 0; k < CHILDREN; k++) {
        assert_int_equal(fd[SERVICE_FDS + k].fd, f->service.relay.child[k].fd);
        assert_int_equal(fd[SERVICE_FDS + k].events, POLLIN);
    }
    close_fixture(f);
}

/* ---- downwards ------------------------------------------------------------------------------- */

static void test_packets_from_the_parent_reach_the_ranks_they_are_addressed_to(void **state)
{
    (void)state;
    static const struct {
        SocketPacketKind kind;
        int to;
        bool to_7, to_8;
    } rows[] = {
        {PACKET_GRANT, 7, true, false},    {PACKET_GRANT, 8, false, true},
        {PACKET_GRANT, 18, false, true},   {PACKET_GRANT, SELF, false, false},
        {PACKET_GRANT, 4, false, false},   {PACKET_GRANT, WORLD, false, false},
        {PACKET_VERDICT, -1, true, true},  {PACKET_ASK, -1, true, true},
        {PACKET_FAREWELL, -1, true, true}, {PACKET_LOST, -1, true, true},
        {PACKET_ALIVE, -1, false, false},  {PACKET_REPORT, -1, false, false},
        {PACKET_TREE, -1, false, false},   {PACKET_ENDED, -1, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Fixture *f = open_fixture();
        const SocketWord word = word_of(rows[i].kind, rows[i].to);
        use_tree(f);
        socket_relay_down(&f->service, &word);
        if (rows[i].to_7) expect_word(f, TO_7, rows[i].kind, rows[i].to);
        if (rows[i].to_8) expect_word(f, TO_8, rows[i].kind, rows[i].to);
        expect_nothing(f, TO_7);
        expect_nothing(f, TO_8);
        close_fixture(f);
    }
}

/* A child that reads nothing gets no more questions, but still gets packets that are sent once. */
static void test_an_unsent_question_holds_back_further_questions_but_no_verdict(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    const SocketWord ask = word_of(PACKET_ASK, -1), verdict = word_of(PACKET_VERDICT, -1);
    use_tree(f);
    SocketStream *child = &f->service.relay.child[0];
    while (child->left == 0)
        socket_relay_down(&f->service, &ask);
    int left = child->left;
    socket_relay_down(&f->service, &ask);
    assert_int_equal(child->left, left);
    socket_relay_down(&f->service, &verdict);
    assert_int_equal(child->left, left + (int)sizeof verdict);
    close_fixture(f);
}

static void test_the_end_of_this_rank_is_reported_to_all_ranks_below_it(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    use_tree(f);
    socket_relay_end(&f->service, PACKET_VERDICT, EXIT_INPUT_OUTPUT);
    for (int end = TO_7; end <= TO_8; end++) {
        SocketWord word = expect_word(f, end, PACKET_VERDICT, -1);
        assert_int_equal(word.rank, -1);
        assert_int_equal(word.code, EXIT_INPUT_OUTPUT);
    }
    expect_nothing(f, TO_PARENT);
    close_fixture(f);
}

/* At the end a rank waits until its children have ended, but for at most a second. */
static void test_at_the_end_a_rank_waits_for_its_children_but_not_forever(void **state)
{
    (void)state;
    for (int open = 0; open <= 1; open++) {
        Fixture *f = open_fixture();
        const SocketWord late = word_of(PACKET_ALIVE, 7);
        use_tree(f);
        assert_true(socket_stream_put(&f->end[TO_7], &late)); /* must not disturb the end */
        for (int end = TO_7 + open; end <= TO_8; end++) {
            close(f->end[end].fd);
            f->end[end].fd = -1;
        }
        double start = seconds_now();
        socket_relay_part(&f->service);
        double seconds = seconds_now() - start;
        assert_true(open ? seconds >= 1 : seconds < 0.9);
        close_fixture(f);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void test_a_sign_of_life_tells_children_which_rank_above_is_silent(void **state)
{
    (void)state;
    static const struct {
        double silent, quiet;
        int suspect, named;
    } rows[] = {
        {0, 0, -1, -1},
        {0, TIMEOUT, -1, -1},     /* rank 0 was heard, so no rank above is named */
        {TIMEOUT, TIMEOUT, 1, 1}, /* the parent is silent */
        {TIMEOUT, 0, 1, 1},       /* the parent has reported this suspect */
        {TIMEOUT, 0, -1, -1},     /* rank 0 itself is silent */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Fixture *f = open_fixture();
        use_tree(f);
        f->service.silent = rows[i].silent;
        f->service.relay.quiet = rows[i].quiet;
        f->service.relay.suspect = rows[i].suspect;
        f->service.relay.alive = 0; /* long ago */
        socket_relay_serve(&f->service);
        assert_int_equal(expect_word(f, TO_7, PACKET_ALIVE, 7).rank, rows[i].named);
        assert_int_equal(expect_word(f, TO_8, PACKET_ALIVE, 8).rank, rows[i].named);
        socket_relay_serve(&f->service); /* no second sign of life within a heartbeat */
        expect_nothing(f, TO_7);
        close_fixture(f);
    }
}

/* A rank that has left sends no reports, but rank 0 must know that it still forwards packets. */
static void test_a_rank_that_has_left_still_tells_rank_0_that_it_is_alive(void **state)
{
    (void)state;
    Fixture *f = open_fixture();
    use_tree(f);
    f->service.relay.left = true;
    f->service.relay.alive = 0;
    socket_relay_serve(&f->service);
    expect_word(f, TO_PARENT, PACKET_ALIVE, SELF);
    close_fixture(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_uses_the_tree_once_rank_0_has_closed_its_star_connection),
        cmocka_unit_test(test_a_child_may_send_packets_only_of_itself_and_ranks_below_it),
        cmocka_unit_test(test_a_lost_child_is_reported_unless_all_ranks_have_left),
        cmocka_unit_test(test_packets_of_children_wait_while_the_buffer_to_the_parent_is_full),
        cmocka_unit_test(test_a_rank_polls_rank_0_first_and_later_its_parent_and_children),
        cmocka_unit_test(test_packets_from_the_parent_reach_the_ranks_they_are_addressed_to),
        cmocka_unit_test(test_an_unsent_question_holds_back_further_questions_but_no_verdict),
        cmocka_unit_test(test_the_end_of_this_rank_is_reported_to_all_ranks_below_it),
        cmocka_unit_test(test_at_the_end_a_rank_waits_for_its_children_but_not_forever),
        cmocka_unit_test(test_a_sign_of_life_tells_children_which_rank_above_is_silent),
        cmocka_unit_test(test_a_rank_that_has_left_still_tells_rank_0_that_it_is_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
