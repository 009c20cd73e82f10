/* test_schedule_played.c -- the schedules of all kinds and sizes, played in a way of their own:
 * whether they come to an end, in the right order, on places that hold what they should. */
#include "model/core/check.h"
#include "parallel/pipeline/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_STAGES = 8, MOST_MICROS = 16, MOST_CHUNKS = 4, MOST_BUFFERS = 256 };

/* What a buffer holds: what a run has made of a micro-batch. Zero: nothing. */
typedef struct {
    int run, kind; /* run + 1; an ActionKind */
    int64_t micro;
} Content;

typedef struct {
    const ScheduleSpec *spec;
    Schedule s[MOST_STAGES];
    int64_t at[MOST_STAGES];
    Content buffer[MOST_STAGES][MOST_BUFFERS];
    /* What each action has done: [kind][run][micro]. */
    bool done[ACT_EXCHANGE][MOST_STAGES * MOST_CHUNKS][MOST_MICROS];
    int64_t slot[MOST_STAGES][MOST_CHUNKS][MOST_MICROS], batch[MOST_STAGES][MOST_MICROS];
    bool delivered[MOST_STAGES][4 * MOST_MICROS * MOST_CHUNKS];
    char wrong[256]; /* the first thing; "" */
} Simulation;

__attribute__((format(printf, 3, 4))) static void wrong(Simulation *sim, int stage, const char *fmt,
                                                        ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (sim->wrong[0] == '\0')
        snprintf(sim->wrong, sizeof sim->wrong,
                 "kind %d, %d stages of %d, %lld micro-batches%s: stage %d, action %lld: %s",
                 (int)sim->spec->kind, sim->spec->stages, sim->spec->chunks,
                 (long long)sim->spec->micros, sim->spec->evaluate ? " (evaluation)" : "", stage,
                 (long long)sim->at[stage], text);
}

static bool same(Content a, Content b)
{
    return a.run == b.run && a.kind == b.kind && a.micro == b.micro;
}

/* The run whose output an action of this one reads; -1: none. */
static int source(const ScheduleSpec *spec, ActionKind kind, int run)
{
    if (kind != ACT_BACKWARD) return run - 1;
    return run + 1 == spec->stages * spec->chunks ? -1 : run + 1;
}

/* Places that a micro-batch has from its first action to its last, and that nobody else may take:
 * -1: nobody's. */
static void hold(Simulation *sim, int stage, int64_t *place, bool first, bool last, int64_t micro,
                 const char *what)
{
    if (*place != (first ? -1 : micro))
        wrong(sim, stage, "%s holds micro-batch %lld", what, (long long)*place);
    *place = last ? -1 : micro;
}

static void simulate_action(Simulation *sim, int stage, const Action *a)
{
    const ScheduleSpec *spec = sim->spec;
    int run = a->chunk * spec->stages + stage, from = source(spec, a->kind, run);
    bool back = a->kind == ACT_BACKWARD, evaluates = a->kind == ACT_EVALUATE,
         ends = run == (back ? 0 : spec->stages * spec->chunks - 1);
    if (sim->done[a->kind][run][a->micro]) wrong(sim, stage, "done twice");
    if (a->micro > 0 && !sim->done[a->kind][run][a->micro - 1])
        wrong(sim, stage, "before the micro-batch before it");
    if (back && !sim->done[ACT_FORWARD][run][a->micro]) wrong(sim, stage, "before its forward");
    sim->done[a->kind][run][a->micro] = true;
    Content *in = from >= 0 ? &sim->buffer[stage][a->in] : NULL,
            *out = ends ? NULL : &sim->buffer[stage][a->out];
    if ((a->in >= 0) != (in != NULL) || (a->out >= 0) != (out != NULL))
        wrong(sim, stage, "buffers %d and %d", a->in, a->out);
    if (in && !same(*in, (Content){from + 1, a->kind, a->micro}))
        wrong(sim, stage, "reads run %d, kind %d, micro-batch %lld", in->run - 1, in->kind,
              (long long)in->micro);
    if (out && out->run != 0) wrong(sim, stage, "writes a buffer that is not read yet");
    if (in) *in = (Content){0};
    if (out) *out = (Content){run + 1, a->kind, a->micro};
    if (!evaluates)
        hold(sim, stage, &sim->slot[stage][a->chunk][a->slot], !back, back, a->micro, "slot");
    hold(sim, stage, &sim->batch[stage][a->batch], a->chunk == 0 && !back,
         evaluates ? a->chunk == spec->chunks - 1 : back && a->chunk == 0, a->micro, "batch");
}

/* The place of a transfer among those from one stage to another. */
static int64_t order_of(const Schedule *s, int64_t transfer)
{
    int64_t n = 0;
    for (int64_t i = 0; i < transfer; i++)
        n += s->transfer[i].peer == s->transfer[transfer].peer &&
             s->transfer[i].send == s->transfer[transfer].send;
    return n;
}

