/* test_zero.c -- tests that ranks which shard weights, gradients and updates compute the same as a
 * single rank, and that the stages of ZeRO give the same bits. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/zero_run.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const int worlds[] = {1, 2, 3, 5};
enum { WORLDS = sizeof worlds / sizeof *worlds };

/* Returns the step by which tests go through their cases; larger if runs are slow (TEST_SAMPLE). */
static int sample_step(int all, int sample)
{
    return getenv("TEST_SAMPLE") ? sample : all;
}

/* Fails unless the numbers agree up to a relative difference: the order of sums differs. */
static void assert_close(const ZeroResult *a, const ZeroResult *b, const ZeroCase *c,
                         double tolerance, const char *what)
{
    for (int i = 0; i < c->steps; i++) {
        double loss = fabs(a->loss[i] / b->loss[i] - 1),
               norm = fabs(a->sq_norm[i] / b->sq_norm[i] - 1);
        if (!(loss <= tolerance && norm <= tolerance))
            fail_msg("%s: step %d: loss off by %g, norm by %g", what, i, loss, norm);
    }
    double d = zero_distance(a->gradients, b->gradients, c->shape.grad_dtype, a->elements);
    if (!(d <= 100 * tolerance)) fail_msg("%s: gradients off by %g", what, d);
    d = zero_distance(a->weights, b->weights, c->shape.dtype, a->elements);
    if (c->shape.dtype == F64 && !(d <= tolerance)) fail_msg("%s: weights off by %g", what, d);
}

/* n ranks with one micro-batch each compute the same as one rank with n micro-batches, for every
 * shape. */
static void test_n_ranks_with_one_micro_batch_match_one_rank_with_n_micro_batches(void **state)
{
    (void)state;
    for (int i = 0; i < ZERO_SHAPES; i++) {
        for (int w = 1; w < WORLDS; w++) {
            ZeroCase many = zero_case(zero_shape(i), worlds[w], 0), one = many;
            char what[64];
            snprintf(what, sizeof what, "shape %d, %d ranks", i, worlds[w]);
            one.ranks = 1;
            one.micros = worlds[w];
            ZeroResult a = zero_run(&one), b = zero_run(&many);
            assert_memory_equal(a.first, b.first, a.weight_bytes);
            assert_close(&a, &b, &many, 1e-12, what);
            zero_result_free(&a);
            zero_result_free(&b);
        }
    }
}

/* Every weight is updated by some rank: with weight decay on all rows, each one has changed after a
 * step. */
static void test_bug_35_36_every_weight_is_updated(void **state)
{
    (void)state;
    for (int i = 0; i < ZERO_SHAPES; i++) {
        for (int stage = 0; stage <= 3; stage++) {
            ZeroCase c = zero_case(zero_shape(i), 3, stage);
            c.shape.decay_on = DECAY_ON_ALL;
            c.steps = 1;
            ZeroResult r = zero_run(&c);
            for (int64_t e = 0; e < r.elements; e++)
                if (dtype_get(F64, r.first, e) == dtype_get(F64, r.weights, e))
                    fail_msg("shape %d, stage %d: weight %lld did not change", i, stage,
                             (long long)e);
            zero_result_free(&r);
        }
    }
}

/* ---- the stages ------------------------------------------------------------------------------ */

/* Compares the stages from `from` to `to` with stage `against`, for all shapes and numbers of
 * ranks, in f64 and f32; with TEST_EVERY=N, every N-th of these combinations. */
static void compare_stages(int against, int from, int to, int64_t micros, double tolerance)
{
    int64_t every = turns_every(1), first = turns_first(every), found = 0;
    for (int i = 0; i < ZERO_SHAPES; i++) {
        for (int w = 0; w < WORLDS; w += sample_step(1, 2)) {
            for (int dtype = 0; dtype < 2; dtype++) {
                if (found++ % every != first) continue;
                ZeroCase c = zero_case(zero_shape(i), worlds[w], against);
                c.micros = micros;
                c.poison = true;
                if (dtype) c.shape = fixture_with_dtype(c.shape, F32);
                ZeroResult a = zero_run(&c);
                for (int stage = from; stage <= to; stage++) {
                    char what[64];
                    snprintf(what, sizeof what, "shape %d, %d ranks, stage %d", i, worlds[w],
                             stage);
                    c.zero.stage = stage;
                    ZeroResult b = zero_run(&c);
                    if (tolerance == 0)
                        assert_same_bits(&a, &b, what);
                    else
                        assert_close(&a, &b, &c, dtype ? 2e-5 : tolerance, what);
                    zero_result_free(&b);
                }
                zero_result_free(&a);
            }
        }
    }
}

