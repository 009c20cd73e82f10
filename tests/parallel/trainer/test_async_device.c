/* test_async_device.c -- an asynchronous save of a single rank: the host waits for nothing, the
 * device copies the results of the steps before the save, however far its streams are behind the
 * host, and the checkpoint has the bits of its step. On the CPU, and on a device if there is
 * one. */
#include "model/kernels/ops.h"
#include "tests/support/support.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAVED_AT = 2, STEPS = 4 };

static const char *device_setting(void)
{
    const char *device = getenv("TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0 ? "device=cuda" : "device=cpu";
}

/* Opens a trainer whose saves are asynchronous, in a world of one rank like that of a run. */
static void open_async(Opened *o, const Folder *folder, const char *set)
{
    static Comm world;
    Training t;
    training_of_text(&t, folder, 1,
                     (const char *const[]){device_setting(), "model.num_layers=1",
                                           "checkpoint.save_interval=2", set, NULL});
    *o = (Opened){.config = t.config, .data = t.data};
    world = comm_self("world");
    training_lay_out(&o->trainer, &world, &t);
    o->trainer.saves_async = true;
    char err[1024];
    if (!trainer_allocate(&o->trainer, o->config, &o->data, err, sizeof err)) fail_msg("%s", err);
}

static void close_async(Opened *o)
{
    Comm *world = o->trainer.session.world;
    trainer_run_close(o);
    comm_close(world);
}

/* Returns the counter `name` of the emulated CUDA runtime; 0 if it is not linked. */
static int64_t emulated(const char *name)
{
    int64_t (*count)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, name);
    return count ? count() : 0;
}

static bool count_hook(void *context, char *err, size_t n)
{
    (void)err;
    (void)n;
    ++*(int *)context;
    return true;
}

/* Reads the checkpoint of step SAVED_AT into a new trainer. */
static void read_back(const Folder *folder, const char *set, const char *run, Trained *out)
{
    Opened o;
    char err[1024];
    Checkpoint *c = NULL;
    open_async(&o, folder, set);
    if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    assert_int_equal(checkpoint_manifest(c)->state.steps, SAVED_AT);
    if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    trainer_run_read(&o, out);
    close_async(&o);
}

/* Trains, begins a save, and trains on while it is pending. */
static void save_and_go_on(const Folder *folder, const char *set, const char *run, Trained *end)
{
    Opened o;
    AsyncResult result;
    int hooked = 0;
    open_async(&o, folder, set);
    Trainer *t = &o.trainer;
    trainer_run_steps(&o, end, 1);
    trainer_step(t);
    int64_t waits = t->session.dev.waits, allocations = t->session.dev.allocations;
    int64_t emulated_waits = emulated("emu_count_waits");
    assert_true(trainer_save_begin(t, run, "{}", "{}", (CheckpointHook){count_hook, &hooked}));
    trainer_step(t);
    assert_int_equal(async_save_pending(t->async), SAVED_AT);
    AsyncState state = trainer_save_advance(t, true, false, &result);
    assert_int_equal(t->session.dev.waits, waits);
    assert_int_equal(emulated("emu_count_waits"), emulated_waits);
    assert_int_equal(t->session.dev.allocations, allocations);
    trainer_run_steps(&o, end, STEPS);
    if (state == ASYNC_PENDING) state = trainer_save_await(t, false, &result);
    if (state != ASYNC_SAVED) fail_msg("%s", result.err);
    assert_true(hooked == 1 && result.step == SAVED_AT && result.state.steps == SAVED_AT);
    assert_int_equal(async_save_pending(t->async), -1);
    trainer_run_read(&o, end);
    close_async(&o);
}

static void plain_run(const Folder *folder, const char *set, int64_t steps, Trained *out)
{
    Opened o;
    open_async(&o, folder, set);
    trainer_run_steps(&o, out, steps);
    trainer_run_read(&o, out);
    close_async(&o);
}

static void an_asynchronous_save_contains_the_bits_of_its_own_step(void **state)
{
    static const char *const sets[] = {"seed=1", "fp16.enabled=true",
                                       "zero_optimization.offload_optimizer.device=cpu"};
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    for (int i = 0; i < 3; i++) {
        char *run = text_format("%s/async-%d", ((const Folder *)*state)->folder, i);
        Trained end = {0}, whole = {0}, saved = {0}, at = {0};
        save_and_go_on(*state, sets[i], run, &end);
        plain_run(*state, sets[i], STEPS, &whole);
        trained_equal(&end, &whole, "a run that saves meanwhile");
        read_back(*state, sets[i], run, &saved);
        plain_run(*state, sets[i], SAVED_AT, &at);
        at.n = 0;
        trained_equal(&saved, &at, "the checkpoint");
        free(end.bytes);
        free(whole.bytes);
        free(saved.bytes);
        free(at.bytes);
        free(run);
    }
}

/* Work that is issued to the compute stream after a save has begun runs after the save's copies,
 * although nothing but the save makes it wait. */
static void later_work_of_the_compute_stream_changes_nothing_that_is_saved(void **state)
{
    if (strcmp(device_setting(), "device=cuda") == 0) cuda_needed();
    char *run = text_format("%s/overwritten", ((const Folder *)*state)->folder);
    Opened o;
    AsyncResult result;
    Trained saved = {0}, at = {0};
    Event filled = {0};
    open_async(&o, *state, "seed=1");
    Trainer *t = &o.trainer;
    Device *dev = &t->session.dev;
    trainer_run_steps(&o, &at, SAVED_AT);
    trainer_run_read(&o, &at);
    assert_true(trainer_save_begin(t, run, "{}", "{}", (CheckpointHook){0}));
    for (int p = 0; p < t->session.table.n_params; p++)
        op_fill(dev, t->weights[p].data, 0.0);
    device_event_record(dev, &filled);
    device_event_synchronize(dev, &filled);
    if (trainer_save_await(t, false, &result) != ASYNC_SAVED) fail_msg("%s", result.err);
    device_event_destroy(dev, &filled);
    close_async(&o);
    read_back(*state, "seed=1", run, &saved);
    at.n = 0;
    trained_equal(&saved, &at, "the checkpoint");
    free(saved.bytes);
    free(at.bytes);
    free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_asynchronous_save_contains_the_bits_of_its_own_step),
        cmocka_unit_test(later_work_of_the_compute_stream_changes_nothing_that_is_saved),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
