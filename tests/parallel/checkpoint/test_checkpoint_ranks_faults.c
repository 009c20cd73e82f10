/* test_checkpoint_ranks_faults.c -- saves by several writers, one of which dies or whose disk fails
 * at any file system call: all ranks report it, and an incomplete save is never taken for a
 * checkpoint. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/save_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

enum { RANKS = 3, WRITERS = 3 };

/* ---- a disk that fails, a process that dies ---------------------------------------------------
 */

static const TestRanks all_write = {.ranks = RANKS, .tp = 1, .writers = WRITERS};

static void a_disk_failure_on_one_rank_fails_the_save_on_all_ranks(void **state)
{
    (void)state;
    for (Fault fault = FAULT_ONCE; fault <= FAULT_ALWAYS; fault++)
        for (int bad = 0; bad < RANKS; bad++) {
            int at = 1;
            while (ranks_save_with_fault(&all_write,
                                         &(SaveFault){fault, bad, at, at % 2 ? ENOSPC : EIO}))
                at++;
            assert_in_range(at, bad ? 12 : 30, 200);
        }
}

static void bug_51_killing_a_writer_at_any_call_leaves_a_whole_checkpoint(void **state)
{
    (void)state;
    for (int bad = 0; bad < RANKS; bad++) {
        int at = 1;
        while (ranks_save_with_fault(&all_write, &(SaveFault){FAULT_KILL, bad, at, 0}))
            at++;
        assert_in_range(at, bad ? 12 : 30, 200);
    }
}

/* ---- order, bounds --------------------------------------------------------------------------- */

/* Each writer syncs its files before rank 0 begins the manifest, and rank 0 renames the folder
 * last. */
static void rank_0_writes_the_manifest_after_all_writers_have_synced(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs[RANKS];
    char log[RANKS][4096] = {{0}};
    test_run_open(&r);
    for (int rank = 0; rank < RANKS; rank++) {
        faulty_fs_init(&fs[rank], FAULT_NONE, 0, 0);
        fs[rank].log = log[rank];
    }
    TestRanks saving = {
        .ranks = RANKS, .tp = 1, .writers = WRITERS, .run = r.run, .step = 2, .fs = fs};
    ranks_save(&saving);
    assert_true(ranks_agree(&saving));
    for (int rank = 0; rank < RANKS; rank++) {
        char files[2][64];
        snprintf(files[0], sizeof files[0], "omodel-%05d-of-00003.safetensors w ", rank + 1);
        snprintf(files[1], sizeof files[1], " s c ooptimizer-%05d-of-00003.safetensors w ",
                 rank + 1);
        const char *at = strstr(log[rank], files[0]);
        if (at == NULL || strstr(at, files[1]) == NULL) fail_msg("rank %d: %s", rank, log[rank]);
        const char *end = log[rank] + strlen(log[rank]) - 5;
        if (rank > 0 && strcmp(end, " s c ") != 0) fail_msg("rank %d: %s", rank, log[rank]);
    }
    static const char texts[] = " s c omodel.safetensors.index.json w s c "
                                "ooptimizer.safetensors.index.json w s c "
                                "omanifest.json w s c s rstep_00000002 s s ";
    if (strstr(log[0], texts) == NULL) fail_msg("rank 0: %s", log[0]);
    test_run_close(&r);
}

/* ---- a step that exists already -------------------------------------------------------------- */

static TestRanks three_ranks(const TestRun *r, int64_t step)
{
    return (TestRanks){.ranks = RANKS, .tp = 1, .writers = 2, .run = r->run, .step = step};
}

/* An intact step is not written again. A damaged one is replaced. A folder that holds another step
 * is moved aside. */
