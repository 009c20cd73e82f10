/* test_exposed.c -- exposed communication (parallel/comm/exposed.h). Most tests use devices with a
 * simulated clock (tests/support/device/late_device.h), on which work takes whole seconds. There,
 * every second of the compute stream must be either the step's own work or a wait for other ranks,
 * counted under the right axis. One test measures real times on a CUDA device. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/run/step_report.h"
#include "tests/support/device/late_device.h"
#include "tests/support/grid/comm_spy.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/support.h"
#include "tests/support/trainer/rank_run.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- hand-written steps ---------------------------------------------------------------------- */

enum { N = 128 };

/* Seconds. In a sum over two ranks each rank adds one half and copies it to the other. */
enum { FILL = 1, SUM = 5, COPY = 2, COLLECTIVE = SUM + COPY };

static double hand_seconds(const LateSeen *work)
{
    if (strcmp(work->name, "fill") == 0) return FILL;
    return strcmp(work->name, "sum") == 0 ? SUM : COPY;
}

typedef struct {
    int before, beside; /* number of fills whose result the sum reads, and of fills that overlap the
                         * sum */
    int calls;          /* number of sums on the compute stream itself */
    /* Exposed seconds by rank: of the sum on the comm stream; of the calls on the compute stream;
     * and while measuring is off. */
    double exposed[2], carried[2], unmeasured[2];
} ByHand;

static void fills(Device *dev, Tensor x, int n)
{
    for (int i = 0; i < n; i++)
        op_fill(dev, x, i);
}

static void sum_by_hand(Comm *world, void *context)
{
    ByHand *h = context;
    Device dev;
    Event computed = {0}, summed = {0};
    char err[256];
    DeviceOptions options = {.threads = 1,
                             .local_ranks = world->size,
                             .index = world->rank,
                             .level = CPU_LEVEL_BASELINE,
                             .blas = BLAS_BUILTIN};
    CHECK(late_device_open(&dev, &options, err, sizeof err), "%s", err);
    Device comm = device_on(&dev, dev.comm);
    float *memory = device_alloc(&dev, 2 * N * sizeof *memory, "numbers");
    Tensor x = tensor_1d(memory, F32, N), own = tensor_1d(memory + N, F32, N);
    x.place = own.place = PLACE_DEVICE;
    Exposed *exposed = exposed_create(&dev);
    world->exposed = exposed;
    for (int measured = 0; measured < 2; measured++) {
        exposed_measure(exposed, measured);
        fills(&dev, x, h->before);
        device_event_record(&dev, &computed);
        device_event_wait(&comm, &computed);
        comm_all_reduce(world, &comm, x, REDUCE_SUM);
        device_event_record(&comm, &summed);
        fills(&dev, own, h->beside);
        comm_await(world, &dev, &summed);
        op_fill(&dev, x, 0);
        double *seconds = measured ? h->exposed : h->unmeasured;
        seconds[world->rank] = exposed_take(exposed);
    }
    for (int i = 0; i < h->calls; i++)
        comm_all_reduce(world, &dev, x, REDUCE_SUM);
    h->carried[world->rank] = exposed_take(exposed);
    comm_barrier(world);
    world->exposed = NULL;
    exposed_destroy(exposed);
    device_event_destroy(&dev, &computed);
    device_event_destroy(&dev, &summed);
    device_release(&dev, memory, 2 * N * sizeof *memory);
    comm_barrier(world);
    device_close(&dev);
}

/* The work that overlaps the sum takes no time, less time than the sum, or more. One case makes
 * more calls than there are event pairs. */
static void test_only_the_part_of_a_sum_that_no_work_overlaps_is_exposed(void **state)
{
    (void)state;
    late_clock(hand_seconds);
    for (int beside = 0; beside < 2 * COLLECTIVE; beside++) {
        ByHand h = {.before = 3, .beside = beside, .calls = beside == 1 ? 600 : 1};
        double expected = beside * FILL < COLLECTIVE ? COLLECTIVE - beside * FILL : 0;
        thread_ranks(2, 60, sum_by_hand, &h);
        for (int r = 0; r < 2; r++)
            if (h.exposed[r] != expected || h.unmeasured[r] != 0 ||
                h.carried[r] != h.calls * COLLECTIVE)
                fail_msg("rank %d, %d fills beside: %g s, not %g; %g s not measured; carried: %g s",
                         r, beside, h.exposed[r], expected, h.unmeasured[r], h.carried[r]);
    }
    late_clock(NULL);
}

/* ---- training steps -------------------------------------------------------------------------- */

/* Two flags that are recorded with each piece of work: a training step enqueued it; it belongs to a
 * collective on the compute stream. */
