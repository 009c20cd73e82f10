/* test_async_faults.c -- disks that fail, and processes that are killed, at any call of a thread
 * that writes a checkpoint: the old checkpoint or the new one is intact afterwards, and training
 * continues. Slow builds (TEST_SAMPLE) try every fourth call, by turns. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/async_ranks.h"
#include "tests/support/checkpoint/save_faults.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>

/* Saves in world `w` with this fault, and prunes to one checkpoint if a process is to be killed.
 * Returns whether the fault was reached. */
static bool fault_in(int w, Fault fault, int rank, int at, int error)
{
    TestRun nowhere = {0};
    TestRanks how = async_world(w, &nowhere, 2);
    how.keep = fault == FAULT_KILL;
    return ranks_save_with_fault(&how, &(SaveFault){fault, rank, at, error});
}

static int first_call(void)
{
    return 1 + (int)turns_first(turns_every(4));
}

static void a_disk_failure_at_any_call_of_a_thread_leaves_the_old_checkpoint(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO};
    /* Slow builds look for races, for which one of the errors is enough. */
    bool sample = getenv("TEST_SAMPLE") != NULL;
    for (int w = 0; w <= 2; w += 2)
        for (int e = sample; e < 2; e++)
            for (Fault fault = FAULT_ONCE; fault <= FAULT_ALWAYS; fault++)
                for (int bad = 0; bad < async_worlds[w].ranks; bad++) {
                    int at = first_call();
                    while (fault_in(w, fault, bad, at, errors[e]))
                        at += (int)turns_every(4);
                    assert_in_range(at, bad ? 12 : 25, 200);
                }
}

static void short_and_interrupted_writes_are_completed(void **state)
{
    (void)state;
    for (int w = 0; w < ASYNC_WORLDS; w++) {
        TestRun r;
        FaultyFs fs[RANKS_MOST];
        test_run_open(&r);
        for (int rank = 0; rank < async_worlds[w].ranks; rank++)
            faulty_fs_init(&fs[rank], FAULT_SHORT, 0, 0);
        TestRanks saving = async_world(w, &r, 5);
        saving.fs = fs;
        ranks_must_save(&saving);
        assert_true(saving.begun[0] && fs[0].calls > 100);
        assert_int_equal(ranks_resume_step(&r), 5);
        test_run_close(&r);
    }
}

static void a_kill_at_any_call_of_a_thread_leaves_the_old_or_new_checkpoint(void **state)
{
    (void)state;
    for (int w = 0; w <= 2; w += 2)
        for (int bad = 0; bad < async_worlds[w].ranks; bad++) {
            int at = first_call();
            while (fault_in(w, FAULT_KILL, bad, at, 0))
                at += (int)turns_every(4);
            assert_in_range(at, bad ? 12 : 30, 200);
        }
}

/* The disk has no room: the oldest checkpoints are removed, and the same snapshot is written
 * again. */
static void on_a_full_disk_old_checkpoints_are_removed_and_the_snapshot_is_saved(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs[RANKS_MOST];
    test_run_open(&r);
    for (int64_t step = 1; step <= 3; step++)
        test_run_must_save(&r, step);
    TestRanks saving = async_world(2, &r, 5);
    saving.fs = fs;
    ranks_disks(fs, saving.ranks);
    for (int rank = 0; rank < saving.ranks; rank++) {
        fs[rank].disk = r.run;
        fs[rank].capacity = INT64_MAX;
        fs[rank].capacity -= fs[rank].ops.room(&fs[rank], r.run);
    }
    ranks_save(&saving);
    assert_false(ranks_agree(&saving));
    assert_true(error_says(saving.err[0], ENOSPC) && saving.begun[0]);
    assert_int_equal(test_run_entries(&r), 3);
    saving.making_room = true;
    ranks_must_save(&saving);
    assert_true(saving.begun[0]);
    assert_int_equal(ranks_resume_step(&r), 5);
    assert_true(test_run_whole(&r, 3));
    assert_false(test_run_whole(&r, 1));
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_failure_at_any_call_of_a_thread_leaves_the_old_checkpoint),
        cmocka_unit_test(short_and_interrupted_writes_are_completed),
        cmocka_unit_test(a_kill_at_any_call_of_a_thread_leaves_the_old_or_new_checkpoint),
        cmocka_unit_test(on_a_full_disk_old_checkpoints_are_removed_and_the_snapshot_is_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
