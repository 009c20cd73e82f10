/* test_zero.c -- ranks that share weights, gradients and updates in any way compute what a single
 * rank computes, and every stage of ZeRO has the bits of the others. */
#include "model/core/check.h"
#include "tests/support/zero_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int worlds[] = {1, 2, 3, 5};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static double element(const unsigned char *x, DType dtype, int64_t i)
{
    return dtype_get(dtype, x, i);
}

/* Largest difference of two arrays, beside the rms of the first. */
static double distance(const unsigned char *a, const unsigned char *b, DType dtype, int64_t n)
{
    double most = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = element(a, dtype, i), d = fabs(x - element(b, dtype, i));
        squares += x * x;
        if (!(d <= most)) most = d;
    }
    return most / sqrt(squares / (double)n);
}

/* The same numbers to a share of themselves: another order of sums. */
static void assert_close(const ZeroResult *a, const ZeroResult *b, const ZeroCase *c,
                         double tolerance, const char *what)
{
    for (int i = 0; i < c->steps; i++) {
        double loss = fabs(a->loss[i] / b->loss[i] - 1),
               norm = fabs(a->sq_norm[i] / b->sq_norm[i] - 1);
        if (!(loss <= tolerance && norm <= tolerance))
            fail_msg("%s: step %d: loss off by %g, norm by %g", what, i, loss, norm);
    }
    double d = distance(a->gradients, b->gradients, c->shape.grad_dtype, a->elements);
    if (!(d <= 100 * tolerance)) fail_msg("%s: gradients off by %g", what, d);
    d = distance(a->weights, b->weights, c->shape.dtype, a->elements);
    if (c->shape.dtype == F64 && !(d <= tolerance)) fail_msg("%s: weights off by %g", what, d);
}

static GptShape odd_shape(void)
{
    GptShape s = fixture_shape();
    s.C = 13; /* no unit is a whole number of shards, and there are shards of padding alone */
    s.H = s.G = 1;
    s.D = 13;
    s.F = 7;
    s.V = 11;
    s.Vp = 16;
    s.P = 5;
    return s;
}

static GptShape shape_of(int i)
{
    GptShape s = i == 0 ? fixture_shape() : i == 1 ? fixture_llama_shape() : odd_shape();
    return s;
}
enum { SHAPES = 3 };

/* Ranks x micro-batches are one rank's micro-batches, whatever the shape. */
static void test_many_ranks_equal_one(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int w = 1; w < WORLDS; w++) {
            ZeroCase many = zero_case(shape_of(i), worlds[w], 0), one = many;
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

/* Bug 35, 36: every weight is updated by somebody: all have moved after a step, with decay on. */
static void test_bug_36_every_weight_moves(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int stage = 0; stage <= 3; stage++) {
            ZeroCase c = zero_case(shape_of(i), 3, stage);
            c.shape.decay_on = DECAY_ON_ALL;
            c.steps = 1;
            ZeroResult r = zero_run(&c);
            for (int64_t e = 0; e < r.elements; e++)
                if (element(r.first, F64, e) == element(r.weights, F64, e))
                    fail_msg("shape %d, stage %d: weight %lld stands still", i, stage,
                             (long long)e);
            zero_result_free(&r);
        }
    }
}

/* ---- the stages ------------------------------------------------------------------------------ */