static void saving_a_step_that_exists_has_the_same_outcome_on_all_ranks(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    TestRanks saving = three_ranks(&r, 5);
    ranks_must_save(&saving);
    char *path = test_run_file(&r, 5, "manifest.json"), *five = checkpoint_path(r.run, 5),
         *six = checkpoint_path(r.run, 6);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    ranks_must_save(&saving);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    char *data = test_run_file(&r, 5, "optimizer-00002-of-00002.safetensors");
    file_flip(data, file_size(data) - 1, 1);
    assert_false(test_run_whole(&r, 5));
    ranks_must_save(&saving);
    assert_true(test_run_whole(&r, 5));
    assert_int_equal(test_run_entries(&r), 1);
    assert_int_equal(rename(five, six), 0);
    saving.step = 6;
    ranks_must_save(&saving);
    assert_int_equal(ranks_resume_step(&r), 6);
    assert_int_equal(test_run_entries(&r), 2); /* including step_00000006.holds-5-... */
    free(path);
    free(data);
    free(five);
    free(six);
    test_run_close(&r);
}

static void a_pruning_failure_on_rank_0_is_reported_on_all_ranks(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    for (int64_t step = 1; step <= 5; step++) {
        TestRanks saving = three_ranks(&r, step);
        saving.keep = 2;
        ranks_must_save(&saving);
        assert_int_equal(test_run_entries(&r), step < 2 ? step : 2);
    }
    FaultyFs fs[RANKS];
    TestRanks saving = three_ranks(&r, 6);
    for (int rank = 0; rank < RANKS; rank++) {
        faulty_fs_init(&fs[rank], FAULT_NONE, 0, 0);
        fs[rank].log = NULL;
    }
    saving.fs = fs;
    ranks_must_save(&saving);
    int calls = fs[0].calls;
    faulty_fs_init(&fs[0], FAULT_ONCE, calls + 1, EIO); /* the first call of the next pruning */
    saving.step = 7;
    saving.keep = 1;
    ranks_save(&saving);
    assert_false(ranks_agree(&saving));
    assert_non_null(strstr(saving.err[0], "rename the old checkpoint"));
    assert_int_equal(ranks_resume_step(&r), 7);
    test_run_close(&r);
}

/* The disk is full for all ranks: the oldest checkpoint is removed, and the newest that verifies
 * stays. */
static void several_ranks_remove_old_checkpoints_to_save_on_a_full_disk(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs[RANKS];
    test_run_open(&r);
    for (int64_t step = 1; step <= 3; step++)
        test_run_must_save(&r, step);
    char *path = test_run_file(&r, 3, "model.safetensors");
    file_flip(path, file_size(path) - 1, 1); /* one rank finds this, and all ranks must report it */
    free(path);
    TestRanks saving = three_ranks(&r, 5);
    saving.fs = fs;
    int64_t one = 0, room;
    for (int rank = 0; rank < RANKS; rank++) {
        faulty_fs_init(&fs[rank], FAULT_NONE, 0, 0);
        fs[rank].disk = r.run;
        fs[rank].capacity = INT64_MAX;
        room = fs[rank].ops.room(&fs[rank], r.run);
        one = (INT64_MAX - room) / 3;
        fs[rank].capacity = INT64_MAX - room + one / 2;
    }
    ranks_save(&saving);
    assert_false(ranks_agree(&saving));
    assert_true(error_says(saving.err[0], ENOSPC));
    assert_int_equal(test_run_entries(&r), 3);
    saving.making_room = true;
    /* Only step 1 may make room: step 2 is the newest that verifies, so it must stay until step 5
     * is complete. The save may fail even with this room. */
    ranks_save(&saving);
    if (!ranks_agree(&saving)) assert_true(error_says(saving.err[0], ENOSPC));
    assert_false(test_run_whole(&r, 1));
    assert_true(test_run_whole(&r, 2));
    for (int rank = 0; rank < RANKS; rank++)
        fs[rank].capacity += 2 * one;
    ranks_must_save(&saving);
    assert_int_equal(ranks_resume_step(&r), 5);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_failure_on_one_rank_fails_the_save_on_all_ranks),
        cmocka_unit_test(bug_51_killing_a_writer_at_any_call_leaves_a_whole_checkpoint),
        cmocka_unit_test(rank_0_writes_the_manifest_after_all_writers_have_synced),
        cmocka_unit_test(saving_a_step_that_exists_has_the_same_outcome_on_all_ranks),
        cmocka_unit_test(a_pruning_failure_on_rank_0_is_reported_on_all_ranks),
        cmocka_unit_test(several_ranks_remove_old_checkpoints_to_save_on_a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
