/* test_meeting.c -- real processes that meet over a file or over rank 0's address: all get the same
 * table, whoever comes first. */
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/meeting_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void test_ranks_find_each_other_by_a_file(void **state)
{
    char *folder = folder_new(), *own = text_format("%s/deep/.rendezvous", folder);
    struct stat st;
    (void)state;
    for (int n = 1; n <= 9; n += 4) {
        MeetingCase c = {.folder = own, .odd = -1};
        MeetingResult *r = meeting_case(&c, n);
        assert_met(r, n);
        free(r);
    }
    assert_int_equal(stat(own, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(folder_entries(own), 0); /* the file is removed */
    free(own);
    folder_drop(folder);
}

static void test_ranks_find_each_other_at_an_address(void **state)
{
    static const char *const master[] = {"127.0.0.1", "localhost", "::1"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        MeetingCase c = {.master = master[i], .odd = -1, .port = meeting_free_ports()};
        MeetingResult *r = meeting_case(&c, 5);
        assert_met(r, 5);
        free(r);
    }
}

static void test_ranks_meet_even_if_rank_0_arrives_last(void **state)
{
    char *folder = folder_new();
    (void)state;
    for (int file = 0; file < 2; file++) {
        MeetingCase c = {.folder = file ? folder : NULL, .how = LATE, .port = meeting_free_ports()};
        MeetingResult *r = meeting_case(&c, 4);
        assert_met(r, 4);
        free(r);
    }
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_find_each_other_by_a_file),
        cmocka_unit_test(test_ranks_find_each_other_at_an_address),
        cmocka_unit_test(test_ranks_meet_even_if_rank_0_arrives_last),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
