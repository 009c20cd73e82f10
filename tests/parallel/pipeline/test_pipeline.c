/* test_pipeline.c -- tests that thread ranks execute schedules correctly. The stage of the test
 * only counts: each layer range adds its own number to its input, so a sum shows which ranges it
 * has passed through. Also tests the relay of activations in decoding. */
#include "model/core/check.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/relay.h"
#include "tests/support/grid/schedule_faults.h"
#include "tests/support/grid/thread_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, COLS = 5, COUNT = ROWS * COLS, MOST_RUNS = 16 };

/* The first element of each tensor is the clock of the stage that computed it. */
typedef struct {
    const ScheduleSpec *spec;
    Comm *pp;
    const Schedule *schedule;
    int64_t *slot[MOST_RUNS], *batch; /* the micro-batch stored there; -1: none */
    double clock;
    int wrong; /* number of values, slots and batches that were wrong for an action */
    char first[128];
    int64_t actions;
} Counter;

/* A schedule and the result of executing it. */
typedef struct {
    ScheduleSpec spec;
    bool swap; /* injected fault: stage 0 reads activations as gradients, and gradients as
                  activations */
    bool swapped;
    int wrong;
    double clock[16];
} Case;

/* Returns what layer range r adds for a micro-batch. No sum of forward numbers equals a sum of
 * backward numbers. */
static double own_number(int run, int64_t micro, bool backward)
{
    return (backward ? 1e6 : 1) * (double)((run * 37 + micro * 11) % 101 + 1);
}

/* Returns the expected input of a range: the sum over the ranges before it; in backward, over those
 * after it. */
static double expected(const ScheduleSpec *spec, int run, int64_t micro, bool backward)
{
    double sum = 0;
    int runs = spec->stages * spec->chunks;
    for (int r = backward ? run + 1 : 0; r < (backward ? runs : run); r++)
        sum += own_number(r, micro, backward);
    return sum;
}

static void check(Counter *c, bool good, const Action *a, const char *what)
{
    if (good || c->wrong++ > 0) return;
    snprintf(c->first, sizeof c->first, "%s of kind %d, chunk %d, micro-batch %lld", what,
             (int)a->kind, a->chunk, (long long)a->micro);
}

/* Checks the input of one action and computes its output. */
static void pass(Counter *c, const Action *a, Tensor in, Tensor out, bool backward)
{
    const ScheduleSpec *spec = c->spec;
    int run = a->chunk * spec->stages + c->pp->rank, runs = spec->stages * spec->chunks;
    double value = expected(spec, run, a->micro, backward);
    check(c, tensor_present(in) == (run != (backward ? runs - 1 : 0)), a, "in");
    check(c, tensor_present(out) == (run != (backward ? 0 : runs - 1)), a, "out");
    double *x = in.data, *y = out.data;
    for (int i = 1; x && i < COUNT; i++)
        check(c, x[i] == value * i, a, "value");
    if (x) c->clock = fmax(c->clock, x[0]);
    c->clock += backward ? 2 : 1;
    for (int i = 0; y && i < COUNT; i++)
        y[i] = i == 0 ? c->clock : (value + own_number(run, a->micro, backward)) * i;
    c->actions++;
}

static void check_batch(Counter *c, const Action *a)
{
    bool fills = a->chunk == 0 && a->kind != ACT_BACKWARD;
    check(c, a->batch >= 0 && a->batch < c->schedule->batches, a, "no such batch");
    if (fills) c->batch[a->batch] = a->micro;
    check(c, c->batch[a->batch] == a->micro, a, "batch");
}

static void forward(void *self, const Action *a, Tensor in, Tensor out)
{
    Counter *c = self;
    check_batch(c, a);
    check(c, a->slot >= 0 && a->slot < c->schedule->slots[a->chunk], a, "no such slot");
    check(c, c->slot[a->chunk][a->slot] == -1, a, "slot in use");
    c->slot[a->chunk][a->slot] = a->micro;
    pass(c, a, in, out, false);
}

static void backward(void *self, const Action *a, Tensor dout, Tensor din)
{
    Counter *c = self;
    check_batch(c, a);
    check(c, c->slot[a->chunk][a->slot] == a->micro, a, "slot");
    c->slot[a->chunk][a->slot] = -1;
    pass(c, a, dout, din, true);
}

