/* test_checkpoint_ranks.c -- several ranks save and read: whole tensors on disk, whoever wrote
 * them, and any world reads what any other has saved. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/layout.h"
#include "tests/support/checkpoint_ranks.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

static const struct {
    int ranks, tp;
} worlds[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 1}, {6, 3}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static TestRanks world_of(int w, const TestRun *r, int writers)
{
    return (TestRanks){
        .ranks = worlds[w].ranks, .tp = worlds[w].tp, .writers = writers, .run = r->run};
}

/* Weights are 9 tensors, slots 3, some with fewer elements than there are ranks. */
static void any_world_reads_what_any_other_has_saved(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        for (int writers = 1; writers <= worlds[w].ranks; writers++) {
            TestRun r;
            test_run_open(&r);
            TestRanks saving = world_of(w, &r, writers);
            saving.step = 10 + writers;
            ranks_save(&saving);
            if (!ranks_agree(&saving)) fail_msg("%s", saving.err[0]);
            for (int other = 0; other < WORLDS; other++) {
                TestRanks reading = world_of(other, &r, 1);
                ranks_newest(&reading);
                if (!ranks_agree(&reading)) fail_msg("%s", reading.err[0]);
                assert_int_equal(reading.found[0], saving.step);
            }
            test_run_close(&r);
        }
}

/* The file of a step, with the id of its save blotted out; the caller frees. */
static char *file_of(const TestRun *r, const char *name, size_t *n)
{
    char err[256], *text, *path = test_run_file(r, 3, name);
    assert_true(file_read(path, &text, n, NULL, err, sizeof err));
    for (size_t i = 0; i + SAVE_ID_DIGITS < *n; i++)
        if (memcmp(text + i, "\"save_id\":\"", 11) == 0) memset(text + i + 11, '-', SAVE_ID_DIGITS);
    free(path);
    return text;
}

/* One writer's files are the same whoever has had the parts. */
static void one_writer_writes_what_one_rank_would(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    TestRun one;
    test_run_open(&one);
    test_run_must_save(&one, 3);
    for (int w = 1; w < WORLDS; w++) {
        TestRun r;
        test_run_open(&r);
        TestRanks saving = world_of(w, &r, 1);
        saving.step = 3;
        ranks_save(&saving);
        assert_true(ranks_agree(&saving));
        for (int f = 0; f < 2; f++) {
            size_t n, n_one;
            char *text = file_of(&r, files[f], &n), *alone = file_of(&one, files[f], &n_one);
            assert_int_equal(n, n_one);
            assert_memory_equal(text, alone, n);
            free(text);
            free(alone);
        }
        test_run_close(&r);
    }
    test_run_close(&one);
}

/* Every tensor is in one run of the cut, none is empty, and none is more than a tensor too large.
 */
static void tensors_are_shared_out_by_bytes(void **state)
{
    (void)state;
    enum { MOST = 40 };
    for (int64_t i = 0; i < 3000; i++) {
        int n = 1 + (int)(MOST * drawn_uniform(1, i)), first[MOST + 1],
            files = 1 + (int)(n * drawn_uniform(2, i));
        int64_t bytes[MOST], total = 0, largest = 0;
        for (int k = 0; k < n; k++) {
            double size = drawn_uniform(3 + (uint64_t)k, i);
            bytes[k] = 1 + (int64_t)(1e6 * size * size * size * size);
            total += bytes[k];
            if (bytes[k] > largest) largest = bytes[k];
        }
        layout_cut(bytes, n, files, first);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[files], n);
        for (int f = 0; f < files; f++) {
            int64_t own = 0;
            assert_true(first[f + 1] > first[f]);
            for (int k = first[f]; k < first[f + 1]; k++)
                own += bytes[k];
            assert_true(first[f + 1] == first[f] + 1 || own <= total / files + largest + 1);
        }
    }
    int first[2] = {7, 7};
    layout_cut(NULL, 0, 1, first);
    assert_int_equal(first[1], 0);
    for (int ranks = 1; ranks <= 64; ranks++)
        for (int writers = 1; writers <= ranks; writers++) {
            assert_int_equal(layout_writer(0, writers, ranks), 0);
            for (int k = 1; k < writers; k++)
                assert_true(layout_writer(k, writers, ranks) >
                                layout_writer(k - 1, writers, ranks) &&
                            layout_writer(k, writers, ranks) < ranks);
        }
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_reads_what_any_other_has_saved),
        cmocka_unit_test(one_writer_writes_what_one_rank_would),
        cmocka_unit_test(tensors_are_shared_out_by_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
