/* test_nccl_grids.c -- tests that a grid of ranks with a GPU each trains like a single rank. The
 * ranks communicate through NCCL. In most runs they are threads; each case also runs once with
 * ranks that are processes.
 *
 * On emulated devices this is the emulated NCCL (tests/emu/nccl). Each case is then trained with
 * streams that do their work at once, that delay it as long as they may, and that run in a random
 * order, while NCCL reads its inputs as early or as late as it may. Hosts are delayed at random,
 * and calls that allocate memory or load kernels wait for the work of all devices. */
#include "model/core/check.h"
#include "parallel/zero/state.h"
#include "tests/support/grid/grid_run.h"
#include "tests/support/support.h"
#include "tests/support/trainer/training.h"
#include "tests/support/turns.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, RANKS_THAT_MEET = 6 };

/* The models have few heads and small tables, because the emulated device is slow. The cases cover
 * each number of ranks of each axis, each pair of axes, each schedule, each ZeRO stage and each
 * dtype. Each is a list of numbers, whose meanings are in grid_case.h. dp, tp, pp: the numbers of
 * data-, tensor- and pipeline-parallel ranks. */
static const char *const cases[] = {
    /* data, tensor, pipeline, schedule, split, sequence, ZeRO, micros, blocks, model, recompute,
     * dtype, clip, optimizer, masked, keys, shard, offload */
    "3,0,0,0,0,0,0,0,0,6,0,1,1,0,0,1,0,0",  /* dp 4: all-reduce of whole gradients */
    "1,0,0,0,0,0,1,1,0,13,0,2,0,0,0,1,0,0", /* dp 2: reduce-scatter and all-gather once a step */
    "3,0,0,0,0,0,2,1,0,13,0,4,1,1,0,1,0,0", /* dp 4: gradients are summed in bf16 at each release */
    "2,0,0,0,0,0,3,0,1,13,0,3,0,0,0,1,0,0", /* dp 3: weights are prefetched for each use */
    "3,0,0,0,0,0,3,1,1,13,0,3,0,0,0,1,1,0", /* dp 4: weights are sharded in two groups of two */
    "0,3,0,0,0,0,0,0,0,17,0,2,0,0,0,0,0,0", /* tp 4: two ranks share a kv head */
    "0,2,0,0,0,1,0,0,0,9,0,1,0,0,0,0,0,0",  /* tp 3: rows are split (sequence parallel) */
    "0,0,1,0,0,0,0,2,1,6,0,1,1,0,0,3,0,0",  /* pp 2: a tied table on both stages */
    "0,0,3,1,0,0,0,3,3,13,0,2,0,0,0,3,0,0", /* pp 4: gpipe */
    "1,1,0,0,0,1,3,0,0,7,2,1,1,0,0,0,0,0",  /* dp 2 x tp 2: no overlap_comm, full recompute */
    "1,0,1,2,0,0,2,1,3,13,0,1,0,1,0,1,0,0", /* dp 2 x pp 2: interleaved chunks */
    "0,1,1,0,0,1,0,1,1,7,1,2,0,0,0,0,0,0",  /* tp 2 x pp 2: rows are split, in bf16 */
    "1,0,1,0,0,0,3,1,1,13,0,1,0,0,0,2,0,0", /* dp 2 x pp 2: whole gradients summed, no prefetch */
};
enum { CASES = sizeof cases / sizeof *cases };

/* The modes of the emulator: when streams do their work (streams), when NCCL reads its inputs
 * (read), connects its ranks (connect) and lets them go on (leave), and what memory calls wait for
 * (memory). On a real GPU these modes have no effect. */
static const struct {
    const char *streams, *read, *memory, *connect, *leave;
} modes[] = {{"strict", "early", "own", "each", "late"},
             {"deferred", "late", "lock", "each", "late"},
             {"random", "late", "wait", "ring", "early"},
             {"random", "early", "lock", "ring", "early"}};
enum { MODES = sizeof modes / sizeof *modes };

static void set_mode(int mode, int seed)
{
    char number[16];
    snprintf(number, sizeof number, "%d", seed);
    setenv("EMU_STREAMS", modes[mode].streams, 1);
    setenv("EMU_SEED", number, 1);
    setenv("EMU_NCCL_SEED", number, 1);
    setenv("EMU_NCCL_READ", modes[mode].read, 1);
    setenv("EMU_MEMORY_CALLS", modes[mode].memory, 1);
    setenv("EMU_JITTER", number, 1);
    setenv("EMU_NCCL_CONNECT", modes[mode].connect, 1);
    setenv("EMU_NCCL_LEAVE", modes[mode].leave, 1);
    setenv("EMU_NCCL_RESERVE", "4096", 1); /* NCCL allocates memory, too */
    setenv("EMU_LOADS", "before", 1);      /* later loads and page-locking might wait for NCCL */
}

