/* test_replay_trainer.c -- compares the replayed time of training steps with the time that the real
 * trainer takes on devices with a simulated clock (late_clock in late_device.h), on which each op
 * takes whole seconds and transfers take none. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/plan/counted_stage.h"
#include "parallel/plan/replay.h"
#include "tests/support/device/late_device.h"
#include "tests/support/files/data_support.h"
#include "tests/support/grid/comm_spy.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/rank_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Copies take no time: the simulated device gets only the name of an op, so it cannot distinguish
 * copies of the step from those of transfers. */
static double seconds_of(const char *op)
{
    return strcmp(op, "copy") == 0 ? 0 : (double)(1 + strlen(op) * 7 % 10);
}

/* Sets the note of a work: 1 if it belongs to a collective or a message, else 0. */
static void note_call(int64_t *note)
{
    note[0] = comm_spied().comm != NULL;
}

static double seconds_of_work(const LateSeen *work)
{
    return work->note[0] ? 0 : seconds_of(work->name);
}

static double seconds_of_node(void *context, int stage, const GraphNode *node)
{
    (void)context, (void)stage;
    return node->kind == NODE_OP ? seconds_of(op_name[node->code]) : 0;
}

typedef struct {
    double executed[RANK_RUN_MOST]; /* seconds of a step, by rank */
    double replayed;
} Times;

/* Replays the step from the plans of the stages. */
static double replay_planned(Trainer *t)
{
    const GridPlace size = t->session.grid.size;
    const CountedFacts facts = {.place = t->session.dev.backend->place};
    StagePlan *plan = must_calloc((size_t)size.pp, sizeof *plan);
    Graph *one = must_calloc((size_t)size.pp, sizeof *one),
          *two = must_calloc((size_t)size.pp, sizeof *two);
    for (int s = 0; s < size.pp; s++) {
        plan_rank(t->config, &facts, s * size.dp * size.cp * size.tp, &plan[s]);
        one[s] = plan[s].step;
        two[s] = plan[s].two;
    }
    StepTime fewer = replay_step(one, size.pp, seconds_of_node, NULL),
             more = replay_step(two, size.pp, seconds_of_node, NULL),
             step = step_time_between(&fewer, &more);
    double seconds = step.seconds;
    step_time_free(&fewer);
    step_time_free(&more);
    step_time_free(&step);
    plan_stages_free(plan, size.pp);
    free(one);
    free(two);
    return seconds;
}

/* Measures the step from the end of one step to the end of the next. */
static void take_timed_steps(Comm *world, Trainer *t, RankRun *run, int64_t unused)
{
    enum { STEPS = 3 };
    Times *times = run->context;
    Device *dev = &t->session.dev;
    Event end[2] = {{0}};
    (void)unused;
    comm_spy(&t->session.grid);
    for (int64_t i = 0; i < STEPS; i++) {
        trainer_step(t);
        device_event_record_timed(dev, &end[i % 2]);
    }
    times->executed[world->rank] =
        device_event_seconds(dev, &end[STEPS % 2], &end[(STEPS + 1) % 2]);
    if (world->rank == 0) times->replayed = replay_planned(t);
    device_event_destroy(dev, &end[0]);
    device_event_destroy(dev, &end[1]);
}

static const struct {
    int ranks;
    const char *sets[5];
} rows[] = {
    {1, {"parallel.tensor=1"}},
    {2, {"zero_optimization.stage=1"}},
    {2, {"zero_optimization.stage=2"}},
    {2, {"zero_optimization.stage=3"}},
    {2, {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
    {2, {"parallel.pipeline=2"}},
    {4, {"parallel.pipeline=4", "parallel.schedule=gpipe"}},
    {4, {"parallel.pipeline=4", "parallel.schedule=1f1b"}},
    {4, {"parallel.pipeline=4", "parallel.pipeline_chunks=2"}},
    {2, {"parallel.pipeline=2", "parallel.pipeline_chunks=4"}},
    {4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.pipeline_chunks=2"}},
    {4, {"parallel.pipeline=2", "zero_optimization.stage=3"}},
    {8, {"parallel.pipeline=4", "zero_optimization.stage=1"}},
};

static void run_row(const Folder *folder, size_t i, double *worst)
{
    const char *sets[16] = {"model.num_layers=8", "model.num_attention_heads=4",
                            "gradient_accumulation_steps=6", "zero_optimization.overlap_comm=true",
                            "zero_optimization.stage3_param_persistence_threshold=0"};
    int n = 5;
    for (int k = 0; k < 5 && rows[i].sets[k]; k++)
        sets[n++] = rows[i].sets[k];
    Times times = {0};
    RankRun run = {.take_middle = take_timed_steps, .context = &times};
    rank_run_open(&run, folder, rows[i].ranks, sets);
    late_devices(true);
    rank_run_train(&run);
    late_devices(false);
    for (int r = 0; r < rows[i].ranks; r++) {
        double error = fabs(times.replayed / times.executed[r] - 1);
        *worst = fmax(*worst, error);
        if (error > 0.02)
            fail_msg("%s: rank %d takes %g s, replayed %g s", run.name, r, times.executed[r],
                     times.replayed);
    }
    rank_run_close(&run);
}

static void test_a_replayed_step_takes_as_long_as_the_trainers_step(void **state)
{
    const size_t every = getenv("TEST_SAMPLE") ? 4 : 1;
    double worst = 0;
    late_notes(note_call);
    late_clock(seconds_of_work);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += every)
        run_row(*state, i, &worst);
    late_clock(NULL);
    late_notes(NULL);
    print_message("largest difference %.3f %%\n", 100 * worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_replayed_step_takes_as_long_as_the_trainers_step),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
