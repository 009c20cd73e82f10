/* test_flight.c -- tests the flight recorder by itself: numbers of entries, the ring buffer, tasks,
 * groups, messages, and readers in another thread. What devices, ops and communicators record is
 * tested in tests/parallel/comm/test_flight_calls.c. */
#include "model/core/clock.h"
#include "model/core/flight_inside.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const FlightEntry fill = {.kind = FLIGHT_OP,
                                 .code = 3,
                                 .dtype = F32,
                                 .elements = 12,
                                 .group = -1,
                                 .peer = -1,
                                 .call = -1};

static FlightEntry out[FLIGHT_SNAPSHOT];

static void test_an_entry_records_its_number_times_step_and_action(void **state)
{
    (void)state;
    Flight *f = flight_create();
    double before = seconds_now();
    assert_int_equal(flight_snapshot(f, out), 0);
    flight_at(f, 7, 2, FLIGHT_BACKWARD);
    assert_int_equal(flight_unit(f, 5), -1);
    int64_t n = flight_begin(f, NULL, &fill);
    assert_int_equal(n, 1);
    assert_int_equal(flight_unit(f, -1), 5);
    assert_int_equal(flight_snapshot(f, out), 1);
    FlightEntry e = out[0];
    assert_int_equal(e.n, 1);
    assert_int_equal(e.step, 7);
    assert_int_equal(e.micro_batch, 2);
    assert_int_equal(e.action, FLIGHT_BACKWARD);
    assert_int_equal(e.unit, 5);
    assert_int_equal(e.elements, 12);
    assert_int_equal(e.code, 3);
    assert_int_equal(e.stream, FLIGHT_HOST);
    assert_true(e.issued >= before && e.issued <= seconds_now());
    assert_true(e.finished == 0);
    flight_end(f, n);
    assert_int_equal(flight_snapshot(f, out), 1);
    assert_true(out[0].finished >= e.issued);
    FlightPlace place = flight_place(f);
    assert_int_equal(place.step, 7);
    assert_int_equal(place.micro_batch, 2);
    assert_int_equal(place.action, FLIGHT_BACKWARD);
    flight_free(f);
}

/* The ring buffer keeps the last FLIGHT_ENTRIES entries, in order. */
static void test_the_ring_buffer_overwrites_its_oldest_entries(void **state)
{
    (void)state;
    const int64_t all = 2 * FLIGHT_ENTRIES + 17;
    Flight *f = flight_create();
    for (int64_t i = 1; i <= all; i++) {
        FlightEntry e = fill;
        e.elements = 10 * i;
        assert_int_equal(flight_begin(f, NULL, &e), i);
        if (i % 2) flight_end(f, i);
    }
    flight_end(f, 1); /* its entry is overwritten: must not change the one now in its slot */
    flight_end(f, 2);
    assert_int_equal(flight_issued(f), all);
    assert_int_equal(flight_snapshot(f, out), FLIGHT_ENTRIES);
    for (int i = 0; i < FLIGHT_ENTRIES; i++) {
        assert_int_equal(out[i].n, all - FLIGHT_ENTRIES + 1 + i);
        assert_int_equal(out[i].elements, 10 * out[i].n);
        assert_int_equal(out[i].finished > 0, out[i].n % 2);
    }
    flight_free(f);
}

/* Tasks (FLIGHT_WORK) may be nested. A running task is in a snapshot even if the ring has
 * overwritten its entry. */
static void test_a_running_task_is_kept_when_the_ring_overwrites_its_entry(void **state)
{
    (void)state;
    Flight *f = flight_create();
    int64_t outer = flight_work_begin(f, FLIGHT_EVALUATION);
    int64_t inner = flight_work_begin(f, FLIGHT_DATA);
    assert_int_equal(flight_snapshot(f, out), 2);
    flight_work_end(f, inner);
    for (int i = 0; i < FLIGHT_ENTRIES; i++)
        flight_end(f, flight_begin(f, NULL, &fill));
    assert_int_equal(flight_snapshot(f, out), FLIGHT_ENTRIES + 1);
    assert_int_equal(out[0].n, outer);
    assert_int_equal(out[0].kind, FLIGHT_WORK);
    assert_int_equal(out[0].code, FLIGHT_EVALUATION);
    assert_true(out[0].finished == 0);
    assert_int_equal(out[1].n, 3);
    flight_work_end(f, outer);
    assert_int_equal(flight_snapshot(f, out), FLIGHT_ENTRIES);
    flight_free(f);
}