/* The transfer of the other side that this one meets; -1: none. */
static int64_t partner(const Simulation *sim, int stage, const Transfer *t, int64_t order)
{
    const Schedule *s = &sim->s[t->peer];
    for (int64_t i = 0; i < s->n_transfers; i++)
        if (s->transfer[i].peer == stage && s->transfer[i].send != t->send && order-- == 0)
            return i;
    return -1;
}

/* Whether the peer stands at, or behind, the group of its transfer. */
static bool reached(const Simulation *sim, int peer, int64_t transfer)
{
    const Schedule *s = &sim->s[peer];
    for (int64_t i = 0; i <= sim->at[peer] && i < s->n; i++) {
        const Action *a = &s->action[i];
        if (a->kind == ACT_EXCHANGE && transfer >= a->transfer &&
            transfer < a->transfer + a->n_transfers)
            return true;
    }
    return false;
}

/* False: a partner's group is not there yet. */
static bool simulate_group(Simulation *sim, int stage, const Action *a)
{
    for (int i = 0; i < a->n_transfers; i++) {
        const Transfer *t = &sim->s[stage].transfer[a->transfer + i];
        int64_t other = partner(sim, stage, t, order_of(&sim->s[stage], a->transfer + i));
        if (other < 0) {
            wrong(sim, stage, "a message to or from %d has no other side", t->peer);
            return false;
        }
        if (sim->s[t->peer].transfer[other].tag != t->tag)
            wrong(sim, stage, "tag %d meets %d of stage %d", t->tag,
                  sim->s[t->peer].transfer[other].tag, t->peer);
        if (!reached(sim, t->peer, other)) return false;
    }
    return true;
}

/* Of a group that is complete: what is sent leaves its buffer for that of the other side, which
 * must be free. Whichever side goes on first does it. */
static void deliver(Simulation *sim, int from, int64_t sent, int to, int64_t received)
{
    const Transfer *out = &sim->s[from].transfer[sent], *in = &sim->s[to].transfer[received];
    if (sim->delivered[from][sent]) return;
    sim->delivered[from][sent] = true;
    Content *a = &sim->buffer[from][out->buffer], *b = &sim->buffer[to][in->buffer];
    if (a->run == 0) wrong(sim, from, "sends an empty buffer");
    if (b->run != 0) wrong(sim, to, "receives over what is not read yet");
    *b = *a;
    *a = (Content){0};
}

static void deliver_group(Simulation *sim, int stage, const Action *a)
{
    for (int64_t i = a->transfer; i < a->transfer + a->n_transfers; i++) {
        const Transfer *t = &sim->s[stage].transfer[i];
        int64_t other = partner(sim, stage, t, order_of(&sim->s[stage], i));
        if (t->send)
            deliver(sim, stage, i, t->peer, other);
        else
            deliver(sim, t->peer, other, stage, i);
    }
}

static void reset(Simulation *sim)
{
    memset(sim->at, 0, sizeof sim->at);
    memset(sim->buffer, 0, sizeof sim->buffer);
    memset(sim->done, 0, sizeof sim->done);
    memset(sim->delivered, 0, sizeof sim->delivered);
    memset(sim->slot, 0xFF, sizeof sim->slot);
    memset(sim->batch, 0xFF, sizeof sim->batch);
    sim->wrong[0] = '\0';
}

/* Plays it; what is wrong is in sim->wrong. */
static void simulate(Simulation *sim)
{
    reset(sim);
    for (bool moved = true; moved && sim->wrong[0] == '\0';) {
        moved = false;
        for (int stage = 0; stage < sim->spec->stages; stage++) {
            Schedule *s = &sim->s[stage];
            for (; sim->at[stage] < s->n; sim->at[stage]++) {
                const Action *a = &s->action[sim->at[stage]];
                if (a->kind != ACT_EXCHANGE)
                    simulate_action(sim, stage, a);
                else if (simulate_group(sim, stage, a))
                    deliver_group(sim, stage, a);
                else
                    break;
                moved = true;
            }
        }
    }
    for (int stage = 0; stage < sim->spec->stages; stage++)
        if (sim->at[stage] < sim->s[stage].n) wrong(sim, stage, "waits for ever");
}

static void open_simulation(Simulation *sim, const ScheduleSpec *spec)
{
    sim->spec = spec;
    for (int i = 0; i < spec->stages; i++) {
        sim->s[i] = schedule_create(spec, i);
        assert_true(sim->s[i].buffers <= MOST_BUFFERS);
    }
}

static void close_simulation(Simulation *sim)
{
    for (int i = 0; i < sim->spec->stages; i++)
        schedule_free(&sim->s[i]);
}

/* ---- every kind and size --------------------------------------------------------------------- */

typedef void (*Visit)(Simulation *sim);

