/* test_async_late.c -- an asynchronous save of a single rank, whose device copies to the snapshot
 * late and whose thread writes in no time. */
#include "parallel/checkpoint/async_save.h"
#include "parallel/checkpoint/writer_thread.h"
#include "tests/support/checkpoint/checkpoint_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a device, and a thread ------------------------------------------------------------------ */

/* How many more times the device answers that an event is not reached yet. */
static int asked_in_vain;

static bool late_reached(Device *device, Event *event)
{
    (void)device;
    (void)event;
    if (asked_in_vain == 0) return true;
    asked_in_vain--;
    return false;
}

static void host_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    (void)device;
    (void)stream;
    memcpy(dst.data, src.data, tensor_bytes(src));
}

static void no_event(Device *device, Event *event, Stream stream)
{
    (void)device;
    (void)event;
    (void)stream;
}

static bool threads_are_fast;

bool __real_writer_thread_busy(WriterThread *w);
bool __wrap_writer_thread_busy(WriterThread *w);

/* Lets the thread finish before the rank asks whether it is busy, as if the thread were very fast.
 */
bool __wrap_writer_thread_busy(WriterThread *w)
{
    if (threads_are_fast) writer_thread_wait(w);
    return __real_writer_thread_busy(w);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Whether a save is kept depends on the steps before it, whose records the run reads once the
 * copies have ended. Rules that were decided before that have no effect, even if the copies and the
 * files are complete by the end of the same call. */
static void rules_decided_before_the_snapshot_is_complete_have_no_effect(void **state)
{
    (void)state;
    Backend backend = test_offset_backend;
    backend.place = PLACE_DEVICE;
    backend.copy = host_copy;
    backend.event_record = backend.event_wait = no_event;
    backend.event_reached = late_reached;
    Device device = {.backend = &backend};
    TestRun r;
    AsyncResult result;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    checkpoint_io_close(&r.io);
    checkpoint_io_open(&r.io, &device, NULL);
    test_run_fill(&r, 2);
    for (int i = 0; i < N_ALL; i++)
        r.tensor[i].data.place = PLACE_DEVICE;
    CheckpointContents contents = test_run_contents(&r);
    AsyncSave *a = async_save_open(&r.io, &contents);
    threads_are_fast = true;
    asked_in_vain = 1;
    assert_true(async_save_begin(a, &(AsyncRequest){.run = r.run, .contents = &contents}));
    assert_false(async_save_copied(a)); /* so the caller knows of no reason to drop the save */
    AsyncRules rules = {.keep = 1, .drop = false};
    assert_int_equal(async_save_advance(a, &rules, true, &result), ASYNC_PENDING);
    assert_true(async_save_copied(a)); /* now the caller may know one */
    rules = (AsyncRules){.keep = 0, .drop = true};
    AsyncState end = ASYNC_PENDING;
    for (int call = 0; call < 3 && end == ASYNC_PENDING; call++)
        end = async_save_advance(a, &rules, true, &result);
    assert_int_equal(end, ASYNC_DROPPED);
    threads_are_fast = false;
    async_save_close(a);
    assert_int_equal(test_run_entries(&r), 1);
    assert_int_equal(test_run_newest(&r), 1);
    test_run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_decided_before_the_snapshot_is_complete_have_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