static void evaluate(void *self, const Action *a, Tensor in, Tensor out)
{
    check_batch(self, a);
    pass(self, a, in, out, false);
}

static void open_counter(Counter *c, const Case *t, Comm *pp, const Schedule *s)
{
    *c = (Counter){.spec = &t->spec, .pp = pp, .schedule = s};
    for (int i = 0; i < t->spec.chunks; i++) {
        c->slot[i] = must_alloc((size_t)s->slots[i] * sizeof **c->slot);
        for (int k = 0; k < s->slots[i]; k++)
            c->slot[i][k] = -1;
    }
    c->batch = must_alloc((size_t)s->batches * sizeof *c->batch);
    for (int k = 0; k < s->batches; k++)
        c->batch[k] = -1;
}

static void close_counter(Counter *c)
{
    for (int i = 0; i < c->spec->chunks; i++)
        free(c->slot[i]);
    free(c->batch);
}

static void run_rank(Comm *world, void *context)
{
    Case *t = context;
    Comm group = comm_split(world, "pp", 0, world->rank), *pp = &group;
    Device dev;
    char err[256];
    bool open = device_open(&dev, "cpu", &(DeviceOptions){.threads = 1}, err, sizeof err);
    CHECK(open, "%s", err);
    Schedule s = schedule_create(&t->spec, pp->rank);
    if (t->swap && pp->rank == 0) t->swapped = schedule_swap_inputs(&s);
    Counter c;
    open_counter(&c, t, pp, &s);
    Stage stage = {.forward = forward, .backward = backward, .evaluate = evaluate, .self = &c};
    Pipeline *p = pipeline_create(&dev, pp, s.buffers, F64, ROWS, COLS);
    if (dev.held != pipeline_bytes(s.buffers, F64, ROWS, COLS))
        rank_wrong(pp, "%d buffers hold %zu bytes", s.buffers, dev.held);
    int64_t allocations = dev.allocations;
    for (int64_t i = 0; i < s.n; i++) {
        pipeline_run(p, &stage, &s.action[i], 1, s.transfer);
        pipeline_poison(p);
    }
    if (dev.allocations != allocations || dev.waits != 0)
        rank_wrong(pp, "a step of %lld allocations", (long long)(dev.allocations - allocations));
    if (c.actions != t->spec.micros * t->spec.chunks * (t->spec.evaluate ? 1 : 2))
        rank_wrong(pp, "%lld actions", (long long)c.actions);
    if (!t->swap && c.wrong > 0) rank_wrong(pp, "%d times, first: %s", c.wrong, c.first);
    t->clock[pp->rank] = c.clock;
    if (pp->rank == 0) t->wrong = c.wrong;
    pipeline_destroy(p);
    close_counter(&c);
    schedule_free(&s);
    comm_close(pp);
    device_close(&dev);
}

static double makespan(Case *t)
{
    double end = 0;
    thread_ranks(t->spec.stages, 60, run_rank, t);
    for (int i = 0; i < t->spec.stages; i++)
        end = fmax(end, t->clock[i]);
    return end;
}

/* According to the clocks in the tensors, a stage is idle only until its first input has arrived
 * and after its last output. */
static void check_size(ScheduleKind kind, int p, int chunks, int m, bool evaluates)
{
    Case t = {.spec = {kind, p, chunks, m, evaluates}};
    double end = makespan(&t), of_one = evaluates ? 1 : 3,
           least = fmax(m * chunks + p - 1, p * chunks + m - 1) * of_one;
    if (p == 1) least = m * chunks * of_one;
    if (end != least)
        fail_msg("%d stages of %d, %d micro-batches: %g, not %g", p, chunks, m, end, least);
}

/* Executes one kind of schedule on 1 to 4 stages with 1 to 9 micro-batches. Some have fewer
 * micro-batches than stages, or a number that is not a multiple of the stages. */
static void each_size(ScheduleKind kind, int chunks, bool evaluates)
{
    for (int p = 1; p <= 4; p++)
        for (int m = 1; m <= 9; m += m < 6 ? 1 : 3)
            check_size(kind, p, chunks, m, evaluates);
}

static void test_gpipe_runs_correctly_with_the_least_idle_time(void **state)
{
    (void)state;
    each_size(SCHEDULE_GPIPE, 1, false);
}

static void test_1f1b_runs_correctly_with_the_least_idle_time(void **state)
{
    (void)state;
    each_size(SCHEDULE_1F1B, 1, false);
}

