/* test_handshake.c -- two processes prove to each other that they know a secret. They know the same
 * one or different ones, or the peer sends recorded, reflected, truncated or invented bytes. */
#include "parallel/comm/socket/handshake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const unsigned char SECRET[SHA256_BYTES] = "thirty-two bytes that both know";
static const unsigned char OTHER[SHA256_BYTES] = "thirty-two bytes of another job";

enum { CONNECTS, ACCEPTS };
static const int32_t RANK[2] = {7, 3};

/* The two sides of a handshake, each with its end of the connection. */
typedef struct {
    Handshake side[2];
    int fd[2];
} Pair;

static void begin(Pair *p, const unsigned char *connecting, const unsigned char *accepting)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, p->fd), 0);
    handshake_begin(&p->side[CONNECTS], connecting, false, RANK[CONNECTS]);
    handshake_begin(&p->side[ACCEPTS], accepting, true, RANK[ACCEPTS]);
}

static void end(Pair *p)
{
    close(p->fd[0]);
    close(p->fd[1]);
}

/* Moves both sides until nothing changes. */
static void move_both(Pair *p)
{
    for (int i = 0; i < 8; i++)
        handshake_move(&p->side[i % 2], p->fd[i % 2]);
}

static void assert_states(const Pair *p, HandshakeState connecting, HandshakeState accepting)
{
    assert_int_equal(p->side[CONNECTS].state, connecting);
    assert_int_equal(p->side[ACCEPTS].state, accepting);
}

static void test_two_sides_with_the_same_secret_accept_each_other(void **state)
{
    Pair p;
    char text[8];
    (void)state;
    begin(&p, SECRET, SECRET);
    move_both(&p);
    assert_states(&p, HANDSHAKE_PROVEN, HANDSHAKE_PROVEN);
    assert_int_equal(p.side[CONNECTS].peer_rank, 3);
    assert_int_equal(p.side[ACCEPTS].peer_rank, 7);
    assert_int_equal(handshake_move(&p.side[ACCEPTS], p.fd[ACCEPTS]), HANDSHAKE_PROVEN);
    end(&p);
    /* What follows the handshake is not read. */
    begin(&p, SECRET, SECRET);
    handshake_move(&p.side[CONNECTS], p.fd[CONNECTS]);
    handshake_move(&p.side[ACCEPTS], p.fd[ACCEPTS]);
    handshake_move(&p.side[CONNECTS], p.fd[CONNECTS]);
    assert_int_equal(send(p.fd[CONNECTS], "after", 5, 0), 5);
    assert_int_equal(handshake_move(&p.side[ACCEPTS], p.fd[ACCEPTS]), HANDSHAKE_PROVEN);
    assert_int_equal(recv(p.fd[ACCEPTS], text, sizeof text, 0), 5);
    assert_int_equal(send(p.fd[ACCEPTS], "then", 4, 0), 4);
    assert_int_equal(handshake_move(&p.side[CONNECTS], p.fd[CONNECTS]), HANDSHAKE_PROVEN);
    assert_int_equal(recv(p.fd[CONNECTS], text, sizeof text, 0), 4);
    end(&p);
}

static void test_a_wrong_secret_is_refused_on_both_sides(void **state)
{
    Pair p;
    unsigned char one_bit[SHA256_BYTES];
    (void)state;
    memcpy(one_bit, SECRET, sizeof one_bit);
    one_bit[31] ^= 1;
    for (int i = 0; i < 3; i++) {
        begin(&p, i == 0 ? OTHER : i == 1 ? SECRET : one_bit, i == 1 ? OTHER : SECRET);
        move_both(&p);
        assert_states(&p, HANDSHAKE_REFUSED, HANDSHAKE_REFUSED);
        assert_int_equal(p.side[CONNECTS].reason, HANDSHAKE_WRONG_SECRET);
        assert_int_equal(p.side[ACCEPTS].reason, HANDSHAKE_WRONG_SECRET);
        assert_int_equal(p.side[ACCEPTS].peer_rank, -1);
        end(&p);
    }
}