static void test_zero_stages_0_and_1_give_the_same_bits(void **state)
{
    (void)state;
    compare_stages(0, 1, 1, 3, 0);
}

static void test_every_zero_stage_gives_the_same_bits_with_one_micro_batch(void **state)
{
    (void)state;
    compare_stages(0, 2, 3, 1, 0);
}

/* Stages 0 and 1 first add over micro-batches and then over ranks; stages 2 and 3 the other way
 * round. */
static void test_zero_stages_give_nearly_equal_results_with_several_micro_batches(void **state)
{
    (void)state;
    compare_stages(0, 2, 2, 3, 1e-12);
    compare_stages(2, 3, 3, 3, 0);
}

/* Runs the case with a change and expects the same bits. */
static void check_no_bit(const ZeroCase *c, const ZeroResult *want, const char *what)
{
    char all[96];
    ZeroResult got = zero_run(c);
    snprintf(all, sizeof all, "shape of %d rows, %d ranks, stage %d: %s", (int)c->shape.V, c->ranks,
             c->zero.stage, what);
    assert_same_bits(want, &got, all);
    zero_result_free(&got);
}

/* The bits do not depend on how collectives are grouped and delayed, or on which collective is
 * used. Bug 39: no element is lost or repeated at the end of a bucket. */
static void test_bug_39_bucket_sizes_and_overlap_change_no_bit(void **state)
{
    (void)state;
    static const int64_t bucket[] = {1, 700, 3000, 1000000000};
    for (int i = 0; i < ZERO_SHAPES; i++) {
        for (int stage = 0; stage <= 3; stage++) {
            ZeroCase c = zero_case(zero_shape(i), 3, stage);
            c.micros = 2;
            ZeroResult want = zero_run(&c);
            for (int overlap = 0; overlap < 2; overlap++) {
                c.zero.overlap_comm = overlap;
                for (int b = 0; b < 4; b++) {
                    c.zero.reduce_bucket_size = bucket[b];
                    c.zero.allgather_bucket_size = bucket[3 - b];
                    check_no_bit(&c, &want, overlap ? "overlap, bucket" : "bucket");
                }
            }
            c.zero.all_reduce = true;
            check_no_bit(&c, &want, "all-reduced");
            zero_result_free(&want);
        }
    }
}

/* ---- stage 3 --------------------------------------------------------------------------------- */

