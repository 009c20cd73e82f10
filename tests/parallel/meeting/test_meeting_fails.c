/* test_meeting_fails.c -- a fault of one of the processes that meet ends all of them with the same
 * exit code and message: a process that differs, is missing, dies, cannot listen or arrives twice.
 */
#include "model/core/check.h"
#include "parallel/meeting/rendezvous.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/meeting_cases.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* The program's calls of listen come here (Makefile). */
int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
static bool cannot_listen;
int __wrap_listen(int fd, int backlog)
{
    errno = ENOBUFS;
    return cannot_listen ? -1 : __real_listen(fd, backlog);
}

static void make_deaf(void)
{
    cannot_listen = true;
}

static void test_a_rank_that_differs_is_named_with_host_and_place(void **state)
{
    char *folder = folder_new(), host[64] = "", says[256];
    (void)state;
    gethostname(host, sizeof host - 1);
    for (int odd = 0; odd < 4; odd += 2) {
        MeetingCase c = {.folder = folder, .odd = odd, .how = OTHER_FACT};
        MeetingResult *r = meeting_case(&c, 4);
        snprintf(says, sizeof says,
                 "rank %d (%s, dp %d): config is \"cd34\", but \"12ab\" on 3 of the 4 ranks; start "
                 "all with the same config",
                 odd, host, odd);
        assert_failed(r, 4, -1, EXIT_CONFIG, says);
        free(r);
    }
    assert_int_equal(folder_entries(folder), 0);
    folder_drop(folder);
}

static void test_worlds_of_different_sizes_are_refused(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {.folder = folder, .odd = 2, .how = OTHER_SIZE, .timeout = 1.5};
    MeetingResult *r = meeting_case(&c, 3);
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
    MeetingCase c = {.folder = folder, .odd = 3, .how = ABSENT, .timeout = 1.5};
    MeetingResult *r = meeting_case(&c, 4);
    assert_failed(r, 4, 3, EXIT_UNAVAILABLE,
                  "rank 3 (node1) of 4 has not arrived within 1.5 s (parallel.timeout)");
    for (int i = 0; i < 3; i++)
        assert_true(r[i].seconds < 2.5);
    free(r);
    MeetingCase none = {.folder = folder, .odd = 0, .how = ABSENT, .timeout = 1};
    r = meeting_case(&none, 2);
    assert_int_equal(r[1].code, EXIT_UNAVAILABLE);
    assert_non_null(strstr(
        r[1].err, "rank 0 (node0) was not found within 1 s (parallel.timeout) by its file in"));
    assert_false(r[1].told);
    free(r);
    folder_drop(folder);
}

static void test_a_rank_with_a_wrong_secret_reports_it(void **state)
{
    (void)state;
    MeetingCase c = {.odd = 2, .how = OTHER_SECRET, .timeout = 2, .port = meeting_free_ports()};
    MeetingResult *r = meeting_case(&c, 3);
    assert_int_equal(r[2].code, EXIT_PROTOCOL);
    assert_false(r[2].told);
    assert_non_null(strstr(r[2].err, ": who answers there has another secret"));
    assert_failed(r, 3, 2, EXIT_UNAVAILABLE, "rank 2 (node1) of 3 has not arrived within 2 s");
    free(r);
}

/* The rank need not wait for the timeout, because all that answer there have refused its secret. */
static void test_a_rank_whose_secret_is_refused_ends_before_the_timeout(void **state)
{
    (void)state;
    MeetingCase c = {.odd = 1, .how = OTHER_SECRET, .timeout = 8, .port = meeting_free_ports()};
    MeetingResult *r = meeting_case(&c, 2);
    assert_int_equal(r[1].code, EXIT_PROTOCOL);
    assert_true(r[1].seconds < 7.5);
    assert_non_null(strstr(r[1].err, "this rank has another secret (TRAIN_SECRET"));
    free(r);
}

/* Processes 0 and 3 are one job, 2 and 1 another one, with another secret and the same ports. Each
 * process starts a moment after the one before it. */
static void set_two_jobs(void *context, int i, MeetingOptions *o)
{
    meeting_case_set(context, i, o);
    o->rank = i % 2;
    o->size = 2;
    if (i == 1 || i == 2) o->secret = (const unsigned char *)"another secret of thirty-two bytes";
    usleep((useconds_t)i * 500000);
}

