/* test_meeting.c -- real processes that meet over a file or over rank 0's address: all get the same
 * table, and what is wrong with one of them ends all with the same code and message. */
#include "parallel/meeting/meeting.h"
#include "parallel/meeting/rendezvous.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/meeting_ranks.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const unsigned char SECRET[SHA256_BYTES] = "a secret of thirty-two bytes";

#define NAME "job 7/step.0"

/* What differs between the tests. */
typedef struct {
    const char *folder; /* NULL: over the address 127.0.0.1 */
    const char *master;
    int port;
    int odd; /* this process is different, as `how` says */
    enum { LIKE_ALL, OTHER_FACT, OTHER_SIZE, OTHER_SECRET, TWICE, ABSENT, DIES, LATE, DEAF } how;
    int late; /* if not 0: this rank comes 1.5 s later */
    int size; /* if not that of the processes */
    double timeout;
    MeetingFact fact[2];
    char value[32];
} Case;

/* The program's calls of listen come here (Makefile). */
int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
static bool cannot_listen;
int __wrap_listen(int fd, int backlog)
{
    errno = ENOBUFS;
    return cannot_listen ? -1 : __real_listen(fd, backlog);
}

static int free_ports(void)
{
    return 15000 + (int)(getpid() % 700) * 20;
}

static const char *host_of(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "node%d", rank / 2);
    return buf;
}

static const char *place_of(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "dp %d", rank);
    return buf;
}

static void set(void *context, int i, MeetingOptions *o)
{
    Case *c = context;
    bool odd = i == c->odd;
    o->folder = c->folder;
    if (c->size > 0) o->size = c->size;
    o->name = NAME;
    o->local_size = c->folder ? o->size : 0;
    o->master = c->folder ? NULL : c->master ? c->master : "127.0.0.1";
    o->port = c->port;
    o->secret = SECRET;
    o->cpu_level = 3 + i % 3;
    o->host = host_of;
    o->place = place_of;
    if (c->timeout > 0) o->timeout = c->timeout;
    snprintf(c->value, sizeof c->value, "%s", odd && c->how == OTHER_FACT ? "cd34" : "12ab");
    c->fact[0] = (MeetingFact){"version", "1", NULL};
    c->fact[1] = (MeetingFact){"config", c->value, "start all with the same config"};
    o->fact = c->fact;
    o->facts = 2;
    if (c->late > 0 && i == c->late) usleep(1500000);
    if (!odd) return;
    if (c->how == OTHER_SIZE) o->size++;
    if (c->how == OTHER_SECRET)
        o->secret = (const unsigned char *)"another secret of thirty-two bytes";
    if (c->how == TWICE) o->rank--;
    if (c->how == TWICE && o->rank == 0) usleep(300000);
    if (c->how == DEAF) cannot_listen = true;
    if (c->how == ABSENT) _exit(0);
    if (c->how == LATE) usleep(700000);
    if (c->how == DIES) alarm(1); /* while it waits for the others */
}

static MeetingResult *meet(Case *c, int processes)
{
    MeetingRun run = {.processes = processes, .set = set, .context = c, .output = "/dev/null"};
    return meeting_ranks(&run);
}

static void assert_met(const MeetingResult *r, int processes)
{
    for (int i = 0; i < processes; i++) {
        assert_string_equal(r[i].err, "");
        assert_string_equal(r[i].wrong, "");
        assert_true(r[i].met);
        assert_int_equal(r[i].m.rank, i);
        assert_int_equal(r[i].m.size, processes);
        assert_int_equal(r[i].m.machines, 1);
        assert_int_equal(r[i].m.cpu_level, 3);
        assert_memory_equal(r[i].m.secret, r[0].m.secret, SHA256_BYTES);
        assert_int_equal(r[i].last.local_rank, processes - 1);
        assert_memory_equal(&r[i].last.address, &r[0].last.address, sizeof r[0].last.address);
    }
}

/* All processes fail with the code and a message that contains `says`; `except` may fail otherwise.
 */
static void assert_failed(MeetingResult *r, int processes, int except, ExitCode code,
                          const char *says)
{
    for (int i = 0; i < processes; i++) {
        if (i == except) continue;
        assert_false(r[i].met);
        if (strstr(r[i].err, says) == NULL) fail_msg("rank %d: \"%s\"", i, r[i].err);
        assert_int_equal(r[i].code, code);
        assert_int_equal(r[i].told, i != 0);
    }
}

static int entries(const char *folder)
{
    StringList found = {0}, pattern = {0};
    char err[256], *stars = text_format("%s/{*,.[a-z]*}", folder);
    int count = 0;
    string_list_add(&pattern, stars);
    if (file_list(&pattern, &found, err, sizeof err)) count = found.count;
    string_list_free(&pattern);
    string_list_free(&found);
    free(stars);
    return count;
}