static void test_another_name_or_version_is_distinguished_from_a_wrong_secret(void **state)
{
    Pair p;
    (void)state;
    begin(&p, OTHER, SECRET);
    handshake_name(&p.side[CONNECTS], 0x123456789);
    handshake_name(&p.side[ACCEPTS], 0x123456788);
    move_both(&p);
    assert_states(&p, HANDSHAKE_REFUSED, HANDSHAKE_REFUSED);
    assert_int_equal(p.side[CONNECTS].reason, HANDSHAKE_OTHER_NAME);
    assert_int_equal(p.side[ACCEPTS].reason, HANDSHAKE_OTHER_NAME);
    end(&p);
    begin(&p, SECRET, SECRET);
    handshake_name(&p.side[CONNECTS], 5);
    handshake_name(&p.side[ACCEPTS], 5);
    move_both(&p);
    assert_states(&p, HANDSHAKE_PROVEN, HANDSHAKE_PROVEN);
    end(&p);
    begin(&p, SECRET, SECRET);
    p.side[CONNECTS].out[8] = p.side[CONNECTS].hello[8] = HANDSHAKE_VERSION + 1;
    move_both(&p);
    assert_states(&p, HANDSHAKE_GOES_ON, HANDSHAKE_REFUSED);
    assert_int_equal(p.side[ACCEPTS].reason, HANDSHAKE_OTHER_VERSION);
    assert_int_equal(p.side[ACCEPTS].peer_version, HANDSHAKE_VERSION + 1);
    end(&p);
    begin(&p, SECRET, SECRET);
    p.side[ACCEPTS].hello[8] = HANDSHAKE_VERSION + 1;
    move_both(&p);
    assert_int_equal(p.side[CONNECTS].state, HANDSHAKE_REFUSED);
    assert_int_equal(p.side[CONNECTS].reason, HANDSHAKE_OTHER_VERSION);
    end(&p);
}

/* A process between the two sides, which passes bytes on in pieces and records them. */
typedef struct {
    Pair p;
    int fd[2]; /* the other ends of the two sides' connections */
    int piece;
    unsigned char record[2][HANDSHAKE_BYTES];
    int recorded[2];
    /* In what side `victim` sends, byte `at` is changed or, if `cuts`, this byte and all later ones
     * are cut off. -1: nothing is changed */
    int victim, at;
    bool cuts;
} Middle;

/* Passes on a piece of what side i has sent. Returns whether there was one. */
static bool pass(Middle *m, int i)
{
    unsigned char bytes[HANDSHAKE_BYTES];
    handshake_move(&m->p.side[i], m->p.fd[i]);
    ssize_t got = recv(m->fd[i], bytes, (size_t)m->piece, MSG_DONTWAIT);
    if (got <= 0) return false;
    memcpy(m->record[i] + m->recorded[i], bytes, (size_t)got);
    int at = i == m->victim ? m->at - m->recorded[i] : -1;
    m->recorded[i] += (int)got;
    if (at >= 0 && at < got) {
        if (m->cuts) got = at;
        bytes[at] ^= 4;
    }
    if (got > 0 && send(m->fd[1 - i], bytes, (size_t)got, MSG_NOSIGNAL) < 0) return false;
    if (m->cuts && at >= 0 && at <= got) shutdown(m->fd[1 - i], SHUT_WR);
    return true;
}