static void test_two_jobs_with_the_same_ports_do_not_mix(void **state)
{
    (void)state;
    MeetingCase c = {.odd = -1, .timeout = 4, .port = meeting_free_ports()};
    MeetingRun run = {.processes = 4, .set = set_two_jobs, .context = &c, .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    for (int i = 0; i < 4; i++)
        if (!r[i].met) fail_msg("process %d: %d: %s", i, (int)r[i].code, r[i].err);
    assert_memory_equal(r[0].m.secret, r[3].m.secret, SHA256_BYTES);
    assert_memory_equal(r[1].m.secret, r[2].m.secret, SHA256_BYTES);
    assert_memory_not_equal(r[0].m.secret, r[1].m.secret, SHA256_BYTES);
    free(r);
}

/* All ranks end at once, whether they meet by a file or at an address. */
static void test_a_rank_that_failed_before_the_meeting_ends_all_ranks(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int i = 0; i < 4; i++) {
        MeetingCase c = {.folder = i < 2 ? folder : NULL,
                         .port = meeting_free_ports(),
                         .odd = i % 2 == 0 ? 0 : 2,
                         .how = DECLINES,
                         .timeout = 5};
        MeetingResult *r = meeting_case(&c, 3);
        assert_failed(r, 3, -1, EXIT_MISSING,
                      c.odd == 0 ? "none.json cannot be read"
                                 : ", dp 2): none.json cannot be read");
        for (int k = 0; k < 3; k++)
            assert_true(r[k].seconds < 2);
        free(r);
    }
    assert_int_equal(folder_entries(folder), 0);
    folder_drop(folder);
}

/* Where rank 0 cannot write its file, others do not wait for it. */
static void test_a_rendezvous_folder_that_cannot_be_created_ends_all_ranks(void **state)
{
    char *folder = folder_new(), *below = text_format("%s/file/below", folder);
    char *file = text_format("%s/file", folder);
    (void)state;
    FILE *to = fopen(file, "w");
    assert_non_null(to);
    fclose(to);
    MeetingCase c = {.folder = below, .odd = -1, .timeout = 5};
    MeetingResult *r = meeting_case(&c, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].code, EXIT_CANNOT_CREATE);
        assert_string_equal(r[i].err, r[0].err);
        assert_true(r[i].seconds < 2);
    }
    free(r);
    unlink(file);
    free(file);
    free(below);
    folder_drop(folder);
}

static void test_a_rank_that_arrives_twice_ends_all_ranks(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {.folder = folder, .odd = 3, .how = TWICE, .timeout = 3};
    MeetingResult *r = meeting_case(&c, 4);
    assert_int_equal(r[0].code, EXIT_PROTOCOL);
    assert_int_equal(r[2].code, EXIT_PROTOCOL);
    assert_int_equal(r[3].code, EXIT_PROTOCOL);
    assert_non_null(strstr(r[0].err, "has arrived twice, the second time from "));
    assert_string_equal(r[2].err, r[0].err);
    assert_string_equal(r[3].err, r[0].err);
    free(r);
    folder_drop(folder);
}

static void test_two_processes_that_are_rank_0_find_each_other_and_end(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int file = 0; file < 2; file++) {
        MeetingCase c = {
            .folder = file ? folder : NULL, .odd = 1, .how = TWICE, .port = meeting_free_ports()};
        c.timeout = 3;
        MeetingResult *r = meeting_case(&c, 3);
        assert_failed(r, 2, 1, EXIT_PROTOCOL, "has arrived twice, the second time from ");
        assert_int_equal(r[1].code, EXIT_PROTOCOL);
        assert_string_equal(r[1].err, r[0].err);
        assert_string_equal(r[2].err, r[0].err);
        assert_true(r[2].seconds < 2.5);
        free(r);
    }
    folder_drop(folder);
}

static void test_a_rank_that_arrives_too_late_is_told_why(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {.folder = folder, .odd = 1, .how = OTHER_FACT, .late = 3, .timeout = 10};
    MeetingResult *r = meeting_case(&c, 4);
    assert_failed(r, 4, -1, EXIT_CONFIG,
                  ", dp 1): config is \"cd34\", but \"12ab\" on 2 of the 3 ");
    assert_true(r[0].seconds < 2.5);
    free(r);
    folder_drop(folder);
}

static void test_a_rank_that_cannot_continue_tells_all_ranks(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {
        .folder = folder, .odd = 2, .how = DEAF, .make_deaf = make_deaf, .timeout = 10};
    MeetingResult *r = meeting_case(&c, 4);
    assert_failed(r, 4, -1, EXIT_SYSTEM, ", dp 2): it cannot listen for other ranks");
    free(r);
    folder_drop(folder);
}