enum { NOTE_STEP, NOTE_CALL };
static _Thread_local bool in_step;

static void note_work(int64_t *note)
{
    note[NOTE_STEP] = in_step;
    note[NOTE_CALL] = comm_spied().comm != NULL;
}

/* By rank: seconds that the compute stream spends on the step's own work. */
static double own_seconds[RANK_RUN_MOST];

/* The times differ enough that a wait is never zero by chance. Copies of micro-batches take no
 * time, because waiting for them would be neither work nor communication. */
static double step_seconds(const LateSeen *work)
{
    double seconds = (double)(1 + strlen(work->name) * 7 % 10);
    if (strcmp(work->stream, "copy") == 0) return 0;
    if (strcmp(work->stream, "compute") != 0) return 100 + seconds;
    if (work->note[NOTE_STEP] && !work->note[NOTE_CALL]) own_seconds[work->rank] += seconds;
    return seconds;
}

typedef struct {
    double seconds[RANK_RUN_MOST], exposed[RANK_RUN_MOST][EXPOSED_AXES];
    /* For updates of states on the host: what is measured, and what must be measured (_want). */
    double updates[RANK_RUN_MOST], updates_want[RANK_RUN_MOST], bytes[RANK_RUN_MOST],
        bytes_want[RANK_RUN_MOST];
} Steps;

/* Sums the time from the beginning to the end of each step on the compute stream. The evaluation
 * between steps does not belong to a step; it would wait for updates of states on the host. */
static void take_timed_steps(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    Steps *all = run->context;
    Device *dev = &t->session.dev;
    Event before = {0}, after = {0};
    comm_spy(&t->session.grid);
    memset(&t->phases.seconds, 0, sizeof t->phases.seconds);
    for (int64_t i = 0; i < steps; i++) {
        if (t->optimizer.last_updated < 0) trainer_evaluate(t, 1);
        in_step = true;
        device_event_record_timed(dev, &before);
        trainer_step(t);
        device_event_record_timed(dev, &after);
        in_step = false;
        all->seconds[world->rank] += device_event_seconds(dev, &before, &after);
    }
    memcpy(all->exposed[world->rank], t->phases.seconds.exposed, sizeof all->exposed[0]);
    /* Each step adds the previous step's updates: one op per unit with states on the host. */
    const LateSeen op = {.name = "adamw", .stream = "update", .rank = world->rank};
    int units = 0;
    double applied = 0; /* skipped updates move nothing */
    for (int64_t s = t->steps - 1 - steps; s < t->steps - 1; s++)
        applied += t->records[s % TRAINER_HISTORY].decision.apply;
    for (int u = 0; u < t->host_states.units && t->host_states.arena; u++)
        units += t->host_states.arena[u].size > 0;
    all->updates[world->rank] = t->phases.seconds.updates;
    all->updates_want[world->rank] = applied * units * step_seconds(&op);
    all->bytes[world->rank] = t->phases.seconds.updated_bytes;
    all->bytes_want[world->rank] = applied * (double)t->host_states.bytes;
    device_event_destroy(dev, &before);
    device_event_destroy(dev, &after);
}

typedef struct {
    int ranks;
    bool axis[EXPOSED_AXES]; /* which axes have several ranks; [EXPOSED_HOST]: states are on the
                              * host */
    const char *sets[5];
} Row;

