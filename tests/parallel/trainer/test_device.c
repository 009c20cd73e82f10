/* test_device.c -- training on a device with memory of its own: the warm-up uses everything before
 * the first step, the memory plan equals what is allocated, and a save neither allocates memory nor
 * waits for more than its copies. Skipped if CUDA is not built in or there is no device. */
#include "parallel/trainer/evaluate.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/support.h"
#include "tests/support/trainer/trainer_fixture.h"
#include "tests/support/turns.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { STEPS = 3 };

/* Opens a trainer of a one-layer model on the device, with one more setting, or NULL. */
static void open_on_device(Opened *o, const Folder *p, const char *set)
{
    trainer_run_open(o, p,
                     (const char *const[]){"device=cuda", "model.num_layers=1",
                                           "eval.sample_prompt=of the water", set, NULL});
}

static bool is_emulated(void)
{
    return dlsym(RTLD_DEFAULT, "emu_count_allocations") != NULL;
}

/* Returns the counter `name` of the emulated CUDA runtime; 0 on a GPU. */
static int64_t emulated(const char *name)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, name);
    return count ? count() : 0;
}

/* Returns whether emulated streams do nothing until they are waited for. */
static bool streams_lag(void)
{
    const char *streams = getenv("EMU_STREAMS");
    return is_emulated() && streams != NULL && strcmp(streams, "deferred") == 0;
}

/* Returns whether emulated streams may have unfinished work that nobody waits for. */
static bool streams_may_lag(void)
{
    const char *streams = getenv("EMU_STREAMS");
    return is_emulated() && streams != NULL && strcmp(streams, "strict") != 0;
}

/* ---- warming up ------------------------------------------------------------------------------ */

/* The third mode has one micro-batch more than the warm-up uses. The last mode measures phases, for
 * which the host waits. */
static const char *const modes[] = {NULL, "fp16.enabled=true", "train_batch_size=6",
                                    "wall_clock_breakdown=true"};
enum { MODES = sizeof modes / sizeof *modes, TIMED = MODES - 1 };

/* Returns the step by which the tests go through their cases: `sample` with TEST_SAMPLE, else 1. */
static int stride(int sample)
{
    return getenv("TEST_SAMPLE") ? sample : 1;
}

static void run_to_the_end(Opened *o, Trained *out)
{
    trainer_run_steps(o, out, STEPS);
    trainer_run_read(o, out);
    trainer_run_close(o);
}

/* Runs one step, saves and closes; then resumes in a new trainer that is warmed up first. */
static void resumed(const Folder *p, const char *mode, Trained *out)
{
    Opened o;
    Checkpoint *c = NULL;
    char err[1024], *run = text_format("%s/run", p->folder);
    open_on_device(&o, p, mode);
    trainer_run_steps(&o, out, 1);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_run_close(&o);
    open_on_device(&o, p, mode);
    trainer_warm_up(&o.trainer);
    if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    run_to_the_end(&o, out);
    char *command = text_format("rm -rf '%s'", run);
    assert_int_equal(system(command), 0);
    free(command);
    free(run);
}

/* A fresh and a resumed run have the same bits as one that was never warmed up. */
static void the_warm_up_changes_no_bit_of_a_run(void **state)
{
    cuda_needed();
    for (int i = (int)turns_first(stride(TIMED)); i < TIMED; i += stride(TIMED)) {
        const char *what = modes[i] ? modes[i] : "f32";
        Opened o;
        Trained cold = {0}, warm = {0}, again = {0};
        open_on_device(&o, *state, modes[i]);
        run_to_the_end(&o, &cold);
        open_on_device(&o, *state, modes[i]);
        trainer_warm_up(&o.trainer);
        run_to_the_end(&o, &warm);
        resumed(*state, modes[i], &again);
        trained_equal(&cold, &warm, what);
        trained_equal(&cold, &again, what);
        free(cold.bytes);
        free(warm.bytes);
        free(again.bytes);
    }
}

/* Returns for how many kinds of matrix product the device has chosen an algorithm. */
static int64_t plans_of(const Device *dev)
{
    return dev->backend->plans ? dev->backend->plans(dev) : 0;
}

/* After the warm-up, a step plans no product, allocates no memory, creates no event and launches no
 * kernel for the first time. The host waits for nothing and no event has a time stamp, unless
 * phases are timed. In a second step it waits once for each micro-batch beyond the number of slots,
 * and only if the device is behind. A sample and an evaluation do not plan, allocate or load
 * anything either. */
