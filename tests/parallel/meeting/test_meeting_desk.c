/* test_meeting_desk.c -- what rank 0 decides while ranks arrive, without sockets and in virtual
 * time: up to 65,536 ranks, those that are missing, odd, lost or there twice. */
#include "parallel/meeting/desk.h"
#include "parallel/meeting/relay.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PER_MACHINE = 8 };

static const char *host_name(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "node%d", rank / PER_MACHINE);
    return buf;
}

static MeetingOptions options(int size)
{
    static const MeetingFact fact[] = {{"version", "1", NULL}, {"config", "12ab", "use one"}};
    return (MeetingOptions){.size = size,
                            .local_rank = -1,
                            .timeout = 60,
                            .cpu_level = 9,
                            .fact = fact,
                            .facts = 2,
                            .host = host_name};
}

static void greeting(Greeting *g, int rank, int size)
{
    *g = (Greeting){.rank = rank, .size = size, .local_rank = rank % PER_MACHINE, .cpu_level = 4};
    host_name(NULL, rank, g->host, sizeof g->host);
    snprintf(g->boot, sizeof g->boot, "boot of %d", rank / PER_MACHINE);
    g->address = (Address){.family = 4, .port = (uint16_t)(1024 + rank % 60000), .ip = {10, 1}};
    g->facts = 2;
    g->fact[0] = (GreetingFact){"version", "1"};
    g->fact[1] = (GreetingFact){"config", "12ab"};
}

static void arrive(Desk *d, int rank, double now)
{
    Greeting g;
    greeting(&g, rank, d->o->size);
    desk_greet(d, &g, now);
}

/* ---- ten thousand ranks ---------------------------------------------------------------------- */

/* One process of the simulation. */
typedef struct {
    double asks, has, ready; /* when it has connected with its parent; has the table; says so */
    int connections;
    int64_t sent, received; /* bytes */
} Virtual;

static const double LATENCY = 0.001; /* seconds of one message */

/* A connection: a handshake takes four messages, and the fifth may be sent at once. Returns when it
 * can be sent. */
static double connects(Virtual *from, Virtual *to, double now)
{
    from->connections++;
    to->connections++;
    from->sent += HANDSHAKE_BYTES;
    from->received += HANDSHAKE_BYTES;
    to->sent += HANDSHAKE_BYTES;
    to->received += HANDSHAKE_BYTES;
    return now + 4 * LATENCY;
}

static double sends(Virtual *from, Virtual *to, const Bytes *body, double now)
{
    int64_t bytes = MESSAGE_HEAD_BYTES + (body ? (int64_t)body->used : 0);
    from->sent += bytes;
    to->received += bytes;
    return now + LATENCY;
}