static void test_nothing_is_recorded_while_recording_is_hidden(void **state)
{
    (void)state;
    Flight *f = flight_create();
    int64_t first = flight_begin(f, NULL, &fill);
    flight_hide(f);
    flight_hide(f);
    assert_int_equal(flight_begin(f, NULL, &fill), 0);
    flight_show(f);
    assert_int_equal(flight_work_begin(f, FLIGHT_DISK), 0);
    flight_work_end(f, 0);
    flight_show(f);
    assert_int_equal(flight_begin(f, NULL, &fill), first + 1);
    flight_end_from(f, first, FLIGHT_COPY); /* the entry is of another kind */
    flight_snapshot(f, out);
    assert_true(out[0].finished == 0);
    flight_end_from(f, first + 1, FLIGHT_OP);
    flight_snapshot(f, out);
    assert_true(out[0].finished == 0 && out[1].finished > 0);
    flight_free(f);
}

static void test_without_a_flight_recorder_nothing_is_recorded(void **state)
{
    (void)state;
    flight_at(NULL, 1, 1, FLIGHT_FORWARD);
    assert_int_equal(flight_unit(NULL, 3), -1);
    assert_int_equal(flight_begin(NULL, NULL, &fill), 0);
    assert_int_equal(flight_work_begin(NULL, FLIGHT_SAVE), 0);
    flight_end(NULL, 0);
    flight_work_end(NULL, 0);
    flight_end_from(NULL, 1, FLIGHT_OP);
    flight_hide(NULL);
    flight_show(NULL);
    assert_int_equal(flight_group(NULL, &(GraphGroup){.name = "dp"}), -1);
    assert_int_equal(flight_message(NULL, 0, 1, true), -1);
}

static void test_a_group_that_is_used_again_keeps_its_index(void **state)
{
    (void)state;
    Flight *f = flight_create();
    GraphGroup dp = {"dp", 4, 1, 2, 8}, pp = {"pp", 3, 1, 0, 16}, found[FLIGHT_GROUPS];
    assert_int_equal(flight_group(f, &dp), 0);
    assert_int_equal(flight_group(f, &pp), 1);
    assert_int_equal(flight_group(f, &dp), 0);
    assert_int_equal(flight_groups(f, found), 2);
    assert_string_equal(found[1].name, "pp");
    assert_int_equal(found[0].stride, 8);
    for (int g = 2; g < FLIGHT_GROUPS; g++)
        assert_int_equal(flight_group(f, &(GraphGroup){"x", 4, 1, g, 1}), g);
    assert_int_equal(flight_group(f, &(GraphGroup){"x", 4, 1, 99, 1}), -1);
    assert_int_equal(flight_groups(f, found), FLIGHT_GROUPS);
    flight_free(f);
}

/* Messages are counted by group, peer and direction. */
static void test_messages_are_counted_for_each_group_peer_and_direction(void **state)
{
    (void)state;
    Flight *f = flight_create();
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(flight_message(f, 0, 1, true), i);
        assert_int_equal(flight_message(f, 0, 1, false), i);
        assert_int_equal(flight_message(f, 0, 2, true), i);
        assert_int_equal(flight_message(f, 1, 1, true), i);
    }
    for (int peer = 3; peer < 511; peer++)
        assert_int_equal(flight_message(f, 0, peer, true), 1);
    assert_int_equal(flight_message(f, 0, 9999, true), -1); /* no counter is free */
    assert_int_equal(flight_message(f, 0, 1, true), 4);
    assert_int_equal(flight_message(f, -1, 1, true), -1);
    flight_free(f);
}

