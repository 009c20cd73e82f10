/* test_cuda_ahead.c -- tests that the host can queue training steps before the device can start
 * them. A host function blocks the compute stream in front of the steps until the test releases it.
 * A step that waited for the device would never return. Runs on a GPU and on emulated devices. */
#include "tests/support/support.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* AHEAD: steps that are queued. PATIENCE: seconds until a hanging test fails. */
enum { AHEAD = 2, PATIENCE = 20 };

typedef struct {
    sem_t go;
    atomic_bool passed;
} Gate;

/* Runs in the stream and blocks it until the gate opens. */
static void stand_at(void *context)
{
    Gate *gate = context;
    while (sem_wait(&gate->go) != 0)
        continue;
    atomic_store(&gate->passed, true);
}

static void on_alarm(int number)
{
    static const char words[] = "a step waits for the device\n";
    ssize_t written = write(STDERR_FILENO, words, sizeof words - 1);
    _exit(written > 0 ? number : 1);
}

/* Opens a trainer and warms it up. The model has one layer, because a GPU's queue holds only about
 * a thousand launches and the steps of a larger model could need more. */
static void open_warm(Opened *o, const Folder *p)
{
    trainer_run_open(o, p, (const char *const[]){"device=cuda", "model.num_layers=1", NULL});
    trainer_warm_up(&o->trainer);
}

static void test_steps_are_queued_while_the_device_is_blocked(void **state)
{
    Opened o;
    Trained ahead = {0}, plain = {0};
    Gate gate = {.passed = false};
    cuda_needed();
    open_warm(&o, *state);
    trainer_run_steps(&o, &plain, AHEAD);
    trainer_run_read(&o, &plain);
    trainer_run_close(&o);

    open_warm(&o, *state);
    Device *dev = &o.trainer.session.dev;
    assert_int_equal(sem_init(&gate.go, 0, 0), 0);
    signal(SIGALRM, on_alarm);
    alarm(PATIENCE);
    assert_int_equal(cudaLaunchHostFunc(dev->compute.impl, stand_at, &gate), cudaSuccess);
    int64_t waits = dev->waits;
    int came = 0;
    for (int i = 0; i < AHEAD; i++) {
        trainer_step(&o.trainer);
        came += trainer_read(&o.trainer, ahead.record);
    }
    bool passed = atomic_load(&gate.passed);
    /* Opens the gate before the assertions: if one failed with the gate closed, exit would hang. */
    assert_int_equal(sem_post(&gate.go), 0);
    assert_int_equal(came, 0);
    assert_false(passed);
    assert_int_equal(dev->waits, waits);
    trainer_run_steps(&o, &ahead, AHEAD);
    alarm(0);
    assert_true(atomic_load(&gate.passed));
    trainer_run_read(&o, &ahead);
    trained_equal(&plain, &ahead, "two steps ahead");
    trainer_run_close(&o);
    sem_destroy(&gate.go);
    free(plain.bytes);
    free(ahead.bytes);
}

static int setup(void **state)
{
    setenv("EMU_STREAMS", "deferred", 1); /* otherwise emulated streams do their work at once */
    return trainer_folder_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_queued_while_the_device_is_blocked),
    };
    return cmocka_run_group_tests_name("ahead", tests, setup, trainer_folder_teardown);
}
