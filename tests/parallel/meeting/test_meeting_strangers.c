/* test_meeting_strangers.c -- while ranks meet, other processes connect to rank 0, or listen where
 * ranks look for rank 0: none of them is admitted, and none delays the meeting. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/handshake.h"
#include "parallel/meeting/door.h"
#include "parallel/meeting/rendezvous.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/listening.h"
#include "tests/support/meeting/meeting_cases.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NAME "strangers"
static const unsigned char SECRET[SHA256_BYTES] = "a secret of thirty-two bytes";
static const unsigned char OTHER[SHA256_BYTES] = "the secret of another job";

/* ---- strangers connect to rank 0 ------------------------------------------------------------- */

typedef enum { SILENT, GARBAGE, HALF, OTHER_JOB, REPLAY, CLOSING, FLOOD, KINDS } Kind;
static const char *const kind_name[KINDS] = {"silent",
                                             "garbage",
                                             "half a hello",
                                             "another job's secret",
                                             "a replayed meeting",
                                             "close at once",
                                             "silent, one after the other"};
enum { MOST = 300 };

typedef struct {
    int fd;
    Handshake hand;
    int received;
    bool admitted; /* rank 0 has answered that the secret is right, or says something more */
} Stranger;

typedef struct {
    Kind kind;
    int port, connections, admitted;
    int gate[2];  /* a pipe: the last rank waits until there is something in it */
    Bytes record; /* what a rank has sent in an earlier meeting */
    Stranger stranger[MOST];
} Attack;

static void set_attacked(void *context, int i, MeetingOptions *o)
{
    const Attack *a = context;
    o->name = NAME;
    o->master = "127.0.0.1";
    o->port = a->port;
    o->secret = SECRET;
    char byte;
    if (i == 2) assert_int_equal(read(a->gate[0], &byte, 1), 1);
}

/* Records what a rank sends that knows the secret: its part of a handshake, and its greeting. */
static void record_meeting(Bytes *record, const MeetingOptions *o)
{
    Handshake client, server;
    int fd[2];
    Greeting g;
    Bytes body = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    handshake_begin(&client, SECRET, false, 2);
    handshake_begin(&server, SECRET, true, 0);
    handshake_name(&client, meeting_tag(o));
    handshake_name(&server, meeting_tag(o));
    while (client.state == HANDSHAKE_GOES_ON || server.state == HANDSHAKE_GOES_ON) {
        handshake_move(&client, fd[0]);
        handshake_move(&server, fd[1]);
    }
    assert_int_equal(client.state, HANDSHAKE_PROVEN);
    bytes_put(record, client.out, HANDSHAKE_BYTES);
    Address at = {.family = 4, .port = 9, .ip = {127, 0, 0, 1}};
    greeting_own(&g, o, &at);
    greeting_write(&body, &g);
    bytes_put_number(record, MESSAGE_GREETING, 4);
    bytes_put_number(record, body.used, 4);
    bytes_put(record, body.data, body.used);
    bytes_free(&body);
    close(fd[0]);
    close(fd[1]);
}