#define OFFLOAD "zero_optimization.offload_optimizer.device=cpu"
#define DP      [EXPOSED_DP] = true
#define TP      [EXPOSED_TP] = true
#define PP      [EXPOSED_PP] = true
#define HOST    [EXPOSED_HOST] = true
static const Row rows[] = {
    {2, {DP}, {"zero_optimization.stage=0"}},
    {2, {DP}, {"zero_optimization.stage=1", "zero_optimization.overlap_comm=true"}},
    {2, {DP}, {"zero_optimization.stage=2", "zero_optimization.overlap_comm=true"}},
    {2, {DP}, {"zero_optimization.stage=2", "communication_data_type=bf16"}},
    {3, {DP}, {"zero_optimization.stage=3"}},
    {2, {DP}, {"zero_optimization.stage=3", "zero_optimization.overlap_comm=false"}},
    {2, {TP}, {"parallel.tensor=2"}},
    {2, {TP}, {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
    {4, {TP}, {"parallel.tensor=4", "model.num_key_value_heads=2"}},
    {2, {PP}, {"parallel.pipeline=2"}},
    {2, {PP}, {"parallel.pipeline=2", "model.tie_word_embeddings=false"}},
    {4, {DP, TP}, {"parallel.tensor=2", "zero_optimization.stage=3"}},
    {4, {DP, PP}, {"parallel.pipeline=2", "zero_optimization.stage=2"}},
    {4, {TP, PP}, {"parallel.pipeline=2", "parallel.tensor=2"}},
    {1, {HOST}, {OFFLOAD}},
    {1, {HOST}, {OFFLOAD, "fp16.enabled=true", "fp16.initial_scale_power=31"}},
    {2, {DP, HOST}, {OFFLOAD, "zero_optimization.stage=1", "zero_optimization.overlap_comm=true"}},
    {2, {DP, HOST}, {OFFLOAD, "zero_optimization.stage=3"}},
    {4, {DP, HOST}, {OFFLOAD, "zero_optimization.stage=3", "parallel.shard=2"}},
    {4,
     {DP, HOST},
     {OFFLOAD, "zero_optimization.stage=3", "parallel.shard=2",
      "zero_optimization.overlap_comm=false"}},
};

static void run_row(const Folder *folder, const Row *row)
{
    const char *sets[16] = {"wall_clock_breakdown=true", "model.num_layers=4",
                            "model.num_attention_heads=4", "gradient_accumulation_steps=3",
                            "zero_optimization.stage3_param_persistence_threshold=0"};
    int n = 5;
    for (int i = 0; i < 5 && row->sets[i]; i++)
        sets[n++] = row->sets[i];
    Steps steps = {0};
    RankRun run = {.take_middle = take_timed_steps, .context = &steps};
    rank_run_open(&run, folder, row->ranks, sets);
    memset(own_seconds, 0, sizeof own_seconds);
    late_devices(true);
    rank_run_train(&run);
    late_devices(false);
    for (int r = 0; r < row->ranks; r++) {
        double sum = own_seconds[r];
        for (int a = 0; a < EXPOSED_AXES; a++) {
            double exposed = steps.exposed[r][a];
            sum += exposed;
            if ((exposed > 0) != row->axis[a])
                fail_msg("%s: rank %d has %g s of %s", run.name, r, exposed, exposed_axis_name[a]);
        }
        if (steps.updates[r] != steps.updates_want[r] || steps.bytes[r] != steps.bytes_want[r])
            fail_msg("%s: rank %d moves %g bytes of states in %g s, not %g in %g", run.name, r,
                     steps.bytes[r], steps.updates[r], steps.bytes_want[r], steps.updates_want[r]);
        if (own_seconds[r] <= 0 || sum != steps.seconds[r])
            fail_msg("%s: rank %d has %g s of work, which with dp %g, tp %g and pp %g are not the "
                     "%g of the steps",
                     run.name, r, own_seconds[r], steps.exposed[r][0], steps.exposed[r][1],
                     steps.exposed[r][2], steps.seconds[r]);
    }
    rank_run_close(&run);
}

/* Every wait must be counted exactly once, under an axis that has several ranks. The sums must
 * agree to the second. */
static void test_each_second_of_a_step_is_either_work_or_exposed_communication(void **state)
{
    const size_t every = getenv("TEST_SAMPLE") ? 3 : 1;
    late_notes(note_work);
    late_clock(step_seconds);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += every)
        run_row(*state, &rows[i]);
    late_clock(NULL);
    late_notes(NULL);
}

static void expect_nothing(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(&t->session.grid, comm);
    for (int i = 0; i < GRID_COMMS; i++)
        if (comm[i]->exposed) rank_wrong(world, "%s: %s is measured", run->name, comm[i]->name);
    for (int64_t i = 0; i < steps; i++)
        trainer_step(t);
}

/* Once on the CPU, where calls are complete on return, and once with the breakdown off. */
static void test_exposed_time_is_not_measured_on_the_cpu_or_if_breakdown_is_off(void **state)
{
    for (int late = 0; late < 2; late++) {
        const char *sets[] = {late ? "wall_clock_breakdown=false" : "wall_clock_breakdown=true",
                              "device=cpu", "parallel.tensor=2", "parallel.pipeline=2", NULL};
        RankRun run = {.take_middle = expect_nothing};
        rank_run_open(&run, *state, 8, sets);
        late_devices(late);
        rank_run_train(&run);
        late_devices(false);
        rank_run_close(&run);
    }
}

/* ---- the report ------------------------------------------------------------------------------ */

/* Seconds of four ranks on two pipeline stages, and what their host link carried. Each maximum is
 * on another rank, and no rank uses tensor parallelism. */
static const struct {
    double work, exposed[EXPOSED_AXES], updates, bytes;
} told[4] = {{4, {[EXPOSED_DP] = 2, [EXPOSED_PP] = 0.25}, 1, 32},
             {6, {[EXPOSED_DP] = 1, [EXPOSED_PP] = 0.5}, 4, 16},
             {5, {[EXPOSED_DP] = 3, [EXPOSED_PP] = 0.75}, 2, 64},
             {1, {[EXPOSED_DP] = 2.5, [EXPOSED_PP] = 8}, 0, 0}};

static void compare(Comm *world, void *unused)
{
    (void)unused;
    Run run = {.world = world};
    double work = told[world->rank].work;
    SpeedRecord s = {.forward = work / 2, .backward = work / 4, .optimizer = work / 4};
    memcpy(s.exposed, told[world->rank].exposed, sizeof s.exposed);
    s.updates = told[world->rank].updates;
    s.updated_bytes = told[world->rank].bytes;
    run_compare_ranks(&run, &s);
    if (s.updates != 4 || s.updated_bytes != 64)
        rank_wrong(world, "%g bytes in %g s", s.updated_bytes, s.updates);
    if (s.exposed[EXPOSED_DP] != 3 || s.exposed[EXPOSED_TP] != 0 || s.exposed[EXPOSED_PP] != 8)
        rank_wrong(world, "dp %g, tp %g, pp %g", s.exposed[0], s.exposed[1], s.exposed[2]);
    if (s.ranks != 4 || s.slowest != 1 || s.most_work != 6 || s.mean_work != 4)
        rank_wrong(world, "of %d ranks rank %d has most work, %g; mean %g", s.ranks, s.slowest,
                   s.most_work, s.mean_work);
    int64_t calls = 0;
    for (int verb = 0; verb < COMM_VERBS; verb++)
        for (int t = 0; t < DTYPE_COUNT; t++)
            calls += comm_counts(world)->of[verb][t].calls;
    if (calls != 3) rank_wrong(world, "%lld messages", (long long)calls);
}

/* The report takes the maximum over ranks for each axis, in three reductions: an all-gather would
 * give each rank of a large world the numbers of all. */
static void test_a_report_shows_the_largest_exposed_time_of_any_rank(void **state)
{
    (void)state;
    thread_ranks(4, 60, compare, NULL);
}

/* ---- on a CUDA device ------------------------------------------------------------------------ */

/* Returns how much has been allocated so far, including by the emulated CUDA runtime if there is
 * one. */
static int64_t allocations(const Device *dev)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, "emu_count_allocations");
    return dev->allocations + (count ? count() : 0);
}

