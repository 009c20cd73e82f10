/* test_best.c -- tests the record of the best checkpoint: which texts are accepted, that neither
 * pruning nor a full disk removes the checkpoint, and what happens if either is damaged. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/checkpoint/best.h"
#include "parallel/checkpoint/prune.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/faulty_fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ID "\"save_id\": \"0123456789abcdef\""

static void only_a_complete_and_valid_best_json_is_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"{\"step\": 25, \"val_loss\": 5.0625, " ID "}\n", true},
        {"{\"step\": 0, \"val_loss\": 5.0625, " ID "}", false},
        {"{\"step\": 2.5, \"val_loss\": 5.0625, " ID "}", false},
        {"{\"step\": 1e300, \"val_loss\": 5.0625, " ID "}", false},
        {"{\"step\": \"25\", \"val_loss\": 5.0625, " ID "}", false},
        {"{\"step\": 25, \"val_loss\": null, " ID "}", false},
        {"{\"step\": 25, \"val_loss\": 1e999, " ID "}", false},
        {"{\"step\": 25, \"val_loss\": 5.0625}", false},
        {"{\"step\": 25, \"val_loss\": 5.0625, \"save_id\": \"0123\"}", false},
        {"{\"step\": 25, \"val_loss\": 5.0625, \"save_id\": 12}", false},
        {"{\"step\": 25, \"val_loss\": 5.06", false},
        {"[]", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CheckpointBest best;
        if (best_parse(&best, cases[i].text, strlen(cases[i].text)) != cases[i].good)
            fail_msg("%s", cases[i].text);
        assert_int_equal(best.step, cases[i].good ? 25 : 0);
        assert_true(best.val_loss == (cases[i].good ? 5.0625 : 0));
        assert_string_equal(best.save_id, cases[i].good ? "0123456789abcdef" : "");
    }
}

/* Saves a step and records it as the best. */
static void save_best(TestRun *r, int64_t step, double loss)
{
    CheckpointBest best = {.step = step, .val_loss = loss};
    test_run_must_save(r, step);
    if (!checkpoint_best_write(&r->io, r->run, &best, r->err, sizeof r->err))
        fail_msg("%s", r->err);
}

/* Returns whether the step has a checkpoint. */
static bool has(const TestRun *r, int64_t step)
{
    char *path = checkpoint_path(r->run, step);
    bool gone = checkpoint_gone(path);
    free(path);
    return !gone;
}

/* Returns the step of the best checkpoint, which must verify; 0: none is recorded; -1: it cannot be
 * used. */
static int64_t best_step(TestRun *r)
{
    Checkpoint *c;
    CheckpointBest best;
    bool good = checkpoint_best_open(&r->io, r->run, &c, &best, r->err, sizeof r->err);
    bool found = c != NULL;
    checkpoint_close(c);
    assert_true(!found || (good && best.step > 0));
    return !good ? -1 : best.step;
}

static void pruning_keeps_the_best_and_the_newest_checkpoints(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    assert_int_equal(best_step(&r), 0);
    save_best(&r, 1, 3.5);
    for (int64_t step = 2; step <= 4; step++) {
        test_run_must_save(&r, step);
        assert_true(checkpoint_prune(&r.io, r.run, step, 2, r.err, sizeof r.err));
    }
    assert_true(has(&r, 1) && !has(&r, 2) && has(&r, 3) && has(&r, 4));
    assert_int_equal(best_step(&r), 1);
    /* When a better checkpoint is recorded, the former best becomes an ordinary one. */
    save_best(&r, 5, 3.25);
    assert_true(checkpoint_prune(&r.io, r.run, 5, 1, r.err, sizeof r.err));
    assert_int_equal(test_run_entries(&r), 2); /* step 5 and best.json */
    assert_int_equal(best_step(&r), 5);
    assert_true(checkpoint_best_forget(r.run, r.err, sizeof r.err));
    assert_int_equal(best_step(&r), 0);
    test_run_close(&r);
}