static void handshake_through(Middle *m)
{
    begin(&m->p, SECRET, SECRET);
    end(&m->p);
    for (int i = 0; i < 2; i++) {
        int both[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
        m->p.fd[i] = both[0];
        m->fd[i] = both[1];
    }
    for (bool moved = true; moved;) {
        moved = pass(m, CONNECTS);
        moved |= pass(m, ACCEPTS);
    }
    move_both(&m->p);
    end(&m->p);
    close(m->fd[0]);
    close(m->fd[1]);
}

static void test_a_handshake_succeeds_if_its_bytes_arrive_one_by_one(void **state)
{
    (void)state;
    for (int piece = 1; piece <= HANDSHAKE_BYTES; piece += 1 + piece / 3) {
        Middle m = {.piece = piece, .victim = -1};
        handshake_through(&m);
        assert_states(&m.p, HANDSHAKE_PROVEN, HANDSHAKE_PROVEN);
        assert_int_equal(m.recorded[CONNECTS], HANDSHAKE_BYTES);
        assert_int_equal(m.recorded[ACCEPTS], HANDSHAKE_BYTES);
    }
}

/* At each byte of an otherwise valid handshake in turn, one bit is changed or the connection is
 * cut. */
static void test_no_truncated_or_altered_handshake_is_accepted(void **state)
{
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        for (int at = 0; at < HANDSHAKE_BYTES; at++) {
            for (int cuts = 0; cuts < 2; cuts++) {
                Middle m = {.piece = 13, .victim = victim, .at = at, .cuts = cuts};
                handshake_through(&m);
                HandshakeState receiver = m.p.side[1 - victim].state;
                if (receiver != (cuts ? HANDSHAKE_LOST : HANDSHAKE_REFUSED))
                    fail_msg("side %d, byte %d, cut %d: state %d", victim, at, cuts, receiver);
                /* The accepting side's proof is sent last: that side has accepted the other one
                 * before, so it may be PROVEN even if its proof is damaged. */
                if (victim == CONNECTS || at < HANDSHAKE_HELLO_BYTES)
                    assert_int_not_equal(m.p.side[victim].state, HANDSHAKE_PROVEN);
            }
        }
    }
}

/* Sends these bytes to one side of a handshake, and returns its state. */
static HandshakeState play(bool accepts, const unsigned char *bytes, size_t n, bool closes,
                           HandshakeReason *reason)
{
    Handshake h;
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    handshake_begin(&h, SECRET, accepts, RANK[accepts]);
    assert_int_equal(send(fd[1], bytes, n, 0), (ssize_t)n);
    handshake_move(&h, fd[0]);
    if (closes) {
        shutdown(fd[1], SHUT_WR);
        handshake_move(&h, fd[0]);
    }
    close(fd[0]);
    close(fd[1]);
    *reason = h.reason;
    return h.state;
}

static void test_recorded_bytes_prove_nothing_on_another_connection(void **state)
{
    Middle m = {.piece = HANDSHAKE_BYTES, .victim = -1};
    HandshakeReason reason;
    (void)state;
    handshake_through(&m);
    assert_states(&m.p, HANDSHAKE_PROVEN, HANDSHAKE_PROVEN);
    for (int accepts = 0; accepts < 2; accepts++) {
        assert_int_equal(play(accepts, m.record[!accepts], HANDSHAKE_BYTES, false, &reason),
                         HANDSHAKE_REFUSED);
        assert_int_equal(reason, HANDSHAKE_WRONG_SECRET);
    }
}

/* The peer knows no secret. It sends back what it receives, at first unchanged, then with a hello
 * of the expected direction: the byte that tells the direction is changed. */