static void after_the_warm_up_a_step_plans_no_product_and_allocates_no_memory(void **state)
{
    cuda_needed();
    for (int i = 0; i < MODES; i += stride(TIMED)) {
        Opened o;
        size_t before, after, total;
        open_on_device(&o, *state, modes[i]);
        Device *dev = &o.trainer.session.dev;
        assert_int_equal(plans_of(dev), 0);
        emulated("emu_forget_kernels");
        trainer_warm_up(&o.trainer);
        int64_t kernels = emulated("emu_count_kernels");
        int64_t plans = plans_of(dev), waits = dev->waits, allocations = dev->allocations;
        int64_t emu_waits = emulated("emu_count_waits");
        int64_t emu_allocations = emulated("emu_count_allocations");
        int64_t timed = emulated("emu_count_timed_records");
        assert_true(plans > 0);
        assert_true(device_memory(dev, &before, &total));
        int64_t more = 2 * o.config->gradient_accumulation_steps - FEED_SLOTS;
        if (more < 0) more = 0;
        trainer_step(&o.trainer);
        if (i != TIMED) assert_int_equal(dev->waits, waits);
        trainer_step(&o.trainer);
        if (i != TIMED)
            assert_in_range(dev->waits - waits, streams_lag() ? more : 0,
                            is_emulated() && !streams_may_lag() ? 0 : more);
        if (is_emulated())
            assert_int_equal(emulated("emu_count_waits") - emu_waits, dev->waits - waits);
        free(trainer_sample(&o.trainer, o.config->eval.sample_prompt, 3));
        if (o.trainer.val) trainer_evaluate(&o.trainer, 0);
        assert_true(device_memory(dev, &after, &total));
        assert_int_equal(plans_of(dev), plans);
        assert_int_equal(dev->allocations, allocations);
        assert_int_equal(emulated("emu_count_allocations"), emu_allocations);
        if (i != TIMED) assert_int_equal(emulated("emu_count_timed_records"), timed);
        if (i == TIMED && is_emulated()) assert_true(emulated("emu_count_timed_records") > timed);
        if (is_emulated()) assert_int_equal(before, after); /* a GPU may have other users */
        assert_int_equal(emulated("emu_count_kernels"), kernels);
        trainer_run_close(&o);
    }
}

/* Runs one rank of a grid: after the warm-up, its first step, evaluation and sample plan, allocate
 * and load nothing. As above, the host waits only for micro-batches without a slot. */
static void first_step_of_rank(Comm *world, void *context)
{
    const Training *training = context;
    const Config *config = training->config;
    Trainer t;
    training_open_rank(&t, world, training);
    Device *dev = &t.session.dev;
    size_t plan = dev->held;
    trainer_warm_up(&t);
    comm_barrier(world); /* the counters are those of all ranks, so all must be warmed up */
    int64_t kernels = emulated("emu_count_kernels"), events = emulated("emu_count_allocations");
    comm_barrier(world);
    int64_t plans = plans_of(dev), waits = dev->waits, allocations = dev->allocations;
    trainer_step(&t);
    int64_t more = config->gradient_accumulation_steps - FEED_SLOTS;
    bool lags = !is_emulated() || streams_may_lag();
    if (dev->waits - waits > (more > 0 && lags ? more : 0))
        rank_wrong(world, "a step waits %lld times", (long long)(dev->waits - waits));
    trainer_evaluate(&t, 0);
    free(trainer_sample(&t, config->eval.sample_prompt, 3));
    comm_barrier(world);
    if (plans_of(dev) != plans || dev->allocations != allocations || dev->held != plan ||
        emulated("emu_count_kernels") != kernels || emulated("emu_count_allocations") != events)
        rank_wrong(world,
                   "after warming up: products planned %lld, memory taken %lld times, kernels "
                   "loaded %lld, allocations %lld",
                   (long long)(plans_of(dev) - plans), (long long)(dev->allocations - allocations),
                   (long long)(emulated("emu_count_kernels") - kernels),
                   (long long)(emulated("emu_count_allocations") - events));
    comm_barrier(world);
    trainer_close(&t);
}

/* The warm-up has its own schedule, which uses every connection between stages and finishes on all
 * of them. Five micro-batches of two chunks need one buffer more than the warm-up uses. */
