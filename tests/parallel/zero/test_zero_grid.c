/* test_zero_grid.c -- tests the store on grids of pipeline, data and tensor-parallel ranks, with a
 * parameter table written for the test. Every gradient equals a simple sum, on whichever rank it is
 * stored. The elements sent and the bytes stored equal a simple count. */
#include "model/core/check.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/zero_grid.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns the step by which tests go through their cases; larger if runs are slow (TEST_SAMPLE).
 * The cases then change from commit to commit (first_case). */
static int sample_step(int all, int sample)
{
    return getenv("TEST_SAMPLE") ? sample : all;
}

static int first_case(int step)
{
    return (int)turns_first(step);
}

/* Runs the case, fails if anything is wrong, and returns the result. */
static ZeroGridResult expect_right(const ZeroGridCase *c)
{
    ZeroGridResult r = zero_grid_run(c);
    if (r.wrong[0])
        fail_msg("pp %d x dp %d x tp %d, shard %d, kv %d, %s, stage %d%s: %s", c->size.pp,
                 c->size.dp, c->size.tp, c->shard, c->kv, c->tied ? "tied" : "untied",
                 c->zero.stage, c->zero.sequence_parallel ? ", sequence parallel" : "", r.wrong);
    return r;
}

static void run_right(const ZeroGridCase *c)
{
    ZeroGridResult r = expect_right(c);
    zero_grid_free(&r);
}

/* Sets the i-th of all grids up to pp 4 x dp 5 x tp 4 with at most ZERO_GRID_RANKS ranks; returns
 * false after the last. The units are small, so some shards contain only padding and some ranks
 * hold no part of a range. */
static bool grid_number(int i, GridPlace *size)
{
    for (int n = 0; n < 4 * 5 * 4; n++) {
        *size = (GridPlace){n / 20 + 1, n / 4 % 5 + 1, 1, n % 4 + 1};
        if (size->pp * size->dp * size->tp <= ZERO_GRID_RANKS && i-- == 0) return true;
    }
    return false;
}

static void test_bug_13_14_15_every_grid_counts_each_gradient_once(void **state)
{
    (void)state;
    GridPlace size;
    int grids = 0;
    for (; grid_number(grids, &size); grids++) {
        if (grids % sample_step(1, 11) != first_case(sample_step(1, 11))) continue;
        for (int stage = grids % 2; stage <= 3; stage += 2) {
            ZeroGridCase c = zero_grid_case(size, stage);
            run_right(&c);
        }
    }
    assert_int_equal(grids, 49);
}

/* Tests every size of shard groups that divides the number of data-parallel ranks and is smaller,
 * with one micro-batch and with three, and with all ways to send gradients. */
static void test_shard_groups_sum_each_gradient_once_and_send_no_more_than_they_must(void **state)
{
    (void)state;
    static const GridPlace sizes[] = {{1, 2, 1, 1}, {1, 4, 1, 1}, {1, 6, 1, 1},
                                      {1, 8, 1, 1}, {2, 4, 1, 2}, {1, 4, 1, 4}};
    int runs = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int shard = 1; shard < sizes[i].dp; shard++)
            for (int stage = 1; stage <= 3 && sizes[i].dp % shard == 0; stage++, runs++) {
                ZeroGridCase c = zero_grid_case(sizes[i], stage);
                if (runs % sample_step(1, 4) != 0) continue;
                c.shard = shard;
                c.tied = runs % 2;
                c.micros = 1 + 2 * (runs / 3 % 2);
                c.dtype = c.zero.grad_dtype = F32;
                c.zero.wire_dtype = runs % 3 == 2 ? BF16 : F32;
                c.zero.overlap_comm = runs / 2 % 2;
                c.zero.all_reduce = runs % 5 == 1;
                c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = runs % 4 * 1000;
                run_right(&c);
            }
    assert_int_equal(runs, 39);
}

/* Tests every number of key/value heads that 4 ranks can split or share, with tied and untied
 * tables, with and without sequence parallelism. */
static void test_partial_gradients_are_summed_for_every_number_of_kv_heads(void **state)
{
    (void)state;
    static const int kv[] = {1, 2, 4, 8};
    for (int i = first_case(sample_step(1, 11)); i < 4 * 2 * 2 * 4; i += sample_step(1, 11)) {
        ZeroGridCase c = zero_grid_case(
            (GridPlace){1 + (i + i / 4 + i / 16) % 2, 1 + (i / 2 + i / 8) % 2, 1, 4}, i / 16);
        c.kv = kv[i % 4];
        c.tied = i / 4 % 2;
        c.zero.sequence_parallel = i / 8 % 2;
        run_right(&c);
    }
}