static void pruning_keeps_steps_divisible_by_keep_every(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    r.io.keep_every = 3;
    for (int64_t step = 1; step <= 8; step++) {
        test_run_must_save(&r, step);
        assert_true(checkpoint_prune(&r.io, r.run, step, 1, r.err, sizeof r.err));
    }
    for (int64_t step = 1; step <= 8; step++)
        assert_int_equal(has(&r, step), step == 3 || step == 6 || step == 8);
    /* A full disk does not remove these either: only step 7 could make room for step 9. */
    test_run_must_save(&r, 7);
    assert_int_equal(checkpoint_removable(&fs_system, r.run, 8, 3), 1);
    assert_int_equal(checkpoint_removable(&fs_system, r.run, 8, 0), 3);
    assert_int_equal(checkpoint_make_room(&r.io, r.run, INT64_C(1) << 60), 1);
    for (int64_t step = 3; step <= 8; step++)
        assert_int_equal(has(&r, step), step == 3 || step == 6 || step == 8);
    test_run_close(&r);
}

static void a_save_on_a_full_disk_does_not_remove_the_best_checkpoint(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs;
    test_run_open(&r);
    save_best(&r, 1, 3.5);
    for (int64_t step = 2; step <= 4; step++)
        test_run_must_save(&r, step);
    /* Steps 2 and 3 could make room, but not step 1. A run reports this number at its start. */
    char *leftover = text_format("%s/checkpoints/step_00000005.tmp-0123456789abcdef", r.run);
    assert_true(fs_make_folders(&fs_system, leftover, r.err, sizeof r.err));
    assert_int_equal(checkpoint_removable(&fs_system, r.run, 4, 0), 2);
    assert_true(checkpoint_gone(leftover));
    free(leftover);
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.disk = r.run;
    fs.capacity = INT64_MAX;
    fs.capacity -= fs.ops.room(&fs, r.run); /* the disk is full now */
    r.io.fs = &fs.ops;
    test_run_fill(&r, 5);
    CheckpointContents contents = test_run_contents(&r);
    if (!checkpoint_write_making_room(&r.io, r.run, &contents, r.err, sizeof r.err))
        fail_msg("%s", r.err);
    assert_true(has(&r, 1) && !has(&r, 2) && has(&r, 4) && has(&r, 5));
    r.io.fs = &fs_system;
    test_run_close(&r);
}

static void a_damaged_or_replaced_best_checkpoint_or_a_damaged_record_is_refused(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    save_best(&r, 1, 3.5);
    test_run_must_save(&r, 2);
    char *file = test_run_file(&r, 1, "model.safetensors"),
         *record = text_format("%s/checkpoints/best.json", r.run);
    file_flip(file, file_size(file) - 1, 1);
    assert_int_equal(best_step(&r), -1);
    assert_non_null(strstr(r.err, "model.safetensors is damaged"));
    /* The damaged checkpoint is saved anew, so it is another save than the recorded one. */
    test_run_must_save(&r, 1);
    assert_int_equal(best_step(&r), -1);
    assert_non_null(strstr(r.err, "best.json beside it names save"));
    /* If it is not known which checkpoint is the best, none is removed. */
    assert_int_equal(truncate(record, 10), 0);
    assert_int_equal(best_step(&r), -1);
    assert_non_null(strstr(r.err, "best.json is damaged"));
    assert_false(checkpoint_prune(&r.io, r.run, 2, 1, r.err, sizeof r.err));
    assert_int_equal(checkpoint_removable(&fs_system, r.run, 2, 0), 0);
    assert_true(has(&r, 1) && has(&r, 2));
    free(record);
    free(file);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about damage that these tests cause */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_complete_and_valid_best_json_is_accepted),
        cmocka_unit_test(pruning_keeps_the_best_and_the_newest_checkpoints),
        cmocka_unit_test(pruning_keeps_steps_divisible_by_keep_every),
        cmocka_unit_test(a_save_on_a_full_disk_does_not_remove_the_best_checkpoint),
        cmocka_unit_test(a_damaged_or_replaced_best_checkpoint_or_a_damaged_record_is_refused),
    };
    return cmocka_run_group_tests_name("best checkpoint", tests, NULL, NULL);
}