/* All kinds, chunks and evaluations, with so many stages and micro-batches. */
static void each_kind(Simulation *sim, int p, int m, Visit visit)
{
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_INTERLEAVED; kind++) {
        for (int v = 1; v <= (kind == SCHEDULE_INTERLEAVED ? MOST_CHUNKS : 1); v++) {
            for (int evaluate = 0; evaluate < 2; evaluate++) {
                ScheduleSpec spec = {(ScheduleKind)kind, p, v, m, evaluate == 1};
                open_simulation(sim, &spec);
                visit(sim);
                close_simulation(sim);
            }
        }
    }
}

static void each_schedule(Visit visit)
{
    Simulation *sim = must_calloc(1, sizeof *sim);
    for (int p = 1; p <= MOST_STAGES; p++)
        for (int m = 1; m <= MOST_MICROS; m++)
            each_kind(sim, p, m, visit);
    free(sim);
}

static void check_played(Simulation *sim)
{
    const ScheduleSpec *spec = sim->spec;
    char err[256];
    simulate(sim);
    if (sim->wrong[0]) fail_msg("%s", sim->wrong);
    for (int run = 0; run < spec->stages * spec->chunks; run++)
        for (int64_t m = 0; m < spec->micros; m++)
            assert_true(spec->evaluate ? sim->done[ACT_EVALUATE][run][m]
                                       : sim->done[ACT_BACKWARD][run][m]);
    for (int i = 0; i < spec->stages; i++)
        for (int64_t k = 0; k < sim->s[i].n; k++)
            assert_true(sim->s[i].action[k].n_transfers <= 3);
    if (!schedule_check_all(spec, sim->s, err, sizeof err)) fail_msg("%s", err);
}

/* Bug 29: messages without another side, or in an order that locks the stages. Bug 31: a place is
 * used again before its last reader is through. */
static void test_bug_29_31_every_schedule_runs(void **state)
{
    (void)state;
    each_schedule(check_played);
}

/* Bug 34: fewer micro-batches than stages; the cheap check at a run's start, too. */
static void test_bug_34_fewer_micro_batches_than_stages(void **state)
{
    (void)state;
    char err[256];
    Simulation *sim = must_calloc(1, sizeof *sim);
    for (int m = 1; m < MOST_STAGES; m++) {
        each_kind(sim, MOST_STAGES, m, check_played);
        ScheduleSpec spec = {SCHEDULE_INTERLEAVED, MOST_STAGES, 3, m, false};
        assert_true(schedule_check(&spec, err, sizeof err));
    }
    free(sim);
}

static void set_places(Schedule *s, int slots, int batches)
{
    for (int64_t i = 0; i < s->n; i++) {
        Action *a = &s->action[i];
        if (a->kind != ACT_EXCHANGE && a->chunk == 0) a->slot = (int)(a->micro % slots);
        a->batch = (int)(a->micro % batches);
    }
}

/* One slot less, and one batch less, on each stage that has several. */
static void check_too_few(Simulation *sim)
{
    for (int stage = 0; stage < sim->spec->stages; stage++) {
        Schedule *s = &sim->s[stage];
        if (sim->spec->evaluate || s->slots[0] < 2) continue;
        set_places(s, s->slots[0] - 1, s->batches);
        simulate(sim);
        assert_non_null(strstr(sim->wrong, "slot holds micro-batch"));
        set_places(s, s->slots[0], s->batches - 1);
        simulate(sim);
        assert_non_null(strstr(sim->wrong, "batch holds micro-batch"));
        set_places(s, s->slots[0], s->batches);
    }
}

/* Bug 31 is seen, and no stage has a place that it does not need. */
static void test_bug_31_a_place_too_few_is_seen(void **state)
{
    (void)state;
    each_schedule(check_too_few);
}

/* Every message alone, sends before receives: the naive order. */
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

static void check_naive(Simulation *sim)
{
    char err[256];
    int64_t fused = 0;
    for (int i = 0; i < sim->spec->stages; i++)
        fused += send_first(&sim->s[i]);
    simulate(sim);
    bool good = schedule_check_all(sim->spec, sim->s, err, sizeof err);
    if (good != (sim->wrong[0] == '\0')) fail_msg("\"%s\" and \"%s\"", sim->wrong, err);
    if (!good) assert_non_null(strstr(err, "waits for ever"));
    locked += !good;
    with_groups += fused > 0;
}

static void test_bug_29_the_naive_order_locks(void **state)
{
    (void)state;
    each_schedule(check_naive);
    print_message("naive order: %d of %d schedules with fused groups lock\n", locked, with_groups);
    assert_true(locked > with_groups / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_29_31_every_schedule_runs),
        cmocka_unit_test(test_bug_31_a_place_too_few_is_seen),
        cmocka_unit_test(test_bug_34_fewer_micro_batches_than_stages),
        cmocka_unit_test(test_bug_29_the_naive_order_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