/* Tests how units share collectives, and in which dtype gradients are sent between data-parallel
 * ranks. */
static void test_gradients_sent_in_buckets_and_in_bf16_are_correct(void **state)
{
    (void)state;
    for (int i = first_case(sample_step(1, 9)); i < 32; i += sample_step(1, 9)) {
        ZeroGridCase c = zero_grid_case((GridPlace){2, 2, 1, 2 + i / 4 % 2}, i % 4);
        c.dtype = c.zero.grad_dtype = F32;
        c.zero.wire_dtype = i & 8 ? BF16 : F32;
        c.zero.overlap_comm = i & 16;
        c.zero.all_reduce = i & 4;
        c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = 1000;
        run_right(&c);
    }
}

static void compare_bits(ZeroGridCase c, int from, int to)
{
    c.drawn = true;
    c.zero.stage = from;
    ZeroGridResult a = expect_right(&c);
    for (c.zero.stage = from + 1; c.zero.stage <= to; c.zero.stage++) {
        ZeroGridResult b = expect_right(&c);
        if (memcmp(a.gradient, b.gradient, (size_t)a.elements * sizeof *a.gradient) != 0 ||
            memcmp(&a.sq_norm, &b.sq_norm, sizeof a.sq_norm) != 0)
            fail_msg("pp %d x dp %d x tp %d: stages %d and %d differ", c.size.pp, c.size.dp,
                     c.size.tp, from, c.zero.stage);
        zero_grid_free(&b);
    }
    zero_grid_free(&a);
}

/* If two stages hold a tied table, both have the sum of the gradients of both uses, and make the
 * same update. */
static void test_bug_30_both_stages_of_a_tied_table_get_the_same_sum(void **state)
{
    (void)state;
    for (int i = first_case(sample_step(1, 7)); i < 3 * 2 * 4; i += sample_step(1, 7)) {
        ZeroGridCase c = zero_grid_case((GridPlace){2 + i % 3, 1 + i / 3 % 2, 1, 2}, i / 6);
        c.tied = true;
        run_right(&c);
    }
}

/* Uses gradients whose sum depends on the order of addition. */
static void test_zero_stages_give_the_same_gradient_bits_on_every_grid(void **state)
{
    (void)state;
    GridPlace size;
    for (int i = first_case(sample_step(3, 25)); grid_number(i, &size); i += sample_step(3, 25)) {
        ZeroGridCase c = zero_grid_case(size, 0);
        compare_bits(c, 0, 1);
        compare_bits(c, 2, 3);
        c.micros = 1;
        compare_bits(c, 0, 3);
    }
}

/* ---- stages with different needs ------------------------------------------------------------- */

/* Returns the elements of the two largest units that the layers of a stage use in succession. */
static int64_t largest_pair(const ZeroGridCase *c, int stage)
{
    ParamTable table;
    int layer[16];
    int64_t most = 0;
    zero_grid_table(&table, c);
    int n = zero_grid_layers(c, &table, stage, layer);
    for (int i = 1; i < n; i++) {
        int64_t pair =
            zero_grid_padded(c, &table, layer[i - 1]) + zero_grid_padded(c, &table, layer[i]);
        if (pair > most) most = pair;
    }
    param_table_free(&table);
    return most;
}

static void run_case(void *context)
{
    ZeroGridResult r = zero_grid_run(context);
    CHECK(!r.wrong[0], "%s", r.wrong);
    zero_grid_free(&r);
}

/* The limit of gathered weights is the same for all pipeline stages, so the error message gives the
 * largest requirement, also on stages that need less. */
static void test_the_error_about_a_small_limit_gives_the_need_of_the_largest_stage(void **state)
{
    (void)state;
    ZeroGridCase c = zero_grid_case((GridPlace){3, 2, 1, 1}, 3);
    char said[1024], number[32];
    int64_t least = largest_pair(&c, 0), other = largest_pair(&c, 2);
    assert_true(least != other);
    if (least < other) least = other;
    c.zero.gather.max_live_parameters = least;
    assert_int_equal(child_run(run_case, &c, said, sizeof said), 0);
    c.zero.gather.max_live_parameters = least - 1;
    assert_int_equal(child_run(run_case, &c, said, sizeof said), EXIT_CONFIG);
    snprintf(number, sizeof number, "have %lld elements", (long long)least);
    if (strstr(said, number) == NULL) fail_msg("%s, not %s", said, number);
    c.zero.gather.max_live_parameters = 1;
    assert_int_equal(child_run(run_case, &c, said, sizeof said), EXIT_CONFIG);
    if (strstr(said, number) == NULL) fail_msg("%s, not %s", said, number);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void no_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    (void)comm, (void)on, (void)x, (void)op;
}

