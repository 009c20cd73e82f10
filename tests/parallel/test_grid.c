/* test_grid.c -- what a rank knows of its place: what it counts, and the borders of its
 * tensor-parallel region. */
#include "model/core/check.h"
#include "parallel/grid/tp.h"
#include "tests/support/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Of a row that is cut every rank of the group counts its part; a row that all hold is the first
 * one's, wherever it stands on the other axes. */
static void test_a_row_that_all_hold_is_counted_by_the_first(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_llama_shape();
    GridPlace size = {2, 2, 1, 2}, first = {.pp = 1}, second = {.tp = 1};
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    int cut = param_find(&f.table, "block.0.attn.q.weight"),
        whole = param_find(&f.table, "block.0.attn.q_norm.weight");
    assert_true(param_owned_here(&f.table, cut, &size, &first));
    assert_true(param_owned_here(&f.table, cut, &size, &second));
    assert_true(param_owned_here(&f.table, whole, &size, &first));
    assert_false(param_owned_here(&f.table, whole, &size, &second));
    fixture_close(&f);
}

/* The store's shards follow that rule when they are counted, not when they are updated: over both
 * ranks every row is counted as often as there are parts of it. */
static void test_the_store_counts_by_the_owner_rule(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    Shard shards[128];
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    int all = f.params->shards(f.params, PURPOSE_UPDATE, NULL, 0);
    for (int rank = 0; rank < 2; rank++) {
        f.grid.size = (GridPlace){1, 1, 1, 2};
        f.grid.at = (GridPlace){.tp = rank};
        assert_int_equal(f.params->shards(f.params, PURPOSE_UPDATE, NULL, 0), all);
        int n = f.params->shards(f.params, PURPOSE_COUNT, shards, 128);
        for (int p = 0; p < f.table.n_params; p++) {
            const Param *row = &f.table.param[p];
            int found = 0;
            for (int i = 0; i < n; i++)
                found += shards[i].unit == row->unit && row->offset >= shards[i].offset &&
                         row->offset < shards[i].offset + shards[i].count;
            if (found != (rank == 0 || row->tp_dim >= 0))
                fail_msg("rank %d counts %s %d times", rank, row->name, found);
        }
    }
    fixture_close(&f);
}

/* ---- the region of one rank ------------------------------------------------------------------ */

static int exit_of_border(int border, Tensor dst, Tensor src)
{
    Comm comm = comm_self("tp");
    Region region = tp_region(&comm);
    void (*const borders[])(const Region *, Tensor, Tensor) = {
        region_enter_forward, region_exit_forward, region_enter_backward, region_exit_backward};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        borders[border](&region, dst, src);
        region_reduce(&region, src, REDUCE_MAX);
        _exit(0);
    }
    comm_close(&comm);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Nothing moves in a group of one, so a border between two tensors would lose what was written to
 * the first: that is a bug of the layout and ends the program. */
static void test_a_border_of_one_rank_has_one_tensor(void **state)
{
    (void)state;
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6];
    for (int border = 0; border < 4; border++) {
        Tensor x = tensor_2d(a, F64, 2, 3);
        assert_int_equal(exit_of_border(border, x, x), 0);
        assert_int_equal(exit_of_border(border, tensor_2d(b, F64, 2, 3), x), EXIT_BUG);
        assert_int_equal(exit_of_border(border, tensor_2d(a, F64, 3, 2), x), EXIT_BUG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_that_all_hold_is_counted_by_the_first),
        cmocka_unit_test(test_the_store_counts_by_the_owner_rule),
        cmocka_unit_test(test_a_border_of_one_rank_has_one_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