/* ---- readers in another thread --------------------------------------------------------------- */

typedef struct {
    Flight *flight;
    _Atomic bool stop;
    int64_t snapshots, torn, seen;
} Reader;

/* Returns whether all fields of the entry have the values that the writer below gives to entry
 * number e->n. */
static bool is_whole(const FlightEntry *e)
{
    return e->elements == 3 * e->n && e->call == 5 * e->n && e->peer == (int32_t)(e->n % 1000) &&
           e->step == (int32_t)(e->n / 10) && e->unit == (int16_t)(e->n / 10 % 100) &&
           (e->finished == 0 || e->finished >= e->issued) && e->issued > 0;
}

static void *read_on(void *context)
{
    Reader *r = context;
    FlightEntry *entry = calloc(FLIGHT_SNAPSHOT, sizeof *entry);
    do {
        int n = flight_snapshot(r->flight, entry);
        r->snapshots++;
        r->seen += n;
        for (int i = 0; i < n; i++)
            r->torn += !is_whole(&entry[i]) || (i > 0 && entry[i].n <= entry[i - 1].n);
    } while (!atomic_load(&r->stop));
    free(entry);
    return NULL;
}

/* A reader must never see an entry that mixes the words of two entries, however fast the writer
 * is. */
static void test_a_reader_in_another_thread_sees_only_whole_entries(void **state)
{
    (void)state;
    pthread_t thread;
    Reader r = {.flight = flight_create()};
    assert_int_equal(pthread_create(&thread, NULL, read_on, &r), 0);
    for (int64_t n = 1; n <= 200 * FLIGHT_ENTRIES; n++) {
        FlightEntry e = fill;
        e.elements = 3 * n;
        e.call = 5 * n;
        e.peer = (int32_t)(n % 1000);
        flight_at(r.flight, n / 10, -1, FLIGHT_FORWARD);
        flight_unit(r.flight, (int)(n / 10 % 100));
        flight_end(r.flight, flight_begin(r.flight, NULL, &e));
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    assert_true(r.snapshots > 1);
    assert_true(r.seen > 0);
    assert_int_equal(r.torn, 0);
    flight_free(r.flight);
}

typedef struct {
    Slot slot;
    _Atomic bool stop;
    int64_t whole, torn;
} OneSlot;

static void *load_on(void *context)
{
    OneSlot *s = context;
    FlightEntry e;
    while (!atomic_load(&s->stop)) {
        if (!slot_load(&s->slot, &e)) continue;
        s->whole++;
        s->torn += e.elements != e.n || e.call != e.n || e.peer != (int32_t)e.n;
    }
    return NULL;
}

/* The same test with a single slot that is written again and again, so that reader and writer often
 * access it at the same time. */
static void test_a_reader_of_a_single_slot_sees_only_whole_entries(void **state)
{
    (void)state;
    static OneSlot s;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, load_on, &s), 0);
    double start = seconds_now();
    for (int64_t n = 1; seconds_now() - start < 0.5; n++)
        slot_store(&s.slot, &(FlightEntry){.n = n, .elements = n, .call = n, .peer = (int32_t)n});
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_true(s.whole > 0);
    assert_int_equal(s.torn, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_entry_records_its_number_times_step_and_action),
        cmocka_unit_test(test_the_ring_buffer_overwrites_its_oldest_entries),
        cmocka_unit_test(test_a_running_task_is_kept_when_the_ring_overwrites_its_entry),
        cmocka_unit_test(test_nothing_is_recorded_while_recording_is_hidden),
        cmocka_unit_test(test_without_a_flight_recorder_nothing_is_recorded),
        cmocka_unit_test(test_a_group_that_is_used_again_keeps_its_index),
        cmocka_unit_test(test_messages_are_counted_for_each_group_peer_and_direction),
        cmocka_unit_test(test_a_reader_in_another_thread_sees_only_whole_entries),
        cmocka_unit_test(test_a_reader_of_a_single_slot_sees_only_whole_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