static void look_at(Attack *a, Stranger *s)
{
    unsigned char bytes[512];
    if (s->fd < 0) return;
    if (a->kind == OTHER_JOB) {
        if (handshake_move(&s->hand, s->fd) == HANDSHAKE_PROVEN) s->admitted = true;
        return;
    }
    for (ssize_t got; (got = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) {
        for (ssize_t i = 0; i < got; i++, s->received++)
            /* After its hello, rank 0 says whether it lets the other side in. */
            if (s->received > HANDSHAKE_HELLO_BYTES ||
                (s->received == HANDSHAKE_HELLO_BYTES && bytes[i] != 0))
                s->admitted |= bytes[i] != 0;
    }
}

static void be_stranger(Attack *a, Stranger *s, int port)
{
    static const char garbage[] = "GET / HTTP/1.1\r\nHost: rank0\r\n\r\n";
    Address to = {.family = 4, .port = (uint16_t)port, .ip = {127, 0, 0, 1}};
    if (s->fd >= 0) close(s->fd);
    *s = (Stranger){.fd = network_connect(&to, NULL)};
    if (s->fd < 0) return;
    a->connections++;
    usleep(300);
    if (a->kind == GARBAGE) send(s->fd, garbage, sizeof garbage - 1, MSG_NOSIGNAL);
    if (a->kind == HALF) send(s->fd, a->record.data, HANDSHAKE_HELLO_BYTES / 2, MSG_NOSIGNAL);
    if (a->kind == REPLAY) send(s->fd, a->record.data, a->record.used, MSG_NOSIGNAL);
    if (a->kind == OTHER_JOB) {
        MeetingOptions o = {.name = NAME};
        handshake_begin(&s->hand, OTHER, false, 2);
        handshake_name(&s->hand, meeting_tag(&o));
    }
    if (a->kind == CLOSING) {
        close(s->fd);
        s->fd = -1;
    }
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* Attacks rank 0's port until the last rank has met the others. The last rank begins only after all
 * strangers have connected. */
static void attack(void *context, const pid_t *pid)
{
    Attack *a = context;
    AddressList at = {0};
    double start = seconds_now();
    /* Waits until rank 0 listens. */
    while (at.count == 0 && seconds_now() < start + 5)
        listening(pid[0], &at);
    for (int i = 0; i < MOST; i++)
        a->stranger[i].fd = -1;
    double end = start + 30;
    int before = a->kind == FLOOD || a->kind == CLOSING ? 5 * MOST : MOST;
    for (int i = 0; seconds_now() < end && !has_ended(pid[2]); i++) {
        if (i == before) assert_int_equal(write(a->gate[1], "", 1), 1);
        if (i == before) end = seconds_now() + 5;
        Stranger *s = &a->stranger[i % MOST];
        if (i < MOST || a->kind == FLOOD || a->kind == CLOSING)
            be_stranger(a, s, at.address[0].port);
        else
            usleep(200);
        look_at(a, s);
    }
    for (int i = 0; i < MOST; i++) {
        look_at(a, &a->stranger[i]);
        a->admitted += a->stranger[i].admitted;
        if (a->stranger[i].fd >= 0) close(a->stranger[i].fd);
    }
}

static void test_strangers_are_refused_and_delay_no_rank(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        Attack *a = must_calloc(1, sizeof *a);
        MeetingOptions o = {.name = NAME, .rank = 2, .size = 3};
        a->kind = (Kind)kind;
        a->port = meeting_free_ports();
        record_meeting(&a->record, &o);
        assert_int_equal(pipe2(a->gate, O_CLOEXEC), 0);
        MeetingRun run = {.processes = 3,
                          .set = set_attacked,
                          .context = a,
                          .meanwhile = attack,
                          .output = "/dev/null"};
        MeetingResult *r = meeting_ranks(&run);
        print_message("%-28s %5d connections, %d admitted; the last rank met in %.3f s\n",
                      kind_name[kind], a->connections, a->admitted, r[2].seconds);
        for (int i = 0; i < 3; i++) {
            assert_string_equal(r[i].err, "");
            assert_string_equal(r[i].wrong, "");
            assert_true(r[i].met);
        }
        assert_int_equal(a->admitted, 0);
        assert_true(a->connections >= MOST);
        assert_true(r[2].seconds < 1);
        close(a->gate[0]);
        close(a->gate[1]);
        bytes_free(&a->record);
        free(a);
        free(r);
    }
}

/* ---- strangers wait where ranks look for rank 0 ---------------------------------------------- */

/* Returns a socket that listens, but whose process never accepts a connection: only the kernel
 * completes connections to it. */
static int silent_at(int port, Address *address)
{
    *address = (Address){.family = 4, .port = (uint16_t)port, .ip = {127, 0, 0, 1}};
    return network_listen(address);
}

static void set_beside(void *context, int i, MeetingOptions *o)
{
    const Attack *a = context;
    o->name = NAME;
    o->master = "127.0.0.1";
    o->port = a->port;
    o->secret = a->kind == OTHER_JOB ? OTHER : SECRET;
    if (a->kind == OTHER_JOB) o->name = "another job";
    if (i == 0) usleep(300000);
}

static void test_ranks_meet_although_other_programs_hold_all_ports_but_one(void **state)
{
    Attack a = {.port = meeting_free_ports()};
    int fd[MEETING_PORTS];
    Address at;
    (void)state;
    for (int i = 0; i < MEETING_PORTS; i++)
        fd[i] = i == 11 ? -1 : silent_at(a.port + 1 + i, &at);
    MeetingRun run = {.processes = 3, .set = set_beside, .context = &a, .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(r[i].err, "");
        assert_true(r[i].met && r[i].seconds < 1.3);
    }
    free(r);
    for (int i = 0; i < MEETING_PORTS; i++)
        if (fd[i] >= 0) close(fd[i]);
}

/* Two jobs were given the same address and the same ports. */
static void test_two_jobs_with_overlapping_ports_meet_separately(void **state)
{
    Attack job[2] = {{.port = meeting_free_ports()},
                     {.kind = OTHER_JOB, .port = meeting_free_ports() + 3}};
    bool met[2] = {true, true};
    int status;
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    for (int j = child == 0 ? 1 : 0; j < 2; j += 2) {
        MeetingRun run = {
            .processes = 4, .set = set_beside, .context = &job[j], .output = "/dev/null"};
        MeetingResult *r = meeting_ranks(&run);
        for (int i = 0; i < 4; i++)
            met[j] &= r[i].met && r[i].wrong[0] == 0 && r[i].seconds < 1.3;
        free(r);
        if (child == 0) _exit(met[j] ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(met[0]);
}

static void set_stale(void *context, int i, MeetingOptions *o)
{
    o->name = NAME;
    o->folder = context;
    o->local_size = o->size;
    if (i == 0) usleep(500000);
}

/* A job that has died has left its file, and others have its ports now. */
static void test_a_file_left_by_a_dead_job_is_replaced(void **state)
{
    char *folder = folder_new(), *own = text_format("%s/own", folder), err[512];
    Rendezvous stale = {.at = {.count = 1}};
    Address *at = &stale.at.address[0];
    ExitCode code;
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        Door *door = NULL;
        pid_t child = 0;
        int fd = silent_at(0, at);
        memset(stale.secret, 'x', sizeof stale.secret);
        if (kind == 0) close(fd); /* nobody is there */
        if (kind == 2) {          /* rank 0 of another meeting, which refuses the old secret */
            door = door_open(OTHER, 7, 0, 100);
            door_listen(door, fd, true);
            child = fork();
            for (double end = seconds_now() + 3; child == 0 && seconds_now() < end; usleep(1000))
                door_serve(door, seconds_now(), NULL, NULL);
            if (child == 0) _exit(0);
            door_close(door);
        }
        assert_true(rendezvous_publish(&stale, own, NAME, &code, err, sizeof err));
        MeetingRun run = {.processes = 4, .set = set_stale, .context = own, .output = "/dev/null"};
        MeetingResult *r = meeting_ranks(&run);
        for (int i = 0; i < 4; i++) {
            assert_string_equal(r[i].err, "");
            assert_true(r[i].met && r[i].seconds < 1.5);
        }
        free(r);
        if (child > 0) kill(child, SIGKILL);
        if (child > 0) waitpid(child, NULL, 0);
        if (kind == 1) close(fd);
    }
    free(own);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_are_refused_and_delay_no_rank),
        cmocka_unit_test(test_ranks_meet_although_other_programs_hold_all_ports_but_one),
        cmocka_unit_test(test_two_jobs_with_overlapping_ports_meet_separately),
        cmocka_unit_test(test_a_file_left_by_a_dead_job_is_replaced),
    };
    return cmocka_run_group_tests_name("meeting strangers", tests, NULL, NULL);
}