/* Exposed time must be positive exactly on the axes with several ranks, and in total at most the
 * time of the phases that contain it. Measuring must not allocate. */
static void look_at_steps(Comm *world, Trainer *t, RankRun *run, int64_t steps)
{
    const Row *row = run->context;
    const PhaseSeconds *s = &t->phases.seconds;
    double all = 0;
    memset(&t->phases.seconds, 0, sizeof t->phases.seconds);
    comm_barrier(world);
    int64_t before = allocations(&t->session.dev);
    comm_barrier(world);
    for (int64_t i = 0; i < steps; i++)
        trainer_step(t);
    comm_barrier(world);
    if (allocations(&t->session.dev) != before) rank_wrong(world, "a step has allocated");
    for (int a = 0; a < EXPOSED_AXES; a++) {
        all += s->exposed[a];
        if ((s->exposed[a] > 0) != row->axis[a])
            rank_wrong(world, "%s: %g s of %s", run->name, s->exposed[a], exposed_axis_name[a]);
    }
    if (all > s->forward + s->backward + s->optimizer)
        rank_wrong(world, "%s: %g s of %g", run->name, all,
                   s->forward + s->backward + s->optimizer);
    comm_barrier(world);
}

static void test_exposed_time_on_cuda_is_within_its_phases_and_allocates_nothing(void **state)
{
    const char *device = getenv("TEST_DEVICE");
    if (device == NULL || strcmp(device, "cuda") != 0) skip_because("TEST_DEVICE is not cuda");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += 5) {
        Row row = rows[i];
        const char *sets[8] = {"wall_clock_breakdown=true", "device=cuda",
                               "model.num_attention_heads=4"};
        memcpy(sets + 3, row.sets, sizeof row.sets);
        RankRun run = {.take_middle = look_at_steps, .context = &row};
        rank_run_open(&run, *state, row.ranks, sets);
        rank_run_train(&run);
        rank_run_close(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_part_of_a_sum_that_no_work_overlaps_is_exposed),
        cmocka_unit_test(test_each_second_of_a_step_is_either_work_or_exposed_communication),
        cmocka_unit_test(test_exposed_time_is_not_measured_on_the_cpu_or_if_breakdown_is_off),
        cmocka_unit_test(test_a_report_shows_the_largest_exposed_time_of_any_rank),
        cmocka_unit_test(test_exposed_time_on_cuda_is_within_its_phases_and_allocates_nothing),
    };
    return cmocka_run_group_tests_name("exposed communication", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