static void test_interleaved_runs_correctly_with_the_least_idle_time(void **state)
{
    (void)state;
    for (int chunks = 1; chunks <= 4; chunks++)
        each_size(SCHEDULE_INTERLEAVED, chunks, false);
}

static void test_evaluations_run_correctly_with_the_least_idle_time(void **state)
{
    (void)state;
    each_size(SCHEDULE_1F1B, 1, true);
    each_size(SCHEDULE_INTERLEAVED, 3, true);
}

static void test_16_stages_run_correctly_with_the_least_idle_time(void **state)
{
    (void)state;
    check_size(SCHEDULE_GPIPE, 16, 1, 21, false);
    check_size(SCHEDULE_1F1B, 16, 1, 5, false);
    check_size(SCHEDULE_1F1B, 16, 1, 33, false);
    check_size(SCHEDULE_INTERLEAVED, 16, 3, 31, false);
    check_size(SCHEDULE_INTERLEAVED, 16, 3, 32, false);
    check_size(SCHEDULE_INTERLEAVED, 16, 2, 35, false);
    check_size(SCHEDULE_INTERLEAVED, 16, 3, 19, true);
}

/* Shows that the counting stage detects a mistake: an activation is read as a gradient. */
static void test_reading_an_activation_as_a_gradient_is_detected(void **state)
{
    (void)state;
    int planted = 0;
    for (int chunks = 2; chunks <= 3; chunks++) {
        Case t = {.spec = {SCHEDULE_INTERLEAVED, 2, chunks, 4, false}, .swap = true};
        thread_ranks(2, 60, run_rank, &t);
        planted += t.swapped;
        assert_true(!t.swapped || t.wrong > 0);
    }
    assert_true(planted > 0);
}

/* ---- decoding -------------------------------------------------------------------------------- */

enum { RELAY_CHUNKS = 3 };

/* Each layer range adds 1 + its number to the residual stream, n rows at a time; the last stage
 * computes the logits. */
static void run_relay(Comm *world, void *context)
{
    (void)context;
    Comm pp = comm_split(world, "pp", 0, world->rank);
    Device dev;
    char err[256];
    bool open = device_open(&dev, "cpu", &(DeviceOptions){.threads = 1}, err, sizeof err);
    CHECK(open, "%s", err);
    StageRelay stage = {0};
    relay_open(&stage, &dev, &pp, RELAY_CHUNKS);
    Relay relay = relay_of(&stage);
    for (int pass = 0; pass < 3; pass++) {
        int runs = pp.size * RELAY_CHUNKS, n = 1 + pass;
        double data[3 * COLS] = {0}, logits[COLS] = {0};
        Tensor x = tensor_2d(data, F64, n, COLS);
        for (int chunk = 0; chunk < RELAY_CHUNKS; chunk++) {
            relay.receive(relay.self, chunk, x);
            for (int i = 0; i < n * COLS; i++)
                data[i] += (1 + chunk * pp.size + pp.rank) * (i + 1);
            relay.send(relay.self, chunk, x);
        }
        if (pp.rank == pp.size - 1) memcpy(logits, data, sizeof logits);
        relay.share(relay.self, tensor_2d(logits, F64, 1, COLS));
        for (int i = 0; i < COLS; i++)
            if (logits[i] != runs * (runs + 1) / 2.0 * (i + 1))
                rank_wrong(&pp, "pass %d, logit %d: %g", pass, i, logits[i]);
    }
    relay_close(&stage);
    comm_close(&pp);
    device_close(&dev);
}

static void test_decoding_passes_through_all_stages_in_order(void **state)
{
    (void)state;
    for (int p = 1; p <= 16; p += p < 4 ? 1 : 12)
        thread_ranks(p, 60, run_relay, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpipe_runs_correctly_with_the_least_idle_time),
        cmocka_unit_test(test_1f1b_runs_correctly_with_the_least_idle_time),
        cmocka_unit_test(test_interleaved_runs_correctly_with_the_least_idle_time),
        cmocka_unit_test(test_evaluations_run_correctly_with_the_least_idle_time),
        cmocka_unit_test(test_16_stages_run_correctly_with_the_least_idle_time),
        cmocka_unit_test(test_reading_an_activation_as_a_gradient_is_detected),
        cmocka_unit_test(test_decoding_passes_through_all_stages_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
