/* test_replay_schedules.c -- compares the replayed time of a pipeline's schedule with the clocks of
 * ranks that execute it. Actions take a fixed time, which depends on the stage and the kind of
 * action, and messages take none. The graphs are those that the executor records on a counted
 * device. */
#include "model/core/check.h"
#include "model/core/device_counted.h"
#include "model/core/recorder.h"
#include "model/kernels/ops.h"
#include "parallel/comm/counted.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/schedule_order.h"
#include "parallel/plan/replay.h"
#include "tests/support/grid/thread_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_STAGES = 16, COLS = 4 };

typedef struct {
    ScheduleSpec spec;
    double forward[MOST_STAGES], backward[MOST_STAGES]; /* of one chunk */
    Schedule schedule[MOST_STAGES];
    double clock[MOST_STAGES]; /* of the ranks that execute it, at the end */
} Case;

static double cost_of_action(const Case *c, int stage, const Action *a)
{
    return a->kind == ACT_BACKWARD ? c->backward[stage] : c->forward[stage];
}

/* ---- executed: each tensor carries the clock of the stage that computed it --------------------
 */

typedef struct {
    const Case *c;
    int stage;
    double clock;
} Clock;

static void tick(void *self, const Action *a, Tensor in, Tensor out)
{
    Clock *c = self;
    if (tensor_present(in)) c->clock = fmax(c->clock, ((double *)in.data)[0]);
    c->clock += cost_of_action(c->c, c->stage, a);
    if (tensor_present(out)) ((double *)out.data)[0] = c->clock;
}

static void execute(Comm *world, void *context)
{
    Case *c = context;
    Comm pp = comm_split(world, "pp", 0, world->rank);
    Device dev;
    char err[256];
    CHECK(device_open(&dev, "cpu", &(DeviceOptions){.threads = 1}, err, sizeof err), "%s", err);
    const Schedule *s = &c->schedule[pp.rank];
    Clock clock = {c, pp.rank, 0};
    Stage stage = {.forward = tick, .backward = tick, .evaluate = tick, .self = &clock};
    Pipeline *p = pipeline_create(&dev, &pp, s->buffers, F64, 1, COLS);
    pipeline_run(p, &stage, s->action, s->n, s->transfer);
    c->clock[pp.rank] = clock.clock;
    pipeline_destroy(p);
    comm_close(&pp);
    device_close(&dev);
}

/* ---- recorded: each action is one op -----------------------------------------------------------
 */

typedef struct {
    Device *dev;
    Tensor x;
} Filler;

static void fill(void *self, const Action *a, Tensor in, Tensor out)
{
    Filler *f = self;
    (void)a, (void)in;
    op_fill(f->dev, tensor_present(out) ? out : f->x, 0);
}

static void record(const Case *c, int rank, Graph *graph)
{
    const Schedule *s = &c->schedule[rank];
    Comm world = comm_counted(rank, c->spec.stages),
         pp = comm_line(&world, "pp", (CommLine){0, 1, c->spec.stages});
    Device dev;
    Recorder recorder;
    device_counted_open(&dev, &(CountedFacts){.place = PLACE_DEVICE});
    recorder_attach(&recorder, &dev);
    Filler filler = {&dev, tensor_2d(device_alloc(&dev, 64, "a tensor"), F32, 1, COLS)};
    Stage stage = {.forward = fill, .backward = fill, .evaluate = fill, .self = &filler};
    Pipeline *p = pipeline_create(&dev, &pp, s->buffers, F32, 1, COLS);
    recorder_start(&recorder, graph);
    for (int64_t i = 0; i < s->n; i++) {
        recorder_action(&dev, i);
        pipeline_run(p, &stage, &s->action[i], 1, s->transfer);
    }
    recorder_stop(&recorder);
    pipeline_destroy(p);
    device_release(&dev, filler.x.data, 64);
    comm_close(&pp);
    comm_close(&world);
    device_close(&dev);
}

static double cost_of_node_here(void *context, int stage, const GraphNode *node)
{
    const Case *c = context;
    if (node->kind != NODE_OP) return 0;
    return cost_of_action(c, stage, &c->schedule[stage].action[node->action]);
}

/* ---- both --------------------------------------------------------------------------------------
 */