static void after_the_warm_up_a_step_of_several_stages_allocates_nothing(void **state)
{
    static const struct {
        int ranks;
        const char *set[4];
    } grids[] = {
        {2, {"parallel.pipeline=2", "train_batch_size=6", NULL}},
        {2, {"parallel.pipeline=2", "parallel.pipeline_chunks=2", "train_batch_size=10", NULL}},
        {4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence_parallel=true", NULL}},
        {4, {"parallel.pipeline=2", "zero_optimization.stage=3", "train_batch_size=12", NULL}},
    };
    enum { GRIDS = sizeof grids / sizeof *grids };
    cuda_needed();
    for (size_t i = (size_t)turns_first(stride(GRIDS)); i < GRIDS; i += (size_t)stride(GRIDS)) {
        Training t;
        const char *const *set = grids[i].set;
        training_of_text(&t, *state, grids[i].ranks,
                         (const char *const[]){"device=cuda", "model.num_layers=4",
                                               "eval.sample_prompt=of the water", set[0], set[1],
                                               set[2], NULL});
        thread_ranks(grids[i].ranks, 120, first_step_of_rank, &t);
        training_close(&t);
    }
}

/* On a GPU, the host's wait for data is not subtracted from the phases, because the device
 * continues to work meanwhile. */
static void waiting_for_data_is_not_subtracted_from_a_gpus_phases(void **state)
{
    cuda_needed();
    Opened o;
    open_on_device(&o, *state, "wall_clock_breakdown=true");
    Session *session = &o.trainer.session;
    Phases *p = &o.trainer.phases;
    for (int64_t i = 0; i < p->n; i++)
        phases_mark(p, session, 100 * (double)i); /* seconds spent waiting for data */
    phases_add(p, session, &session->step.schedule);
    const PhaseSeconds *s = &p->seconds;
    assert_true(s->forward >= 0 && s->backward >= 0 && s->optimizer >= 0);
    assert_true(s->communication == 0 && s->exchange == 0 && s->bubble == 0);
    trainer_run_close(&o);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The memory that a trainer allocates on the device equals the plan, to the byte. The emulated
 * runtime must report the same number; a GPU allocates whole pages and may have other users. */
static void the_memory_plan_equals_what_a_trainer_allocates(void **state)
{
    cuda_needed();
    for (int i = (int)turns_first(stride(MODES)); i < MODES; i += stride(MODES)) {
        Opened o;
        Device bare;
        char err[512];
        DeviceOptions options = {.threads = 1, .local_ranks = 1};
        size_t alone, with, total;
        assert_true(device_open(&bare, "cuda", &options, err, sizeof err));
        assert_true(device_memory(&bare, &alone, &total));
        assert_true(alone < total); /* its scratch is subtracted */
        device_close(&bare);
        open_on_device(&o, *state, modes[i]);
        size_t plan = o.plan.total;
        assert_int_equal(o.trainer.session.dev.held, plan);
        assert_int_equal(trainer_run_host_bytes(&o), o.plan.host);
        assert_true(device_memory(&o.trainer.session.dev, &with, &total));
        if (is_emulated()) assert_int_equal(alone - with, plan);
        trainer_run_close(&o);
    }
}

/* A save allocates neither page-locked nor device memory, and waits only for its own copies: the
 * state, then each piece. */
static void a_save_neither_allocates_nor_waits_for_the_whole_device(void **state)
{
    cuda_needed();
    const Folder *p = *state;
    Opened o;
    char err[1024], *run = text_format("%s/saved", p->folder);
    open_on_device(&o, p, NULL);
    Device *dev = &o.trainer.session.dev;
    StepRecord record[TRAINER_HISTORY];
    trainer_step(&o.trainer);
    trainer_read_all(&o.trainer, record);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_step(&o.trainer);
    trainer_read_all(&o.trainer, record);
    int64_t waits = dev->waits, allocations = dev->allocations;
    int64_t emu_waits = emulated("emu_count_waits");
    int64_t emu_allocations = emulated("emu_count_allocations");
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    int64_t pieces = o.trainer.session.table.n_params + o.trainer.n_slots;
    assert_in_range(dev->waits - waits, 1, 1 + pieces); /* some copies may have finished */
    assert_int_equal(dev->allocations, allocations);
    assert_int_equal(emulated("emu_count_allocations"), emu_allocations);
    /* The state is copied to pageable memory, and waiting for the device means one wait for each of
     * its six streams. The copy of a piece takes at most one wait, and none if streams do not
     * lag. */
    assert_in_range(emulated("emu_count_waits") - emu_waits, 0,
                    7 + (streams_may_lag() ? pieces : 0));
    trainer_run_close(&o);
    free(run);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies rows that are farther apart than CUDA's largest pitch of 2^31 - 1 bytes. The memory
 * between them is reserved but never touched. */
static void rows_farther_apart_than_cudas_largest_pitch_are_copied(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 5 };
    const int64_t LD = ((int64_t)1 << 29) + 64;
    const size_t bytes = (size_t)((ROWS - 1) * LD + COLS) * sizeof(float);
    cuda_needed();
    Device dev;
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    char err[512];
    assert_true(device_open(&dev, "cuda", &options, err, sizeof err));
    float *wide = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(wide != MAP_FAILED);
    float back[ROWS * COLS] = {0};
    Tensor from = tensor_2d(wide, F32, ROWS, COLS), to = tensor_2d(back, F32, ROWS, COLS);
    Tensor there = tensor_2d(device_alloc(&dev, sizeof back, "rows"), F32, ROWS, COLS);
    from.ld = LD;
    there.place = dev.backend->place;
    for (int i = 0; i < ROWS * COLS; i++)
        wide[i / COLS * LD + i % COLS] = (float)(i + 1);
    device_copy(&dev, there, from);
    device_copy(&dev, to, there);
    device_synchronize(&dev);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_true(back[i] == (float)(i + 1));
    munmap(wide, bytes);
    device_release(&dev, there.data, sizeof back);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_warm_up_changes_no_bit_of_a_run),
        cmocka_unit_test(after_the_warm_up_a_step_plans_no_product_and_allocates_no_memory),
        cmocka_unit_test(after_the_warm_up_a_step_of_several_stages_allocates_nothing),
        cmocka_unit_test(waiting_for_data_is_not_subtracted_from_a_gpus_phases),
        cmocka_unit_test(the_memory_plan_equals_what_a_trainer_allocates),
        cmocka_unit_test(a_save_neither_allocates_nor_waits_for_the_whole_device),
        cmocka_unit_test(rows_farther_apart_than_cudas_largest_pitch_are_copied),
    };
    return cmocka_run_group_tests_name("device", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