/* Injected fault: the sums of this group are omitted. */
static void leave_out(Comm *comm)
{
    static _Thread_local CommOps ops;
    ops = *comm->ops;
    ops.all_reduce = no_all_reduce;
    comm->ops = &ops;
}

static void leave_out_tp(Grid *grid, ParamTable *table)
{
    (void)table;
    leave_out(&grid->tp);
}
static void leave_out_kv(Grid *grid, ParamTable *table)
{
    (void)table;
    leave_out(&grid->kv);
}
static void leave_out_tie(Grid *grid, ParamTable *table)
{
    (void)table;
    leave_out(&grid->tie);
}

/* Injected fault: rows of one kind are declared to be of another. */
static void declare(ParamTable *table, TpGrad kind, TpGrad other)
{
    for (int u = 0; u < table->n_units; u++)
        for (int r = 0; r < table->unit[u].n_ranges; r++)
            if (table->unit[u].range[r].tp_grad == kind) table->unit[u].range[r].tp_grad = other;
}

static void declare_partial_whole(Grid *grid, ParamTable *table)
{
    (void)grid;
    declare(table, TP_GRAD_PARTIAL, TP_GRAD_WHOLE);
}
static void declare_norms_partial(Grid *grid, ParamTable *table)
{
    (void)grid;
    declare(table, TP_GRAD_PARTIAL_IF_SP, TP_GRAD_PARTIAL);
}

/* Injected fault: each of the two stages that hold the tied table counts it. */
static void count_both_homes(Grid *grid, ParamTable *table)
{
    Home *home = &table->unit[0].home;
    if (grid->at.pp == home->stage[1]) *home = (Home){{home->stage[1], home->stage[0]}, 2};
}

static void test_missing_and_repeated_sums_and_counts_are_detected(void **state)
{
    (void)state;
    static const struct {
        const char *what, *says;
        void (*plant)(Grid *grid, ParamTable *table);
    } fault[] = {
        {"tp sums left out", "", leave_out_tp},
        {"kv subgroup not summed", "", leave_out_kv},
        {"tied gradient on one stage only", "", leave_out_tie},
        {"PARTIAL row declared WHOLE", "", declare_partial_whole},
        {"WHOLE row declared PARTIAL", "", declare_norms_partial},
        {"tied table counted twice", "counted", count_both_homes},
    };
    enum { FAULTS = sizeof fault / sizeof *fault };
    const int some = sample_step(1, 3), stages = sample_step(1, 4);
    for (int i = first_case(some); i < FAULTS; i += some) {
        for (int stage = (i + first_case(stages)) % stages; stage <= 3; stage += stages) {
            ZeroGridCase c = zero_grid_case((GridPlace){2, 2, 1, 4}, stage);
            c.tied = true;
            c.zero.sequence_parallel = false;
            run_right(&c);
            c.plant = fault[i].plant;
            ZeroGridResult r = zero_grid_run(&c);
            if (!r.wrong[0] || strstr(r.wrong, fault[i].says) == NULL)
                fail_msg("%s, stage %d: \"%s\"", fault[i].what, stage, r.wrong);
            zero_grid_free(&r);
        }
    }
}

/* Injected fault: the norm counts a row once for each tensor-parallel rank that holds it. */
static void test_a_norm_that_counts_a_row_on_several_ranks_is_detected(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        ZeroGridCase c = zero_grid_case((GridPlace){1, 2, 1, tp}, 1);
        c.counts = PURPOSE_UPDATE;
        ZeroGridResult r = zero_grid_run(&c);
        assert_int_equal(strstr(r.wrong, "counted") != NULL, tp == 2);
        zero_grid_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_13_14_15_every_grid_counts_each_gradient_once),
        cmocka_unit_test(test_shard_groups_sum_each_gradient_once_and_send_no_more_than_they_must),
        cmocka_unit_test(test_partial_gradients_are_summed_for_every_number_of_kv_heads),
        cmocka_unit_test(test_gradients_sent_in_buckets_and_in_bf16_are_correct),
        cmocka_unit_test(test_bug_30_both_stages_of_a_tied_table_get_the_same_sum),
        cmocka_unit_test(test_zero_stages_give_the_same_gradient_bits_on_every_grid),
        cmocka_unit_test(test_the_error_about_a_small_limit_gives_the_need_of_the_largest_stage),
        cmocka_unit_test(test_missing_and_repeated_sums_and_counts_are_detected),
        cmocka_unit_test(test_a_norm_that_counts_a_row_on_several_ranks_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
