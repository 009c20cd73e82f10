/* test_async_faults.c -- disks that fail, and processes that are killed, at any call of a thread
 * that writes a checkpoint: there is the old one or the new one, and the training goes on. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/async_ranks.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Saves step 1, then step 2 in world `w` with a disk that fails at call `at` of rank `bad`. Returns
 * whether rank `bad` made at least `at` calls. */
static bool fail_at(int w, Fault fault, int bad, int at, int error)
{
    TestRun r;
    FaultyFs fs[RANKS_MOST];
    test_run_open(&r);
    test_run_must_save(&r, 1);
    async_disks(fs, async_worlds[w].ranks);
    faulty_fs_init(&fs[bad], fault, at, error);
    TestRanks saving = async_world(w, &r, 2);
    saving.fs = fs;
    ranks_save(&saving);
    bool saved = ranks_agree(&saving), reached = fs[bad].calls >= at;
    if (!saved && strstr(saving.err[0], strerror(error)) == NULL)
        fail_msg("rank %d, call %d: no reason in '%s'", bad, at, saving.err[0]);
    assert_true(saved || reached);
    int64_t step = async_newest(&r);
    /* If the disk keeps failing from the very last sync on, the complete save cannot be undone and
     * stays. */
    if (step != (saved ? 2 : 1) && !(step == 2 && bad == 0 && fault == FAULT_ALWAYS))
        fail_msg("rank %d, call %d: step %lld is the newest (%s)", bad, at, (long long)step,
                 saved ? "saved" : saving.err[0]);
    if (!saved && (fault == FAULT_ONCE || bad > 0) && test_run_entries(&r) != 1)
        fail_msg("rank %d, call %d leaves something: %s", bad, at, saving.err[0]);
    test_run_goes_on(&r);
    test_run_close(&r);
    return reached;
}

static void a_disk_failure_at_any_call_of_a_thread_leaves_the_old_checkpoint(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO};
    /* Slow builds look for races, which both errors have alike. */
    bool sample = getenv("TEST_SAMPLE") != NULL;
    for (int w = 0; w <= 2; w += 2)
        for (int e = sample; e < 2; e++)
            for (Fault fault = FAULT_ONCE; fault <= FAULT_ALWAYS; fault++)
                for (int bad = 0; bad < async_worlds[w].ranks; bad++) {
                    int at = 1;
                    while (fail_at(w, fault, bad, at, errors[e]))
                        at++;
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
        async_must_save(&saving);
        assert_true(saving.begun[0] && fs[0].calls > 100);
        assert_int_equal(async_newest(&r), 5);
        test_run_close(&r);
    }
}

static void save_body(Comm *world, void *context)
{
    ranks_save_here(context, world);
}

/* Saves step 1; then a process of several ranks saves step 2, prunes to one checkpoint, and dies at
 * call `at` of rank `bad`. Returns whether it died. */
static bool kill_at(int w, int bad, int at)
{
    TestRun r;
    int status;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        FaultyFs fs[RANKS_MOST];
        async_disks(fs, async_worlds[w].ranks);
        faulty_fs_init(&fs[bad], FAULT_KILL, at, 0);
        TestRanks saving = async_world(w, &r, 2);
        saving.fs = fs;
        saving.keep = 1;
        thread_ranks(saving.ranks, 60, save_body, &saving);
        _exit(saving.good[0] ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    bool killed = WIFEXITED(status) && WEXITSTATUS(status) == FAULTY_KILLED;
    assert_true(killed || status == 0);
    int64_t step = async_newest(&r);
    if (step != 2 && (step != 1 || !killed))
        fail_msg("rank %d killed at call %d: step %lld is the newest", bad, at, (long long)step);
    test_run_must_save(&r, step + 1);
    assert_true(checkpoint_prune(&r.io, r.run, step + 1, 1, r.err, sizeof r.err));
    assert_int_equal(test_run_entries(&r), 1);
    assert_int_equal(test_run_newest(&r), step + 1);
    test_run_close(&r);
    return killed;
}

static void a_kill_at_any_call_of_a_thread_leaves_the_old_or_new_checkpoint(void **state)
{
    (void)state;
    for (int w = 0; w <= 2; w += 2)
        for (int bad = 0; bad < async_worlds[w].ranks; bad++) {
            int at = 1;
            while (kill_at(w, bad, at))
                at++;
            assert_in_range(at, bad ? 12 : 30, 200);
        }
}

/* The disk has no room: the oldest checkpoints are removed, and the same snapshot is written
 * again. */
static void a_full_disk_makes_room_for_the_same_snapshot(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs[RANKS_MOST];
    test_run_open(&r);
    for (int64_t step = 1; step <= 3; step++)
        test_run_must_save(&r, step);
    TestRanks saving = async_world(2, &r, 5);
    saving.fs = fs;
    async_disks(fs, saving.ranks);
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
    async_must_save(&saving);
    assert_true(saving.begun[0]);
    assert_int_equal(async_newest(&r), 5);
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
        cmocka_unit_test(a_full_disk_makes_room_for_the_same_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