static int by_time(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* All greet rank 0, which decides. Returns when the last one is there. */
static double greet_all(Desk *d, Virtual *v, int size, Bytes *table)
{
    Bytes body = {0};
    Greeting g;
    Table t;
    double last = 0;
    for (int i = 1; i < size; i++) {
        /* Any order of arrival. */
        int rank = 1 + (int)((int64_t)(i - 1) * 7919 % (size - 1));
        double now = i * 1e-5;
        now = sends(&v[rank], &v[0], NULL, connects(&v[rank], &v[0], now));
        greeting(&g, rank, size);
        body.used = 0;
        greeting_write(&body, &g);
        v[rank].sent += (int64_t)body.used;
        v[0].received += (int64_t)body.used;
        assert_true(greeting_read(&g, body.data, body.used));
        desk_greet(d, &g, now);
        last = fmax(last, now);
    }
    assert_int_equal(d->state, DESK_TABLES);
    d->rank[0].address = g.address;
    desk_table(d, &t);
    table_write(table, &t);
    assert_true(table->used <= table_most_bytes(size));
    table_free(&t);
    bytes_free(&body);
    return last;
}

/* The table goes down the tree; all say that they have it; rank 0 lets them go. Returns when the
 * last one may go. */
static double pass_on(Desk *d, Virtual *v, int size, const Bytes *table, double now)
{
    Bytes answer = {0};
    Answer a = {.parent = 1, .reach = d->rank[size - 1].address};
    answer_write(&answer, &a);
    double *end = must_calloc((size_t)size, sizeof *end);
    v[0].has = now;
    for (int i = 1; i < size; i++) {
        int parent = table_parent(i);
        assert_true(parent < i && i >= table_first_child(parent) &&
                    i < table_first_child(parent) + TABLE_CHILDREN);
        v[i].asks = sends(&v[0], &v[i], &answer, now);
        if (parent > 0)
            v[i].asks = sends(&v[i], &v[parent], NULL, connects(&v[i], &v[parent], v[i].asks));
        v[i].has = sends(&v[parent], &v[i], table, fmax(v[parent].has, v[i].asks));
        v[i].ready = v[i].has;
    }
    for (int i = size - 1; i > 0; i--) {
        v[table_parent(i)].ready = fmax(v[table_parent(i)].ready, v[i].has);
        end[i] = sends(&v[i], &v[0], NULL, v[i].ready);
    }
    qsort(end, (size_t)size, sizeof *end, by_time);
    desk_ready(d, 0);
    for (int i = 1; i < size; i++) {
        assert_int_equal(d->state, DESK_TABLES);
        desk_ready(d, i);
    }
    assert_int_equal(d->state, DESK_MET);
    double last = end[size - 1];
    for (int i = 1; i < size; i++)
        last = fmax(last, sends(&v[0], &v[i], NULL, end[size - 1]));
    free(end);
    bytes_free(&answer);
    return last;
}

static void test_ten_thousand_virtual_ranks_meet_within_bounds(void **state)
{
    static const int sizes[] = {2, 17, 500, 10000, MEETING_MOST_RANKS};
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int size = sizes[k], depth = 0, most_connections = 0;
        MeetingOptions o = options(size);
        Virtual *v = must_calloc((size_t)size, sizeof *v);
        Bytes table = {0};
        Desk d;
        double start = seconds_now();
        desk_open(&d, &o, 0);
        arrive(&d, 0, 0);
        double here = greet_all(&d, v, size, &table);
        double end = pass_on(&d, v, size, &table, here);
        for (int i = size - 1; i > 0; i = table_parent(i))
            depth++;
        int64_t most_bytes = 0;
        for (int i = 1; i < size; i++) {
            if (v[i].connections > most_connections) most_connections = v[i].connections;
            if (v[i].sent + v[i].received > most_bytes) most_bytes = v[i].sent + v[i].received;
        }
        int64_t of_rank_0 = v[0].sent + v[0].received;
        print_message("%5d ranks: %2.0f messages one after the other once all are here; "
                      "connections %d of rank 0, %d of others; table %zu bytes; bytes %lld of rank "
                      "0, %lld of others; %.2f s\n",
                      size, (end - here) / LATENCY, v[0].connections, most_connections, table.used,
                      (long long)of_rank_0, (long long)most_bytes, seconds_now() - start);
        /* Answer, connecting, table, ready, go; a table for each level. */
        assert_true((end - here) / LATENCY < 1 + 5 + depth + 2 + 0.5);
        assert_int_equal(v[0].connections, size - 1);
        assert_true(most_connections <= 18);
        assert_true(table.used <= (size_t)(15 * size + 16 * (size / PER_MACHINE + 1) + 64));
        assert_true(most_bytes <= 17 * ((int64_t)table.used + 300) + 1000);
        assert_true(of_rank_0 <= 16 * (int64_t)table.used + (int64_t)size * 600);
        /* No quadratic work: each of 65,536 ranks takes microseconds. */
        assert_true(seconds_now() - start < 5);
        bytes_free(&table);
        free(v);
        desk_close(&d);
    }
}

/* ---- machines -------------------------------------------------------------------------------- */