/* ---- they meet ------------------------------------------------------------------------------- */

static void test_ranks_meet_over_a_file(void **state)
{
    char *folder = folder_new(), *own = text_format("%s/deep/.rendezvous", folder);
    struct stat st;
    (void)state;
    for (int n = 1; n <= 9; n += 4) {
        Case c = {.folder = own, .odd = -1};
        MeetingResult *r = meet(&c, n);
        assert_met(r, n);
        free(r);
    }
    assert_int_equal(stat(own, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(entries(own), 0); /* the file is removed */
    free(own);
    folder_drop(folder);
}

static void test_ranks_meet_at_an_address(void **state)
{
    static const char *const master[] = {"127.0.0.1", "localhost", "::1"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        Case c = {.master = master[i], .odd = -1, .port = free_ports()};
        MeetingResult *r = meet(&c, 5);
        assert_met(r, 5);
        free(r);
    }
}

static void test_rank_0_may_come_last(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int file = 0; file < 2; file++) {
        Case c = {.folder = file ? folder : NULL, .how = LATE, .port = free_ports()};
        MeetingResult *r = meet(&c, 4);
        assert_met(r, 4);
        free(r);
    }
    folder_drop(folder);
}

/* ---- they do not ----------------------------------------------------------------------------- */

static void test_the_odd_rank_is_named_with_host_and_place(void **state)
{
    char *folder = folder_new(), host[64] = "", says[256];
    (void)state;
    gethostname(host, sizeof host - 1);
    for (int odd = 0; odd < 4; odd += 2) {
        Case c = {.folder = folder, .odd = odd, .how = OTHER_FACT};
        MeetingResult *r = meet(&c, 4);
        snprintf(says, sizeof says,
                 "rank %d (%s, dp %d): config is \"cd34\", but \"12ab\" on 3 of the 4 ranks; start "
                 "all with the same config",
                 odd, host, odd);
        assert_failed(r, 4, -1, EXIT_CONFIG, says);
        free(r);
    }
    assert_int_equal(entries(folder), 0);
    folder_drop(folder);
}

static void test_worlds_of_different_sizes_are_refused(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = 2, .how = OTHER_SIZE, .timeout = 1.5};
    MeetingResult *r = meet(&c, 3);
    /* The others may not have arrived yet when rank 0 ends. */
    assert_int_equal(r[0].code, EXIT_CONFIG);
    assert_int_equal(r[2].code, EXIT_CONFIG);
    assert_non_null(strstr(r[0].err, "is one of 4 ranks, but rank 0"));
    assert_string_equal(r[0].err, r[2].err);
    free(r);
    folder_drop(folder);
}

static void test_a_rank_that_never_arrives_is_named(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = 3, .how = ABSENT, .timeout = 1.5};
    MeetingResult *r = meet(&c, 4);
    assert_failed(r, 4, 3, EXIT_UNAVAILABLE,
                  "rank 3 (node1) of 4 has not arrived within 1.5 s (parallel.timeout)");
    for (int i = 0; i < 3; i++)
        assert_true(r[i].seconds < 2.5);
    free(r);
    Case none = {.folder = folder, .odd = 0, .how = ABSENT, .timeout = 1};
    r = meet(&none, 2);
    assert_int_equal(r[1].code, EXIT_UNAVAILABLE);
    assert_non_null(strstr(
        r[1].err, "rank 0 (node0) was not found within 1 s (parallel.timeout) by its file in"));
    assert_false(r[1].told);
    free(r);
    folder_drop(folder);
}

static void test_a_wrong_secret_is_told_to_the_rank_that_has_it(void **state)
{
    (void)state;
    Case c = {.odd = 2, .how = OTHER_SECRET, .timeout = 2, .port = free_ports()};
    MeetingResult *r = meet(&c, 3);
    assert_int_equal(r[2].code, EXIT_PROTOCOL);
    assert_false(r[2].told);
    assert_true(r[2].seconds < 1.5);
    assert_non_null(strstr(r[2].err, "this rank has another secret (TRAIN_SECRET"));
    assert_failed(r, 3, 2, EXIT_UNAVAILABLE, "rank 2 (node1) of 3 has not arrived within 2 s");
    free(r);
}

static void test_a_rank_that_arrives_twice_ends_all(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = 3, .how = TWICE, .timeout = 3};
    MeetingResult *r = meet(&c, 4);
    assert_int_equal(r[0].code, EXIT_PROTOCOL);
    assert_int_equal(r[2].code, EXIT_PROTOCOL);
    assert_int_equal(r[3].code, EXIT_PROTOCOL);
    assert_non_null(strstr(r[0].err, "has arrived twice, the second time from "));
    assert_string_equal(r[2].err, r[0].err);
    assert_string_equal(r[3].err, r[0].err);
    free(r);
    folder_drop(folder);
}