/* Both shapes, all worlds, f64 and f32: the stages from `from` to 3 against stage `against`. */
static void compare_stages(int against, int from, int to, int64_t micros, double tolerance)
{
    for (int i = 0; i < SHAPES; i++) {
        for (int w = 0; w < WORLDS; w++) {
            for (int dtype = 0; dtype < 2; dtype++) {
                ZeroCase c = zero_case(shape_of(i), worlds[w], against);
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

static void test_stages_0_and_1_have_the_same_bits(void **state)
{
    (void)state;
    compare_stages(0, 1, 1, 3, 0);
}

static void test_stages_have_the_same_bits_with_one_micro_batch(void **state)
{
    (void)state;
    compare_stages(0, 2, 3, 1, 0);
}

/* Added up over micro-batches first, or over ranks. */
static void test_stages_are_close_with_several_micro_batches(void **state)
{
    (void)state;
    compare_stages(0, 2, 2, 3, 1e-12);
    compare_stages(2, 3, 3, 3, 0);
}

/* Runs the case with `change` made to it, and wants the same bits. */
static void check_no_bit(const ZeroCase *c, const ZeroResult *want, const char *what)
{
    char all[96];
    ZeroResult got = zero_run(c);
    snprintf(all, sizeof all, "shape of %d rows, %d ranks, stage %d: %s", (int)c->shape.V, c->ranks,
             c->zero.stage, what);
    assert_same_bits(want, &got, all);
    zero_result_free(&got);
}

/* How collectives are grouped, put off and spelled moves no bit. Bug 39: a bucket's border must not
 * lose or repeat a tail. */
static void test_bug_39_buckets_and_overlap_move_no_bit(void **state)
{
    (void)state;
    static const int64_t bucket[] = {1, 700, 3000, 1000000000};
    for (int i = 0; i < SHAPES; i++) {
        for (int stage = 0; stage <= 3; stage++) {
            ZeroCase c = zero_case(shape_of(i), 3, stage);
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

/* ---- gradients that travel in 16 bits -------------------------------------------------------- */

/* Gradients about 1e-6 and about 1e4 keep their first digits, for nothing is divided on the way:
 * each is within roundings of bf16, of what travelled and of its sum, and the same at every stage
 * with one micro-batch. */
static void check_bf16_on_the_wire(GptShape shape, double factor)
{
    ZeroCase c = zero_case(fixture_with_dtype(shape, F32), 5, 0);
    c.steps = 1;
    c.factor = factor;
    ZeroResult exact = zero_run(&c), first = {0};
    c.wire = true;
    c.zero.wire_dtype = BF16;
    for (int stage = 0; stage <= 3; stage++) {
        c.zero.stage = stage;
        c.zero.reduce_bucket_size = stage == 1 ? 1000000 : 1;
        ZeroResult r = zero_run(&c);
        double d = distance(exact.gradients, r.gradients, F32, r.elements);
        if (!(d > 1e-4 && d < 0.1))
            fail_msg("factor %g, stage %d: gradients off by %g", factor, stage, d);
        assert_true(r.counts.of[stage ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE][BF16].calls > 0);
        assert_int_equal(r.counts.of[COMM_ALL_REDUCE][F32].calls, 0);
        assert_int_equal(r.counts.of[COMM_REDUCE_SCATTER][F32].calls, 0);
        if (stage == 0) {
            first = r;
            continue;
        }
        assert_same_bits(&first, &r, "bf16 on the wire");
        zero_result_free(&r);
    }
    zero_result_free(&first);
    zero_result_free(&exact);
}

static void test_bug_40_gradients_travel_in_bf16(void **state)
{
    static const double factor[] = {1, 1e-6, 1e4};
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        check_bf16_on_the_wire(shape_of(i), factor[i]);
}

/* ---- what travels, and what is kept ---------------------------------------------------------- */

/* The volumes of a step by hand: every unit is a multiple of 128 elements per rank. */
typedef struct {
    int64_t reduced, gathered;  /* elements on the wire in one step */
    int64_t weights, gradients; /* elements kept */
} Volume;

static Volume volume_by_hand(const ZeroCase *c)
{
    GptLayers layers;
    ParamTable table = {0};
    Volume v = {0};
    gpt_layers_build(&layers, &table, &c->shape, &GRID_OF_ONE);
    int64_t grain = 128 * c->ranks;
    for (int u = 0; u < table.n_units; u++) {
        const Unit *unit = &table.unit[u];
        int64_t end = 0;
        for (int p = unit->first; p < unit->first + unit->count; p++) {
            int64_t e = table.param[p].offset + table.param[p].padded[0] * table.param[p].padded[1];
            if (e > end) end = e;
        }
        int64_t size = (end + grain - 1) / grain * grain, part = size / c->ranks;
        bool tied = c->shape.tied && u == 0,
             block = strncmp(table.param[unit->first].name, "block", 5) == 0;
        bool twice = c->zero.stage == 3 && (block || tied); /* embedding and head; both passes */
        v.reduced += c->zero.stage >= 2 && !tied ? c->micros * size : size;
        if (c->zero.stage == 1 || c->zero.stage == 2) v.gathered += size;
        if (c->zero.stage == 3) v.gathered += c->micros * (twice ? 2 : 1) * size;
        v.weights += c->zero.stage == 3 ? part : size;
        v.gradients += c->zero.stage >= 2 && !tied ? part : size;
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    return v;
}

static void test_volumes_and_bytes_are_those_counted_by_hand(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int stage = 0; stage <= 2; stage++) {
            for (int ranks = 2; ranks <= 5; ranks++) {
                ZeroCase c = zero_case(shape_of(i), ranks, stage);
                c.micros = 3;
                c.steps = 2;
                ZeroResult r = zero_run(&c);
                Volume v = volume_by_hand(&c);
                CommVerb sum = stage == 0 ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER;
                assert_int_equal(r.counts.of[sum][F64].elements, c.steps * v.reduced);
                assert_int_equal(r.counts.of[COMM_ALL_GATHER][F64].elements, c.steps * v.gathered);
                assert_int_equal(
                    r.counts.of[stage == 0 ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE][F64].calls, 0);
                for (int k = 0; k < ranks; k++) {
                    const ZeroBytes *b = &r.bytes[k];
                    assert_int_equal(b->weights, 8 * v.weights);
                    assert_int_equal(b->gradients, 8 * v.gradients);
                    assert_int_equal(b->weights + b->gradients + b->transient + b->wire, r.held[k]);
                }
                zero_result_free(&r);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ranks_equal_one),
        cmocka_unit_test(test_bug_36_every_weight_moves),
        cmocka_unit_test(test_stages_0_and_1_have_the_same_bits),
        cmocka_unit_test(test_stages_have_the_same_bits_with_one_micro_batch),
        cmocka_unit_test(test_stages_are_close_with_several_micro_batches),
        cmocka_unit_test(test_bug_39_buckets_and_overlap_move_no_bit),
        cmocka_unit_test(test_bug_40_gradients_travel_in_bf16),
        cmocka_unit_test(test_volumes_and_bytes_are_those_counted_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