static void test_machines_are_numbered_by_their_lowest_ranks(void **state)
{
    /* Each letter is a machine; the digits are what the launcher says. */
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
        MeetingOptions o = options(4);
        Desk d;
        Table t;
        Greeting g;
        desk_open(&d, &o, 0);
        for (int i = 3; i >= 0; i--) { /* the order of arrival does not matter */
            greeting(&g, i, 4);
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

static void test_a_machine_is_its_host_name_and_its_boot(void **state)
{
    enum { SIZE = 4096, KINDS = 64 };
    MeetingOptions o = options(SIZE);
    Desk d;
    Greeting g;
    (void)state;
    desk_open(&d, &o, 0);
    for (int i = 0; i < SIZE; i++) {
        greeting(&g, i, SIZE);
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
    MeetingOptions o = options(64);
    char notice[768];
    Desk d;
    int notices = 0;
    (void)state;
    desk_open(&d, &o, 100);
    for (int i = 0; i < 64; i++)
        if (i != 5 && i != 9 && i != 10 && i != 11 && i != 14 && i != 15 && i != 16)
            arrive(&d, i, 101);
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
    MeetingOptions o = options(MEETING_MOST_RANKS);
    char notice[768], text[512];
    Desk d;
    (void)state;
    o.host = NULL;
    desk_open(&d, &o, 0);
    for (int i = 0; i < MEETING_MOST_RANKS; i += 2)
        arrive(&d, i, 0);
    assert_string_equal(desk_missing(&d, false, text, sizeof text),
                        "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 32760 more");
    desk_tick(&d, 10, notice, sizeof notice);
    assert_non_null(strstr(notice, "32768 of 65536 are here; missing: ranks 1, 3"));
    desk_tick(&d, 60, notice, sizeof notice);
    assert_int_equal(d.state, DESK_FAILED);
    desk_close(&d);
    desk_open(&d, &o, 0);
    o.timeout = 0; /* no limit */
    arrive(&d, 0, 0);
    desk_close(&d);
    desk_open(&d, &o, 0);
    arrive(&d, 0, 0);
    desk_tick(&d, 1e9, notice, sizeof notice);
    assert_int_equal(d.state, DESK_WAITS);
    desk_close(&d);
}

/* Ranks with these values of "config", one letter each. */
static void odd(Desk *d, const MeetingOptions *o, const char *values)
{
    Greeting g;
    desk_open(d, o, 0);
    for (int i = 0; i < o->size && values[i]; i++) {
        greeting(&g, i, o->size);
        snprintf(g.fact[1].value, sizeof g.fact[1].value, "%c", values[i]);
        if (values[i] == '-') g.facts = 1;
        desk_greet(d, &g, 0);
    }
}

static void test_the_odd_rank_has_the_rarer_value(void **state)
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
    MeetingOptions o = options(4);
    char notice[768];
    Desk d;
    (void)state;
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        odd(&d, &o, row[k].values);
        assert_verdict(&d, EXIT_CONFIG, row[k].sentence);
    }
    /* Not all are here: rank 0 waits a second for others, to know which is the odd one. */
    odd(&d, &o, "bca");
    assert_int_equal(d.state, DESK_WAITS);
    assert_true(desk_tick(&d, 0.5, notice, sizeof notice) <= 1);
    assert_int_equal(d.state, DESK_WAITS);
    desk_tick(&d, 1, notice, sizeof notice);
    assert_verdict(&d, EXIT_CONFIG,
                   "rank 1 (node0): config is \"c\", but \"b\" on 1 of the 3 ranks; use one");
    /* More different values than the table has room for. */
    MeetingOptions nine = options(9);
    odd(&d, &nine, "bcdefgaaa");
    assert_int_equal(d.verdict.code, EXIT_CONFIG);
    desk_close(&d);
}

static void test_other_ends(void **state)
{
    MeetingOptions o = options(9);
    Greeting g;
    Desk d;
    (void)state;
    desk_open(&d, &o, 0);
    arrive(&d, 0, 0);
    arrive(&d, 8, 0);
    greeting(&g, 8, 9);
    snprintf(g.host, sizeof g.host, "elsewhere");
    desk_greet(&d, &g, 0);
    assert_verdict(&d, EXIT_PROTOCOL,
                   "rank 8 (node1) has arrived twice, the second time from elsewhere: two "
                   "processes were given the same rank, or two jobs the same name");
    desk_open(&d, &o, 0);
    arrive(&d, 0, 0);
    greeting(&g, 11, 12);
    desk_greet(&d, &g, 0);
    assert_verdict(&d, EXIT_CONFIG,
                   "rank 11 (node1) is one of 12 ranks, but rank 0 (node0) is one of 9: they were "
                   "not started together");
    desk_open(&d, &o, 0);
    arrive(&d, 0, 0);
    arrive(&d, 3, 0);
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
        arrive(&d, i, 50);
    for (int i = 0; i < 8; i++)
        desk_ready(&d, i);
    desk_ready(&d, 3); /* again */
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
        cmocka_unit_test(test_ten_thousand_virtual_ranks_meet_within_bounds),
        cmocka_unit_test(test_machines_are_numbered_by_their_lowest_ranks),
        cmocka_unit_test(test_a_machine_is_its_host_name_and_its_boot),
        cmocka_unit_test(test_missing_ranks_are_listed_every_ten_seconds),
        cmocka_unit_test(test_many_missing_ranks_fit_into_the_message),
        cmocka_unit_test(test_the_odd_rank_has_the_rarer_value),
        cmocka_unit_test(test_other_ends),
    };
    return cmocka_run_group_tests_name("meeting desk", tests, NULL, NULL);
}
