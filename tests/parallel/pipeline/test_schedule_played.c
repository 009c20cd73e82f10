/* test_schedule_played.c -- runs schedules of all kinds and sizes in a simulation. Tests that they
 * complete, in the right order, and that every slot and buffer always contains the right
 * micro-batch. */
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/grid/schedule_play.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_played(const ScheduleSpec *spec)
{
    Played p;
    char err[256];
    played_open(&p, spec);
    played_play(&p);
    if (p.wrong[0]) fail_msg("%s", p.wrong);
    for (int run = 0; run < spec->stages * spec->chunks; run++)
        for (int64_t m = 0; m < spec->micros; m++)
            assert_true(*played_done(&p, spec->evaluate ? ACT_EVALUATE : ACT_BACKWARD, run, m));
    for (int i = 0; i < spec->stages; i++)
        for (int64_t k = 0; k < p.stage[i].s.n; k++)
            assert_true(p.stage[i].s.action[k].n_transfers <= 3);
    if (!played_check(&p, err, sizeof err)) fail_msg("%s", err);
    played_close(&p);
}

/* Bug 29: messages without a partner, or in an order that causes a deadlock. Bug 31: a buffer is
 * reused before its last reader has finished. */
static void test_bug_29_31_every_schedule_runs_to_its_end(void **state)
{
    (void)state;
    schedules_each(check_played);
}

/* Bug 34: fewer micro-batches than stages. Also runs the quick check of a run's start. */
static void test_bug_34_fewer_micro_batches_than_stages_run_to_the_end(void **state)
{
    (void)state;
    char err[256];
    for (int p = 8; p <= 16; p += 8)
        for (int m = 1; m < p; m++) {
            schedules_of(p, m, 4, check_played);
            ScheduleSpec spec = {SCHEDULE_INTERLEAVED, p, 3, m, false};
            assert_true(schedule_check(&spec, err, sizeof err));
        }
}

/* Distributes the micro-batches of a chunk over `slots` slots, and those of the stage over
 * `batches` batches. */
static void set_places(Schedule *s, int chunk, int slots, int batches)
{
    for (int64_t i = 0; i < s->n; i++) {
        Action *a = &s->action[i];
        if (a->kind != ACT_EXCHANGE && a->chunk == chunk) a->slot = (int)(a->micro % slots);
        a->batch = (int)(a->micro % batches);
    }
}

static int too_few;

/* Removes one slot of each chunk in turn, then one batch, if there are several. With many stages,
 * does so only on some of them. */
static void check_too_few(const ScheduleSpec *spec)
{
    enum { LONG = 20000 };
    Played p;
    if (spec->micros * spec->stages * spec->chunks > LONG) return;
    played_open(&p, spec);
    for (int i = 0; i < spec->stages; i += 1 + spec->stages / 9) {
        Schedule *s = &p.stage[i].s;
        for (int c = 0; c < spec->chunks; c++) {
            if (s->slots[c] < 2) continue;
            set_places(s, c, s->slots[c] - 1, s->batches);
            played_play(&p);
            assert_non_null(strstr(p.wrong, "slot holds micro-batch"));
            set_places(s, c, s->slots[c], s->batches);
            too_few++;
        }
        if (s->batches < 2) continue;
        set_places(s, 0, s->slots[0], s->batches - 1);
        played_play(&p);
        assert_non_null(strstr(p.wrong, "batch holds micro-batch"));
        set_places(s, 0, s->slots[0], s->batches);
        too_few++;
    }
    played_close(&p);
}

/* Shows that the simulation detects bug 31, and that no stage has more slots than it needs. */
static void test_bug_31_one_slot_or_batch_too_few_is_detected(void **state)
{
    (void)state;
    schedules_each(check_too_few);
    assert_true(too_few > 1000 / turns_every(10));
}

/* Rewrites the schedule in the simplest order: each message is a group of its own, and of the
 * messages of one moment the sends come before the receives. */
static int64_t send_first(Schedule *s)
{
    Action *action = must_alloc((size_t)(s->n + s->n_transfers) * sizeof *action);
    int64_t n = 0, fused = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const Action *a = &s->action[i];
        if (a->kind != ACT_EXCHANGE) action[n++] = *a;
        for (int receives = 0; receives < 2 && a->kind == ACT_EXCHANGE; receives++) {
            for (int k = 0; k < a->n_transfers; k++) {
                if (s->transfer[a->transfer + k].send == receives) continue;
                action[n++] =
                    (Action){.kind = ACT_EXCHANGE, .transfer = a->transfer + k, .n_transfers = 1};
            }
        }
        fused += a->n_transfers > 1;
    }
    free(s->action);
    s->action = action;
    s->n = n;
    return fused;
}

static int locked, with_groups;