static void test_reflected_bytes_prove_nothing(void **state)
{
    (void)state;
    for (int accepts = 0; accepts < 2; accepts++) {
        for (int changed = 0; changed < 2; changed++) {
            Handshake h;
            unsigned char hello[HANDSHAKE_HELLO_BYTES], proof[HANDSHAKE_PROOF_BYTES];
            int fd[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
            handshake_begin(&h, SECRET, accepts, 0);
            memcpy(hello, h.hello, sizeof hello);
            if (changed) hello[7] = accepts ? '>' : '<';
            assert_int_equal(send(fd[1], hello, sizeof hello, 0), sizeof hello);
            handshake_move(&h, fd[0]);
            if (changed) {
                assert_int_equal(h.state, HANDSHAKE_GOES_ON);
                assert_int_equal(recv(fd[1], hello, sizeof hello, 0), sizeof hello);
                if (accepts) /* the accepting side sends no proof before the other side has */
                    assert_int_equal(recv(fd[1], proof, sizeof proof, MSG_DONTWAIT), -1);
                else
                    assert_int_equal(recv(fd[1], proof, sizeof proof, 0), sizeof proof);
                if (accepts) memset(proof, 1, sizeof proof);
                assert_int_equal(send(fd[1], proof, sizeof proof, 0), sizeof proof);
                handshake_move(&h, fd[0]);
            }
            assert_int_equal(h.state, HANDSHAKE_REFUSED);
            assert_int_equal(h.reason, changed ? HANDSHAKE_WRONG_SECRET : HANDSHAKE_OTHER_PROGRAM);
            close(fd[0]);
            close(fd[1]);
        }
    }
}

/* Both hellos are right, but the connecting side's proof is computed with the label of the
 * accepting side. */
static void test_a_proof_made_for_the_other_side_is_refused(void **state)
{
    Pair p;
    unsigned char text[16 + 2 * HANDSHAKE_HELLO_BYTES], proof[HANDSHAKE_PROOF_BYTES] = {1};
    (void)state;
    for (int right = 0; right < 2; right++) {
        begin(&p, SECRET, SECRET);
        assert_int_equal(send(p.fd[CONNECTS], p.side[CONNECTS].hello, HANDSHAKE_HELLO_BYTES, 0),
                         HANDSHAKE_HELLO_BYTES);
        handshake_move(&p.side[ACCEPTS], p.fd[ACCEPTS]);
        memcpy(text, right ? "train.c connects" : "train.c accepts ", 16);
        memcpy(text + 16, p.side[CONNECTS].hello, HANDSHAKE_HELLO_BYTES);
        memcpy(text + 16 + HANDSHAKE_HELLO_BYTES, p.side[ACCEPTS].hello, HANDSHAKE_HELLO_BYTES);
        hmac_sha256(SECRET, sizeof SECRET, text, sizeof text, proof + 1);
        assert_int_equal(send(p.fd[CONNECTS], proof, sizeof proof, 0), sizeof proof);
        assert_int_equal(handshake_move(&p.side[ACCEPTS], p.fd[ACCEPTS]),
                         right ? HANDSHAKE_PROVEN : HANDSHAKE_REFUSED);
        end(&p);
    }
}

static void test_garbage_is_refused_but_an_incomplete_hello_is_not(void **state)
{
    static const char *const garbage[] = {
        "GET / HTTP/1.1\r\n\r\n", "", "\n", "train", "train.c", "train.d>", "train.c>\1"};
    HandshakeReason reason;
    (void)state;
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        size_t n = strlen(garbage[i]);
        bool begins = strncmp("train.c>\1", garbage[i], n) == 0;
        const unsigned char *bytes = (const unsigned char *)garbage[i];
        assert_int_equal(play(true, bytes, n, false, &reason),
                         begins ? HANDSHAKE_GOES_ON : HANDSHAKE_REFUSED);
        assert_int_equal(reason, begins ? HANDSHAKE_NO_REASON : HANDSHAKE_OTHER_PROGRAM);
        assert_int_equal(play(true, bytes, n, true, &reason),
                         begins ? HANDSHAKE_LOST : HANDSHAKE_REFUSED);
    }
}

static void test_a_peer_that_has_closed_its_connection_counts_as_lost(void **state)
{
    Pair p;
    (void)state;
    begin(&p, SECRET, SECRET);
    close(p.fd[ACCEPTS]);
    p.fd[ACCEPTS] = dup(p.fd[CONNECTS]); /* so that end() can close it */
    assert_int_equal(handshake_move(&p.side[CONNECTS], p.fd[CONNECTS]), HANDSHAKE_LOST);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_sides_with_the_same_secret_accept_each_other),
        cmocka_unit_test(test_a_wrong_secret_is_refused_on_both_sides),
        cmocka_unit_test(test_another_name_or_version_is_distinguished_from_a_wrong_secret),
        cmocka_unit_test(test_a_handshake_succeeds_if_its_bytes_arrive_one_by_one),
        cmocka_unit_test(test_recorded_bytes_prove_nothing_on_another_connection),
        cmocka_unit_test(test_reflected_bytes_prove_nothing),
        cmocka_unit_test(test_a_proof_made_for_the_other_side_is_refused),
        cmocka_unit_test(test_garbage_is_refused_but_an_incomplete_hello_is_not),
        cmocka_unit_test(test_no_truncated_or_altered_handshake_is_accepted),
        cmocka_unit_test(test_a_peer_that_has_closed_its_connection_counts_as_lost),
    };
    return cmocka_run_group_tests_name("handshake", tests, NULL, NULL);
}