static GridCase case_of(int i)
{
    GridCase c;
    assert_true(grid_case_read(&c, cases[i]));
    GridCase legal = grid_case_legal(c);
    assert_memory_equal(&legal, &c, sizeof c);
    return c;
}

/* The cases' runs on ranks that are processes, each in one mode; processes_agree checks their
 * results. They are made before this process uses CUDA, because a process that is forked after that
 * cannot use it. */
static GridRun forked[CASES];

static void test_ranks_that_are_processes_finish_their_training(void **state)
{
    (void)state;
    if (device_survey("cuda").count < MOST_RANKS) skip_because("cuda: fewer than four devices");
    int every = (int)turns_every(12);
    for (int i = (int)turns_first(every); i < CASES; i += every) {
        GridCase c = case_of(i);
        /* When the next round of cases begins, each has another mode. */
        set_mode(((int)turns_first(MODES * every) + i) / every % MODES, i + 1);
        grid_run_processes(&forked[i], &c, grid_case_batch(&c), grid_steps(&c));
        assert_true(forked[i].each);
    }
}

/* Returns whether the case's run on processes, if there is one, has the bits of this run on
 * threads. On the emulated device they do not depend on the mode. On a real GPU NCCL may add in
 * another order, so that run is compared with a single rank as well. */
static bool processes_agree(int i, const GridCase *c, const GridRun *threads, Comparison *r)
{
    bool emulated = dlsym(RTLD_DEFAULT, "emu_count_timed_records") != NULL;
    if (forked[i].table.param == NULL) return true;
    if (!emulated) return grid_run_good(c, &forked[i], r);
    return grid_runs_equal(threads, &forked[i], 0, r->difference, sizeof r->difference);
}

/* Returns whether case i is left out in this mode: in the last two modes every second case is. */
static bool left_out(int mode, int i)
{
    return mode >= 2 && i % 2 != mode % 2;
}

/* Ends the program if the ranks do not each have their own GPU. */
static void check_connected(Trainer *t, void *context)
{
    (void)context;
    CHECK(session_connects(&t->session), "the ranks have no GPU each");
}

static void test_bug_16_31_ranks_with_a_gpu_each_train_like_a_single_rank(void **state)
{
    (void)state;
    char text[512];
    int bad = 0;
    const GridHooks hooks = {.opened = check_connected};
    cuda_devices_needed(MOST_RANKS);
    int every = (int)turns_every(12);
    for (int i = (int)turns_first(every); i < CASES; i += every) {
        GridCase c = case_of(i);
        for (int mode = 0; mode < MODES; mode++) {
            Comparison r;
            if (left_out(mode, i)) continue;
            set_mode(mode, i + 1);
            GridRun run;
            grid_run(&run, &c, grid_case_batch(&c), grid_steps(&c), &hooks);
            bool good = grid_run_good(&c, &run, &r) && processes_agree(i, &c, &run, &r);
            grid_run_free(&run);
            print_message("%s, streams %s, read %s: %.2g%s%s\n",
                          grid_case_text(&c, text, sizeof text), modes[mode].streams,
                          modes[mode].read, r.worst, good ? "" : "\n  ", r.difference);
            bad += !good;
        }
        grid_run_free(&forked[i]);
    }
    grid_forget();
    assert_int_equal(bad, 0);
}

/* ---- barriers -------------------------------------------------------------------------------- */

static void open_and_close(Comm *world, void *context)
{
    Trainer t;
    training_open_rank(&t, world, context);
    check_connected(&t, NULL);
    trainer_close(&t);
}

/* NCCL allocates memory when it connects a group, so a rank must not begin with the next group
 * while a call of any rank is under way. Here two first stages are done with the messages of their
 * pipelines, while the call of a second stage waits for the third, whose host is late. If the first
 * stages allocated memory for their group of the axis dp, this would wait for the second stage's
 * GPU and keep the third stage's host from launching its call. With fewer ranks, no two
 * neighbouring groups of grid_connect need the barrier. */
static void test_ranks_pass_a_barrier_before_nccl_connects_each_group(void **state)
{
    (void)state;
    GridCase c;
    Training training;
    cuda_devices_needed(RANKS_THAT_MEET);
    assert_true(grid_case_read(&c, "1,0,2,0,0,0,0,0,2,13,0,1,0,0,0,3,0,0")); /* dp 2 x pp 3 */
    Config *config = grid_case_config(&c, grid_case_batch(&c));
    config->parallel.timeout = 20; /* without the barrier the test ends after this time */
    set_mode(MODES - 1, 1);
    setenv("EMU_NCCL_FAULT", "4:GroupEnd:2:late", 1);
    training_of_tokens(&training, config, RANKS_THAT_MEET);
    training_run(&training, open_and_close, &training);
    training_close(&training);
    unsetenv("EMU_NCCL_FAULT");
}