typedef struct {
    double executed, replayed, bubble; /* bubble: of the stage that is busiest */
} Times;

static Times times_of(Case *c)
{
    Graph graph[MOST_STAGES] = {0};
    Times t = {0};
    schedule_create_all(&c->spec, c->schedule);
    thread_ranks(c->spec.stages, 60, execute, c);
    for (int i = 0; i < c->spec.stages; i++) {
        record(c, i, &graph[i]);
        t.executed = fmax(t.executed, c->clock[i]);
    }
    StepTime time = replay_step(graph, c->spec.stages, cost_of_node_here, c);
    t.replayed = time.seconds;
    t.bubble = INFINITY;
    for (int i = 0; i < c->spec.stages; i++) {
        const StageTime *s = &time.stage[i];
        assert_true(s->compute + s->bubble + s->exposed_pp == time.seconds);
        assert_true(s->exposed_pp == 0); /* messages take no time */
        t.bubble = fmin(t.bubble, s->bubble);
        graph_free(&graph[i]);
        schedule_free(&c->schedule[i]);
    }
    step_time_free(&time);
    return t;
}

static void compare(Case *c, double most)
{
    Times t = times_of(c);
    if (fabs(t.replayed / t.executed - 1) > most)
        fail_msg("kind %d, %d stages of %d, %lld micro-batches: replayed %g, executed %g",
                 (int)c->spec.kind, c->spec.stages, c->spec.chunks, (long long)c->spec.micros,
                 t.replayed, t.executed);
}

/* Calls `visit` for schedules of all kinds, with fewer micro-batches than stages, and with numbers
 * of micro-batches that are not multiples of the stages. */
static void each_schedule(void (*visit)(Case *c))
{
    static const int stages[] = {1, 2, 3, 4, 8, 16}, micros[] = {1, 3, 8, 19, 32};
    static const struct {
        ScheduleKind kind;
        int chunks;
    } kinds[] = {{SCHEDULE_GPIPE, 1},
                 {SCHEDULE_1F1B, 1},
                 {SCHEDULE_INTERLEAVED, 2},
                 {SCHEDULE_INTERLEAVED, 3}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t p = 0; p < sizeof stages / sizeof *stages; p++)
            for (size_t m = 0; m < sizeof micros / sizeof *micros; m++) {
                Case c = {.spec = {kinds[k].kind, stages[p], kinds[k].chunks, micros[m], false}};
                visit(&c);
            }
}

static void compare_equal_stages(Case *c)
{
    for (int i = 0; i < c->spec.stages; i++) {
        c->forward[i] = 1;
        c->backward[i] = 2;
    }
    compare(c, 0);
}

static void test_the_replayed_time_of_equal_stages_equals_their_executed_time(void **state)
{
    (void)state;
    each_schedule(compare_equal_stages);
}

/* The first and the last stage have more to do, and a backward pass takes 2.7 forward passes. The
 * clocks in the tensors do not know that the messages of a stage are sent one after another, so the
 * replay may take longer. */
static void compare_unequal_stages(Case *c)
{
    for (int i = 0; i < c->spec.stages; i++) {
        c->forward[i] = 1 + 0.01 * ((i * 7) % 5) + (i == c->spec.stages - 1 ? 0.3 : 0);
        c->backward[i] = 2.7 * c->forward[i];
    }
    compare(c, 0.02);
}

static void test_the_replayed_time_of_unequal_stages_is_close_to_executed_time(void **state)
{
    (void)state;
    each_schedule(compare_unequal_stages);
}

/* The bubble of a schedule of equal stages is the one that its own clock computes. */
static void check_bubble(Case *c)
{
    for (int i = 0; i < c->spec.stages; i++) {
        c->forward[i] = 1;
        c->backward[i] = 2;
    }
    Times t = times_of(c);
    assert_true(fabs(t.bubble / t.replayed - schedule_bubble_share(&c->spec)) < 1e-9);
}

static void test_replayed_idle_time_equals_the_bubble_of_the_schedule(void **state)
{
    (void)state;
    each_schedule(check_bubble);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_replayed_time_of_equal_stages_equals_their_executed_time),
        cmocka_unit_test(test_the_replayed_time_of_unequal_stages_is_close_to_executed_time),
        cmocka_unit_test(test_replayed_idle_time_equals_the_bubble_of_the_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
