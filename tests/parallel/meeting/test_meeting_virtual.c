/* test_meeting_virtual.c -- up to 65,536 ranks that meet in virtual time. Rank 0's decisions, the
 * messages and the tree of the table are the program's; connections and time are made up. The test
 * bounds the number of messages that follow one another, and the connections and bytes of each
 * process. */
#include "parallel/meeting/relay.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "tests/support/meeting/made_up_greetings.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One process of the simulation. */
typedef struct {
    double asks, has,
        ready; /* times at which it has connected to its parent, has the table, and reports that */
    int connections;
    int64_t sent, received; /* bytes */
} Virtual;

static const double LATENCY = 0.001; /* seconds of one message */

/* A connection: a handshake takes four messages, and the fifth may be sent at once. Returns the
 * time at which it can be sent. */
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

/* Lets all ranks greet rank 0. Returns the time at which the last one has arrived. */
static double greet_all(Desk *d, Virtual *v, int size, Bytes *table)
{
    Bytes body = {0};
    Greeting g;
    Table t;
    double last = 0;
    for (int i = 1; i < size; i++) {
        /* The order of arrival differs from the order of ranks. */
        int rank = 1 + (int)((int64_t)(i - 1) * 7919 % (size - 1));
        double now = i * 1e-5;
        now = sends(&v[rank], &v[0], NULL, connects(&v[rank], &v[0], now));
        made_up_greeting(&g, rank, size);
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

/* Sends the table down the tree, lets all ranks report that they have it, and lets rank 0 end the
 * meeting. Returns the time at which the last rank may leave. */
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

static void test_messages_connections_and_bytes_are_bounded_up_to_65536_ranks(void **state)
{
    static const int sizes[] = {2, 17, 500, 10000, MEETING_MOST_RANKS};
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int size = sizes[k], depth = 0, most_connections = 0;
        MeetingOptions o = made_up_options(size);
        Virtual *v = must_calloc((size_t)size, sizeof *v);
        Bytes table = {0};
        Desk d;
        double start = seconds_now();
        desk_open(&d, &o, 0);
        made_up_arrival(&d, 0, 0);
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
        /* Messages that follow one another: the answer (1), those for connecting to the parent (5),
         * the table (1 for each level of the tree), ready and go (2). */
        assert_true((end - here) / LATENCY < 1 + 5 + depth + 2 + 0.5);
        assert_int_equal(v[0].connections, size - 1);
        assert_true(most_connections <= 18);
        assert_true(table.used <= (size_t)(15 * size + 16 * (size / RANKS_PER_MACHINE + 1) + 64));
        assert_true(most_bytes <= 17 * ((int64_t)table.used + 300) + 1000);
        assert_true(of_rank_0 <= 16 * (int64_t)table.used + (int64_t)size * 600);
        /* No quadratic work: each of 65,536 ranks takes microseconds. */
        assert_true(seconds_now() - start < 5);
        bytes_free(&table);
        free(v);
        desk_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_connections_and_bytes_are_bounded_up_to_65536_ranks),
    };
    return cmocka_run_group_tests_name("meeting virtual", tests, NULL, NULL);
}
