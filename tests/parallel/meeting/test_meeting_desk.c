/* test_meeting_desk.c -- what rank 0 decides while ranks arrive, without sockets: how it numbers
 * machines, and ranks that are missing, differ, are lost or arrive twice. */
#include "parallel/meeting/desk.h"

#include "tests/support/meeting/made_up_greetings.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- machines -------------------------------------------------------------------------------- */

static void test_machines_are_numbered_by_their_lowest_ranks(void **state)
{
    /* Each letter of `machine` is a machine; the digits of `local` are the local ranks from the
     * launcher. */
    static const struct {
        const char *machine, *local, *number, *local_rank;
    } row[] = {
        {"aabb", "0101", "0011", "0101"}, {"abab", "0011", "0101", "0011"},
        {"bbaa", "1010", "0011", "1010"}, {"aabb", "0123", "0011", "0101"},
        {"aabb", "0001", "0011", "0101"}, {"abcd", "----", "0123", "0000"},
        {"aaaa", "3210", "0000", "3210"}, {"aaaa", "321-", "0000", "0123"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        MeetingOptions o = made_up_options(4);
        Desk d;
        Table t;
        Greeting g;
        desk_open(&d, &o, 0);
        for (int i = 3; i >= 0; i--) { /* the order of arrival does not matter */
            made_up_greeting(&g, i, 4);
            snprintf(g.host, sizeof g.host, "%c", row[k].machine[i]);
            snprintf(g.boot, sizeof g.boot, "%c", row[k].machine[i]);
            g.local_rank = row[k].local[i] == '-' ? -1 : row[k].local[i] - '0';
            desk_greet(&d, &g, 0);
        }
        desk_table(&d, &t);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(t.rank[i].machine, row[k].number[i] - '0');
            assert_int_equal(t.rank[i].local_rank, row[k].local_rank[i] - '0');
            assert_int_equal(t.host[t.rank[i].machine][0], row[k].machine[i]);
        }
        table_free(&t);
        desk_close(&d);
    }
}

static void test_a_machine_is_identified_by_its_host_name_and_boot_id(void **state)
{
    enum { SIZE = 4096, KINDS = 64 };
    MeetingOptions o = made_up_options(SIZE);
    Desk d;
    Greeting g;
    (void)state;
    desk_open(&d, &o, 0);
    for (int i = 0; i < SIZE; i++) {
        made_up_greeting(&g, i, SIZE);
        snprintf(g.host, sizeof g.host, "host%d", i / KINDS % KINDS);
        snprintf(g.boot, sizeof g.boot, "boot%d", i % KINDS);
        g.cpu_level = i == 7 ? 3 : 4;
        desk_greet(&d, &g, 0);
    }
    assert_int_equal(d.machines, KINDS * KINDS);
    assert_int_equal(d.cpu_level, 3);
    desk_close(&d);
}

/* ---- what ends a meeting --------------------------------------------------------------------- */

static void assert_verdict(Desk *d, ExitCode code, const char *sentence)
{
    assert_int_equal(d->state, DESK_FAILED);
    assert_string_equal(d->verdict.sentence, sentence);
    assert_int_equal(d->verdict.code, code);
    desk_close(d);
}

static void test_missing_ranks_are_listed_every_ten_seconds(void **state)
{
    MeetingOptions o = made_up_options(64);
    char notice[768];
    Desk d;
    int notices = 0;
    (void)state;
    desk_open(&d, &o, 100);
    for (int i = 0; i < 64; i++)
        if (i != 5 && i != 9 && i != 10 && i != 11 && i != 14 && i != 15 && i != 16)
            made_up_arrival(&d, i, 101);
    for (double now = 100; d.state == DESK_WAITS;) {
        double next = desk_tick(&d, now, notice, sizeof notice);
        if (notice[0]) {
            notices++;
            assert_string_equal(notice, "waiting for ranks: 57 of 64 are here; missing: ranks 5 "
                                        "(node0), 9-11 (node1), 14, 15 (node1), 16 (node2)");
            assert_true(fabs(now - 100 - 10 * notices) < 1e-6);
        }
        if (d.state == DESK_WAITS) assert_true(next > now && next <= now + 10);
        now = next;
    }
    assert_int_equal(notices, 5);
    assert_verdict(&d, EXIT_UNAVAILABLE,
                   "ranks 5 (node0), 9-11 (node1), 14, 15 (node1), 16 (node2) of 64 have not "
                   "arrived within 60 s (parallel.timeout)");
}

static void test_many_missing_ranks_fit_into_the_message(void **state)
{
    MeetingOptions o = made_up_options(MEETING_MOST_RANKS);
    char notice[768], text[512];
    Desk d;
    (void)state;
    o.host = NULL;
    desk_open(&d, &o, 0);
    for (int i = 0; i < MEETING_MOST_RANKS; i += 2)
        made_up_arrival(&d, i, 0);
    assert_string_equal(desk_missing(&d, false, text, sizeof text),
                        "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 32760 more");
    desk_tick(&d, 10, notice, sizeof notice);
    assert_non_null(strstr(notice, "32768 of 65536 are here; missing: ranks 1, 3"));
    desk_tick(&d, 60, notice, sizeof notice);
    assert_int_equal(d.state, DESK_FAILED);
    desk_close(&d);
    desk_open(&d, &o, 0);
    o.timeout = 0; /* no limit */
    made_up_arrival(&d, 0, 0);
    desk_close(&d);
    desk_open(&d, &o, 0);
    made_up_arrival(&d, 0, 0);
    desk_tick(&d, 1e9, notice, sizeof notice);
    assert_int_equal(d.state, DESK_WAITS);
    desk_close(&d);
}