/* While rank 0 waits, somebody cleans up its folder. */
static void clean_up(void *context, const pid_t *pid)
{
    const MeetingCase *c = context;
    char *path = text_format("%s/job_207_2fstep.0", c->folder);
    (void)pid;
    usleep(300000);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* While rank 0 waits, another job of the same name replaces its file. */
static void replace(void *context, const pid_t *pid)
{
    const MeetingCase *c = context;
    Rendezvous other = {.at = {1, {{4, 1, {127, 0, 0, 1}}}}};
    char err[512];
    ExitCode code;
    (void)pid;
    usleep(300000);
    assert_true(rendezvous_publish(&other, c->folder, MEETING_CASE_NAME, &code, err, sizeof err));
}

static void test_rank_0_rewrites_its_file_if_it_is_removed_and_fails_if_it_is_replaced(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {.folder = folder, .odd = -1, .late = 2, .timeout = 2.5};
    MeetingRun run = {.processes = 3,
                      .set = meeting_case_set,
                      .context = &c,
                      .meanwhile = clean_up,
                      .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    assert_met(r, 3);
    assert_int_equal(folder_entries(folder), 0);
    free(r);
    run.meanwhile = replace;
    r = meeting_ranks(&run);
    assert_failed(r, 2, -1, EXIT_PROTOCOL, "another rank 0 has replaced the file of this meeting");
    assert_true(r[0].seconds < 3);
    assert_false(r[2].met);
    free(r);
    folder_drop(folder);
}

static void few_files(void *context, int i, MeetingOptions *o)
{
    struct rlimit few = {24, 24};
    meeting_case_set(context, i, o);
    if (i == 0) assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
}

static void test_too_few_descriptors_for_all_ranks_are_reported(void **state)
{
    char *folder = folder_new();
    (void)state;
    MeetingCase c = {.folder = folder, .odd = -1, .timeout = 4};
    MeetingRun run = {.processes = 40, .set = few_files, .context = &c, .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    int told = 0;
    assert_int_equal(r[0].code, EXIT_SYSTEM);
    assert_non_null(strstr(r[0].err, "rank 0 cannot accept connections, "));
    assert_non_null(strstr(r[0].err, " of 40 ranks are here: Too many open files (ulimit -n)"));
    assert_true(r[0].seconds < 3);
    for (int i = 1; i < 40; i++)
        told += r[i].told && r[i].code == EXIT_SYSTEM;
    assert_true(told >= 5); /* those that have arrived */
    free(r);
    folder_drop(folder);
}

static void test_the_death_of_a_rank_that_has_arrived_ends_all_ranks(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        MeetingCase c = {.folder = folder, .odd = odd, .how = DIES, .size = 4, .timeout = 10};
        MeetingResult *r = meeting_case(&c, 3); /* the last one is never started */
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
        cmocka_unit_test(test_a_rank_that_differs_is_named_with_host_and_place),
        cmocka_unit_test(test_worlds_of_different_sizes_are_refused),
        cmocka_unit_test(test_a_rank_that_never_arrives_is_named),
        cmocka_unit_test(test_a_rank_with_a_wrong_secret_reports_it),
        cmocka_unit_test(test_a_rank_whose_secret_is_refused_ends_before_the_timeout),
        cmocka_unit_test(test_two_jobs_with_the_same_ports_do_not_mix),
        cmocka_unit_test(test_a_rank_that_failed_before_the_meeting_ends_all_ranks),
        cmocka_unit_test(test_a_rendezvous_folder_that_cannot_be_created_ends_all_ranks),
        cmocka_unit_test(test_a_rank_that_arrives_twice_ends_all_ranks),
        cmocka_unit_test(test_two_processes_that_are_rank_0_find_each_other_and_end),
        cmocka_unit_test(test_a_rank_that_arrives_too_late_is_told_why),
        cmocka_unit_test(test_a_rank_that_cannot_continue_tells_all_ranks),
        cmocka_unit_test(
            test_rank_0_rewrites_its_file_if_it_is_removed_and_fails_if_it_is_replaced),
        cmocka_unit_test(test_too_few_descriptors_for_all_ranks_are_reported),
        cmocka_unit_test(test_the_death_of_a_rank_that_has_arrived_ends_all_ranks),
    };
    return cmocka_run_group_tests_name("meeting fails", tests, NULL, NULL);
}