static void check_naive(const ScheduleSpec *spec)
{
    Played p;
    char err[256];
    int64_t fused = 0;
    played_open(&p, spec);
    for (int i = 0; i < spec->stages; i++)
        fused += send_first(&p.stage[i].s);
    played_play(&p);
    bool good = played_check(&p, err, sizeof err);
    if (good != (p.wrong[0] == '\0')) fail_msg("\"%s\" and \"%s\"", p.wrong, err);
    if (!good) assert_non_null(strstr(err, "waits for ever"));
    locked += !good;
    with_groups += fused > 0;
    played_close(&p);
}

static void test_bug_29_schedules_that_send_before_they_receive_deadlock(void **state)
{
    (void)state;
    schedules_each(check_naive);
    print_message("naive order: %d of %d schedules with fused groups lock\n", locked, with_groups);
    assert_true(locked > with_groups / 2);
}

/* ---- random changes ---------------------------------------------------------------------------
 */

/* Splits a group of messages into two, or joins two consecutive groups. */
static bool split_or_join(Schedule *s, int64_t at)
{
    Action *a = &s->action[at], *next = a + 1;
    if (a->kind != ACT_EXCHANGE) return false;
    if (at + 1 < s->n && next->kind == ACT_EXCHANGE && a->n_transfers + next->n_transfers <= 3) {
        a->n_transfers += next->n_transfers;
        memmove(next, next + 1, (size_t)(--s->n - at - 1) * sizeof *a);
        return true;
    }
    if (a->n_transfers < 2) return false;
    s->action = must_realloc(s->action, (size_t)(s->n + 1) * sizeof *a);
    a = &s->action[at];
    memmove(a + 1, a, (size_t)(s->n++ - at) * sizeof *a);
    a[0].n_transfers = 1;
    a[1].n_transfers--;
    a[1].transfer++;
    return true;
}

/* Makes one random change to a stage's schedule. Some changes are harmless. */
static bool change(Schedule *s, uint64_t draw)
{
    int64_t at = (int64_t)(draw >> 8) % s->n, n = s->n_transfers,
            other = (int64_t)(draw >> 32) % s->n;
    if (draw % 8 == 0) other = at == s->n - 1 ? at : at + 1;
    Action *a = &s->action[at], kept = *a;
    Transfer *t = &s->transfer[at % n], message = *t;
    if (draw % 8 >= 5 && a->kind == ACT_EXCHANGE) return false;
    switch (draw % 8) {
    case 0:
    case 1:
        s->action[at] = s->action[other];
        s->action[other] = kept;
        return true;
    case 2: return split_or_join(s, at);
    case 3:
        *t = s->transfer[(at + 1) % n];
        s->transfer[(at + 1) % n] = message;
        return true;
    case 4: t->buffer = (int)other % s->buffers; return true;
    case 5: a->slot = (int)other % s->slots[a->chunk]; return true;
    case 6: a->batch = (int)other % s->batches; return true;
    default: *(a->in >= 0 ? &a->in : &a->out) = (int)other % s->buffers; return true;
    }
}

/* The check at a run's start accepts exactly what the simulation accepts. */
static void test_the_check_accepts_a_schedule_if_and_only_if_the_simulation_does(void **state)
{
    (void)state;
    enum { CASES = 5000 };
    int64_t every = turns_every(5);
    int good[2] = {0};
    for (uint64_t i = (uint64_t)turns_first(every); i < CASES; i += (uint64_t)every) {
        int kind = (int)(drawn(5, 6 * i) % 3), p = 2 + (int)(drawn(5, 6 * i + 1) % 15),
            v = kind == SCHEDULE_INTERLEAVED ? 1 + (int)(drawn(5, 6 * i + 2) % 4) : 1;
        ScheduleSpec spec = {(ScheduleKind)kind, p, v, 1 + (int)(drawn(5, 6 * i + 3) % 20),
                             i % 5 == 0};
        Played played;
        char err[256] = "";
        played_open(&played, &spec);
        if (change(&played.stage[drawn(5, 6 * i + 4) % (uint64_t)p].s, drawn(5, 6 * i + 5))) {
            played_play(&played);
            bool taken = played_check(&played, err, sizeof err);
            if (taken != (played.wrong[0] == '\0'))
                fail_msg("%llu: \"%s\" and \"%s\"", (unsigned long long)i, played.wrong, err);
            good[taken]++;
        }
        played_close(&played);
    }
    print_message("changed schedules: %d refused, %d taken\n", good[0], good[1]);
    assert_true(good[0] > CASES / every / 3 && good[1] > CASES / every / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_29_31_every_schedule_runs_to_its_end),
        cmocka_unit_test(test_bug_31_one_slot_or_batch_too_few_is_detected),
        cmocka_unit_test(test_bug_34_fewer_micro_batches_than_stages_run_to_the_end),
        cmocka_unit_test(test_bug_29_schedules_that_send_before_they_receive_deadlock),
        cmocka_unit_test(test_the_check_accepts_a_schedule_if_and_only_if_the_simulation_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