/* Lets ranks arrive with these values of the fact "config", one letter for each rank. */
static void odd(Desk *d, const MeetingOptions *o, const char *values)
{
    Greeting g;
    desk_open(d, o, 0);
    for (int i = 0; i < o->size && values[i]; i++) {
        made_up_greeting(&g, i, o->size);
        snprintf(g.fact[1].value, sizeof g.fact[1].value, "%c", values[i]);
        if (values[i] == '-') g.facts = 1;
        desk_greet(d, &g, 0);
    }
}

static void test_the_error_names_the_rank_with_the_rarer_value(void **state)
{
    static const struct {
        const char *values, *sentence;
    } row[] = {
        {"aaab", "rank 3 (node0): config is \"b\", but \"a\" on 3 of the 4 ranks; use one"},
        {"baaa", "rank 0 (node0): config is \"b\", but \"a\" on 3 of the 4 ranks; use one"},
        {"abab", "rank 1 (node0): config is \"b\", but \"a\" on 2 of the 4 ranks; use one"},
        {"abca", "rank 1 (node0): config is \"b\", but \"a\" on 2 of the 4 ranks; use one"},
        {"aa-a", "rank 2 (node0): config is \"\", but \"a\" on 3 of the 4 ranks; use one"},
        {"abcd", "rank 1 (node0): config is \"b\", but \"a\" on 1 of the 4 ranks; use one"},
    };
    MeetingOptions o = made_up_options(4);
    char notice[768];
    Desk d;
    (void)state;
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        odd(&d, &o, row[k].values);
        assert_verdict(&d, EXIT_CONFIG, row[k].sentence);
    }
    /* If not all ranks are here, rank 0 waits a second for others, to find out which rank is the
     * odd one. */
    odd(&d, &o, "bca");
    assert_int_equal(d.state, DESK_WAITS);
    assert_true(desk_tick(&d, 0.5, notice, sizeof notice) <= 1);
    assert_int_equal(d.state, DESK_WAITS);
    desk_tick(&d, 1, notice, sizeof notice);
    assert_verdict(&d, EXIT_CONFIG,
                   "rank 1 (node0): config is \"c\", but \"b\" on 1 of the 3 ranks; use one");
    /* There are more different values than a DeskFact has entries. */
    MeetingOptions nine = made_up_options(9);
    odd(&d, &nine, "bcdefgaaa");
    assert_int_equal(d.verdict.code, EXIT_CONFIG);
    desk_close(&d);
}

static void test_double_arrivals_wrong_sizes_and_lost_ranks_give_the_expected_error(void **state)
{
    MeetingOptions o = made_up_options(9);
    Greeting g;
    Desk d;
    (void)state;
    desk_open(&d, &o, 0);
    made_up_arrival(&d, 0, 0);
    made_up_arrival(&d, 8, 0);
    made_up_greeting(&g, 8, 9);
    snprintf(g.host, sizeof g.host, "elsewhere");
    desk_greet(&d, &g, 0);
    assert_verdict(&d, EXIT_PROTOCOL,
                   "rank 8 (node1) has arrived twice, the second time from elsewhere: two "
                   "processes were given the same rank, or two jobs the same name");
    desk_open(&d, &o, 0);
    made_up_arrival(&d, 0, 0);
    made_up_greeting(&g, 11, 12);
    desk_greet(&d, &g, 0);
    assert_verdict(&d, EXIT_CONFIG,
                   "rank 11 (node1) is one of 12 ranks, but rank 0 (node0) is one of 9: they were "
                   "not started together");
    desk_open(&d, &o, 0);
    made_up_arrival(&d, 0, 0);
    made_up_arrival(&d, 3, 0);
    desk_lost(&d, 3);
    desk_lost(&d, 4); /* the first cause stays */
    assert_verdict(&d, EXIT_PEER_LOST, "rank 3 (node0) has ended before all ranks had met");
    desk_open(&d, &o, 0);
    Verdict v = {EXIT_SYSTEM, "it cannot listen"};
    desk_report(&d, 4, &v);
    assert_verdict(&d, EXIT_SYSTEM, "rank 4 (node0): it cannot listen");
    /* All are here, but one does not get the table. */
    char notice[768];
    desk_open(&d, &o, 0);
    for (int i = 0; i < 9; i++)
        made_up_arrival(&d, i, 50);
    for (int i = 0; i < 8; i++)
        desk_ready(&d, i);
    desk_ready(&d, 3); /* a second message of the same rank */
    desk_tick(&d, 109, notice, sizeof notice);
    assert_int_equal(d.state, DESK_TABLES);
    desk_tick(&d, 110, notice, sizeof notice);
    assert_verdict(&d, EXIT_UNAVAILABLE,
                   "rank 8 (node1) of 9 has not got the table of members within 60 s "
                   "(parallel.timeout)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines_are_numbered_by_their_lowest_ranks),
        cmocka_unit_test(test_a_machine_is_identified_by_its_host_name_and_boot_id),
        cmocka_unit_test(test_missing_ranks_are_listed_every_ten_seconds),
        cmocka_unit_test(test_many_missing_ranks_fit_into_the_message),
        cmocka_unit_test(test_the_error_names_the_rank_with_the_rarer_value),
        cmocka_unit_test(test_double_arrivals_wrong_sizes_and_lost_ranks_give_the_expected_error),
    };
    return cmocka_run_group_tests_name("meeting desk", tests, NULL, NULL);
}