/* The second stage waits for a message of the third, whose host is late. The first stage has
 * nothing left to do and closes. If it released memory before the barrier with the other ranks,
 * this would wait for the second stage's GPU and keep the third stage's host from sending the
 * message. */
static void close_while_a_message_is_late(Comm *world, void *context)
{
    const useconds_t late = 500000;
    Trainer t;
    training_open_rank(&t, world, context);
    check_connected(&t, NULL);
    Comm *stages = &t.session.grid.pp;
    Tensor message = tensor_1d(&t.state->eval_stats, U8, sizeof t.state->eval_stats);
    if (stages->rank == 1) comm_receive(stages, &t.session.dev, message, 2);
    if (stages->rank == 2) usleep(late);
    if (stages->rank == 2) comm_send(stages, &t.session.dev, message, 1);
    trainer_close(&t);
}

static void test_ranks_pass_a_barrier_before_they_release_memory(void **state)
{
    enum { STAGES = 3 };
    (void)state;
    GridCase c;
    Training training;
    cuda_devices_needed(STAGES);
    assert_true(grid_case_read(&c, "0,0,2,0,0,0,0,0,2,13,0,1,0,0,0,3,0,0")); /* pp 3 */
    Config *config = grid_case_config(&c, grid_case_batch(&c));
    config->parallel.timeout = 20; /* without the barrier the test ends after this time */
    set_mode(MODES - 1, 1);
    training_of_tokens(&training, config, STAGES);
    training_run(&training, close_while_a_message_is_late, &training);
    training_close(&training);
}

/* ---- masters --------------------------------------------------------------------------------- */

void __real_optimizer_init(Optimizer *optimizer, Device *dev) __attribute__((weak));
void __wrap_optimizer_init(Optimizer *optimizer, Device *dev);

static _Thread_local Trainer *trainer; /* the rank's trainer; NULL if it is not observed */
static atomic_int gathers, early, pending;

static void look_at(Trainer *t, void *context)
{
    check_connected(t, context);
    trainer = t;
}

/* Returns whether the rank's device has no work left after the barrier. The ranks release memory
 * after it. */
static bool meets_at_rest(Session *session)
{
    Event last = {0};
    device_event_record(&session->dev, &last);
    session_meet(session);
    bool rests = device_event_reached(&session->dev, &last);
    device_event_destroy(&session->dev, &last);
    session->dev.fixed = true; /* session_meet has cleared it, but the run goes on */
    return rests;
}

/* Master weights are copied on the compute stream. Counts the weight gathers, and those that are
 * not finished when the compute stream reaches this point. */
void __wrap_optimizer_init(Optimizer *optimizer, Device *dev)
{
    ZeroStore *store = trainer ? trainer->session.store : NULL;
    Event here = {0};
    device_event_record(dev, &here);
    device_event_synchronize(dev, &here);
    device_event_destroy(dev, &here);
    for (int i = 0; store && i < store->base.table->n_units; i++) {
        if (store->unit[i].weight_state != WEIGHTS_ARRIVING) continue;
        gathers++;
        early += !device_event_reached(&store->comm, &store->unit[i].ready);
    }
    __real_optimizer_init(optimizer, dev);
    if (trainer) pending += !meets_at_rest(&trainer->session);
    trainer = NULL;
}

/* A gather writes the whole weights, including the shards from which the master weights are copied.
 * On streams that delay their work, a missing wait would leave the gather unfinished here. */
static void test_master_weights_are_copied_after_the_first_weight_gather(void **state)
{
    (void)state;
    GridCase c;
    cuda_devices_needed(MOST_RANKS);
    assert_true(grid_case_read(&c, "1,0,0,0,0,0,1,1,0,13,0,2,0,0,0,1,0,0"));
    const GridHooks hooks = {.opened = look_at};
    GridRun run;
    setenv("EMU_STREAMS", "deferred", 1);
    setenv("EMU_MEMORY_CALLS", "own", 1);
    gathers = early = pending = 0;
    grid_run(&run, &c, grid_case_batch(&c), GRID_FEW_STEPS, &hooks);
    grid_run_free(&run);
    assert_true(gathers > 0);
    assert_int_equal(early, 0);
    assert_int_equal(pending, 0);
    /* Nothing is timed here, so no event of a run has a time stamp, also not those around NCCL's
     * calls. */
    int64_t (*timed)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, "emu_count_timed_records");
    if (timed) assert_int_equal(timed(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_are_processes_finish_their_training),
        cmocka_unit_test(test_ranks_pass_a_barrier_before_nccl_connects_each_group),
        cmocka_unit_test(test_ranks_pass_a_barrier_before_they_release_memory),
        cmocka_unit_test(test_master_weights_are_copied_after_the_first_weight_gather),
        cmocka_unit_test(test_bug_16_31_ranks_with_a_gpu_each_train_like_a_single_rank),
    };
    setenv("TEST_DEVICE", "cuda", 1);
    setenv("EMU_DEVICES", "6", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