static void test_two_ranks_0_find_each_other(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int file = 0; file < 2; file++) {
        Case c = {.folder = file ? folder : NULL, .odd = 1, .how = TWICE, .port = free_ports()};
        c.timeout = 3;
        MeetingResult *r = meet(&c, 3);
        assert_failed(r, 2, 1, EXIT_PROTOCOL, "has arrived twice, the second time from ");
        assert_int_equal(r[1].code, EXIT_PROTOCOL);
        assert_string_equal(r[1].err, r[0].err);
        assert_string_equal(r[2].err, r[0].err);
        assert_true(r[2].seconds < 2);
        free(r);
    }
    folder_drop(folder);
}

static void test_a_rank_that_comes_too_late_hears_why(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = 1, .how = OTHER_FACT, .late = 3, .timeout = 10};
    MeetingResult *r = meet(&c, 4);
    assert_failed(r, 4, -1, EXIT_CONFIG,
                  ", dp 1): config is \"cd34\", but \"12ab\" on 2 of the 3 ");
    assert_true(r[0].seconds < 2.5);
    free(r);
    folder_drop(folder);
}

static void test_a_rank_that_cannot_go_on_tells_all(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = 2, .how = DEAF, .timeout = 10};
    MeetingResult *r = meet(&c, 4);
    assert_failed(r, 4, -1, EXIT_SYSTEM, "rank 2 (node1, dp 2): it cannot listen for other ranks");
    free(r);
    folder_drop(folder);
}

/* While rank 0 waits, somebody cleans up its folder. */
static void clean_up(void *context, const pid_t *pid)
{
    const Case *c = context;
    char *path = text_format("%s/job_207_2fstep.0", c->folder);
    (void)pid;
    usleep(300000);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* Or another job of the same name writes its own file. */
static void replace(void *context, const pid_t *pid)
{
    const Case *c = context;
    Rendezvous other = {.at = {1, {{4, 1, {127, 0, 0, 1}}}}};
    char err[512];
    ExitCode code;
    (void)pid;
    usleep(300000);
    assert_true(rendezvous_publish(&other, c->folder, NAME, &code, err, sizeof err));
}

static void test_rank_0_keeps_its_file_while_it_waits(void **state)
{
    char *folder = folder_new();
    (void)state;
    Case c = {.folder = folder, .odd = -1, .late = 2, .timeout = 2.5};
    MeetingRun run = {
        .processes = 3, .set = set, .context = &c, .meanwhile = clean_up, .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    assert_met(r, 3);
    assert_int_equal(entries(folder), 0);
    free(r);
    run.meanwhile = replace;
    r = meeting_ranks(&run);
    assert_failed(r, 2, -1, EXIT_PROTOCOL, "another rank 0 has replaced the file of this meeting");
    assert_true(r[0].seconds < 3);
    assert_false(r[2].met);
    free(r);
    folder_drop(folder);
}

static void test_the_death_of_a_rank_that_has_arrived_ends_all(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        Case c = {.folder = folder, .odd = odd, .how = DIES, .size = 4, .timeout = 10};
        MeetingResult *r = meet(&c, 3); /* the last one is never started */
        for (int i = 0; i < 3; i++) {
            assert_false(r[i].met);
            if (i == odd) continue;
            assert_int_equal(r[i].code, EXIT_PEER_LOST);
            assert_true(r[i].seconds < 3);
            if (odd == 0)
                assert_string_equal(r[i].err, "rank 0 has ended before all ranks had met");
            if (odd == 1)
                assert_non_null(strstr(r[i].err, ", dp 1) has ended before all ranks had"));
        }
        free(r);
    }
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_meet_over_a_file),
        cmocka_unit_test(test_ranks_meet_at_an_address),
        cmocka_unit_test(test_rank_0_may_come_last),
        cmocka_unit_test(test_the_odd_rank_is_named_with_host_and_place),
        cmocka_unit_test(test_worlds_of_different_sizes_are_refused),
        cmocka_unit_test(test_a_rank_that_never_arrives_is_named),
        cmocka_unit_test(test_a_wrong_secret_is_told_to_the_rank_that_has_it),
        cmocka_unit_test(test_a_rank_that_arrives_twice_ends_all),
        cmocka_unit_test(test_two_ranks_0_find_each_other),
        cmocka_unit_test(test_rank_0_keeps_its_file_while_it_waits),
        cmocka_unit_test(test_a_rank_that_comes_too_late_hears_why),
        cmocka_unit_test(test_a_rank_that_cannot_go_on_tells_all),
        cmocka_unit_test(test_the_death_of_a_rank_that_has_arrived_ends_all),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