/* Returns the number of elements of the two largest padded units together. */
static int64_t largest_two(const GptShape *shape, int ranks)
{
    GptLayers layers;
    ParamTable table = {0};
    int64_t first = 0, second = 0, grain = 128 * ranks;
    gpt_layers_build(&layers, &table, shape, &LAYERS_WHOLE);
    for (int u = 0; u < table.n_units; u++) {
        int64_t size = (table.unit[u].size + grain - 1) / grain * grain;
        if (size >= first)
            second = first, first = size;
        else if (size > second)
            second = size;
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    return first + second;
}

/* The bits do not depend on which weights are prefetched, kept for the next use, or never sharded.
 * Bug 38: weights that were gathered before an update, or have been dropped, are not used. */
static void test_bug_38_prefetching_or_keeping_weights_changes_no_bit(void **state)
{
    (void)state;
    static const int64_t elements[] = {0, 700, 6000, 1000000000};
    for (int i = 0; i < ZERO_SHAPES; i++) {
        ZeroCase c = zero_case(zero_shape(i), 3, 2);
        c.micros = 2;
        c.steps = 3;
        c.poison = true;
        ZeroResult want = zero_run(&c);
        c.zero.stage = 3;
        for (int k = 0; k < 4 * 4 * 4 * 3; k += sample_step(5, 35)) {
            char what[96];
            c.zero.overlap_comm = k % 2;
            c.zero.gather.prefetch_bucket_size = elements[k % 4];
            c.zero.gather.max_reuse_distance = elements[k / 4 % 4];
            c.zero.allgather_bucket_size = elements[k / 16 % 4];
            c.zero.gather.max_live_parameters =
                k / 64 ? largest_two(&c.shape, c.ranks) + (k / 64 - 1) * 2000 : INT64_MAX;
            c.zero.param_persistence_threshold = k % 3 ? elements[k % 3] : 0;
            c.zero.model_persistence_threshold = 2000;
            snprintf(what, sizeof what, "choice %d", k);
            check_no_bit(&c, &want, what);
        }
        zero_result_free(&want);
    }
}

static int exit_of(const ZeroCase *c)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        ZeroResult r = zero_run(c);
        zero_result_free(&r);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void look_for_idle_buffers(Comm *world, void *context)
{
    const ZeroCase *c = context;
    Fixture f;
    Tensor idle[ZERO_MOST_IDLE];
    fixture_open_place(&f, world, (GridPlace){1, c->ranks, 1, 1}, &c->zero, &c->shape, c->B, c->T,
                       c->micros);
    f.params->step_begin(f.params, NULL, 0);
    CHECK(zero_idle_buffers(f.store, idle) == 3,
          "weights count as gathered before their first use");
    CHECK(idle[0].dim[0] == (int64_t)zero_bytes(f.store).gathered,
          "the first idle buffer is not that of gathered weights");
    f.params->acquire(f.params, 0);
    CHECK(zero_idle_buffers(f.store, idle) == 2,
          "the buffer counts as idle while weights are in it");
    f.params->release(f.params, 0);
    CHECK(zero_idle_buffers(f.store, idle) == 3,
          "the buffer does not count as idle after the release");
    f.params->step_end(f.params);
    fixture_close(&f);
}

/* Tests fill idle buffers with NaN. A buffer that is never reported as idle would escape them. */
static void test_the_gather_buffer_counts_as_idle_only_between_uses(void **state)
{
    (void)state;
    ZeroCase c = zero_case(zero_shape(0), 2, 3);
    c.zero.grad_dtype = c.zero.wire_dtype = c.shape.grad_dtype;
    thread_ranks(c.ranks, 60, look_for_idle_buffers, &c);
}

static void publish_one_unit(Comm *world, void *context)
{
    const ZeroCase *c = context;
    Fixture f;
    Shard shard[64];
    fixture_open_place(&f, world, (GridPlace){1, c->ranks, 1, 1}, &c->zero, &c->shape, c->B, c->T,
                       c->micros);
    f.params->step_begin(f.params, NULL, 0);
    int n = f.params->shards(f.params, PURPOSE_UPDATE, shard, 64);
    for (int i = 0; i < n; i++)
        if (shard[i].unit == 0) op_fill(&f.dev, shard[i].weight, 7.0);
    f.params->publish(f.params, 0, NULL);
    f.params->acquire(f.params, 0);
    Tensor whole = fixture_fetch(&f, f.params->weight(f.params, 0, 1));
    for (int64_t i = 0; i < tensor_count(whole); i++)
        CHECK(((double *)whole.data)[i] == 7.0, "rank %d: element %lld is old", world->rank,
              (long long)i);
    free(whole.data);
    f.params->release(f.params, 0);
    f.params->step_end(f.params);
    fixture_close(&f);
}

/* The updated weights of a unit are gathered when the unit is used, even if its bucket still waits
 * for other units. These other units may never be published. */
static void test_queued_updates_of_a_unit_are_gathered_when_it_is_used(void **state)
{
    (void)state;
    ZeroCase c = zero_case(zero_shape(0), 2, 1);
    c.zero.grad_dtype = c.zero.wire_dtype = c.shape.grad_dtype;
    c.zero.allgather_bucket_size = INT64_MAX;
    thread_ranks(c.ranks, 60, publish_one_unit, &c);
}

/* A limit that is too small for two units in use is refused with an error message at the start. */
static void test_a_limit_too_small_for_two_units_is_refused(void **state)
{
    (void)state;
    ZeroCase c = zero_case(fixture_shape(), 2, 3);
    /* The blocks are the largest units, and they are used in succession. */
    int64_t pair = largest_two(&c.shape, 2);
    c.zero.gather.max_live_parameters = pair;
    assert_int_equal(exit_of(&c), 0);
    c.zero.gather.max_live_parameters = pair - 1;
    assert_int_equal(exit_of(&c), EXIT_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_n_ranks_with_one_micro_batch_match_one_rank_with_n_micro_batches),
        cmocka_unit_test(test_bug_35_36_every_weight_is_updated),
        cmocka_unit_test(test_zero_stages_0_and_1_give_the_same_bits),
        cmocka_unit_test(test_every_zero_stage_gives_the_same_bits_with_one_micro_batch),
        cmocka_unit_test(test_zero_stages_give_nearly_equal_results_with_several_micro_batches),
        cmocka_unit_test(test_bug_39_bucket_sizes_and_overlap_change_no_bit),
        cmocka_unit_test(test_bug_38_prefetching_or_keeping_weights_changes_no_bit),
        cmocka_unit_test(test_the_gather_buffer_counts_as_idle_only_between_uses),
        cmocka_unit_test(test_queued_updates_of_a_unit_are_gathered_when_it_is_used),
        cmocka_unit_test(test_a_limit_too_small_for_two_units_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
