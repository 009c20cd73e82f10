/* test_zero_wire.c -- tests how many elements data-parallel ranks send and how many bytes each rank
 * stores, against formulas of the test; and gradients that are sent in 16 bits. */
#include "model/core/check.h"
#include "tests/support/trainer/zero_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- gradients that are sent in 16 bits --------------------------------------------------------
 */

/* Gradients of about 1e-6 and of about 1e4 keep their leading digits, because nothing is divided
 * before or after the sum. Each is within two roundings to bf16: one when it is sent, one of the
 * sum. With one micro-batch it is the same at every stage. */
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
        double d = zero_distance(exact.gradients, r.gradients, F32, r.elements);
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

static void test_bug_40_gradients_of_any_size_keep_their_leading_digits_in_bf16(void **state)
{
    static const double factor[] = {1, 1e-6, 1e4};
    (void)state;
    for (int i = 0; i < ZERO_SHAPES; i++)
        check_bf16_on_the_wire(zero_shape(i), factor[i]);
}

/* The norm is that of the gradients that the update reads: summed over the ranks, rounded when they
 * were sent, and with every element counted once. */
static void test_bug_18_the_norm_is_computed_from_the_stored_sums(void **state)
{
    (void)state;
    for (int i = 0; i < ZERO_SHAPES * 8; i++) {
        ZeroCase c = zero_case(fixture_with_dtype(zero_shape(i / 8), F32), 2 + i / 8, i % 4);
        c.wire = i / 4 % 2;
        c.zero.wire_dtype = BF16;
        ZeroResult r = zero_run(&c);
        double exact = 0;
        for (int64_t e = 0; e < r.elements; e++)
            exact += pow(dtype_get(F32, r.gradients, e), 2);
        if (!(fabs(r.sq_norm[c.steps - 1] / exact - 1) < 1e-13))
            fail_msg("shape %d, stage %d, wire %d: the norm is %.17g, not %.17g", i / 8, i % 4,
                     c.wire, r.sq_norm[c.steps - 1], exact);
        zero_result_free(&r);
    }
}

/* ---- elements sent and bytes stored ---------------------------------------------------------- */

/* The expected volumes of a step. Each unit is padded so that every rank has a multiple of 128
 * elements. */
typedef struct {
    int64_t reduced, gathered;  /* elements sent in one step */
    int64_t weights, gradients; /* elements stored */
    int64_t transient, room; /* elements of buffers: for gradients, for weights kept between uses */
    int64_t wire; /* elements of the buffer for gradients that are sent in another dtype */
} Volume;

/* How long stage 3 keeps the whole weights of a unit. NOTHING: only during a use; GATHERED: until
 * the step's last use; WHOLE: always. */
enum { KEEP_NOTHING, KEEP_GATHERED, KEEP_WHOLE, KEEP_WAYS };

/* How gradients are sent. KEPT: in the dtype in which they are stored; BF16: in bf16 although f32
 * is stored; ALL: by all-reduce instead of reduce-scatter. */
enum { SEND_KEPT, SEND_BF16, SEND_ALL, SEND_BF16_ALL, SEND_WAYS };

static void keep(ZeroCase *c, int way)
{
    if (way == KEEP_GATHERED) c->zero.gather = (GatherLimits){INT64_MAX, INT64_MAX, INT64_MAX};
    if (way == KEEP_WHOLE)
        c->zero.param_persistence_threshold = c->zero.model_persistence_threshold = INT64_MAX;
}

static Volume volume_by_hand(const ZeroCase *c, int way)
{
    GptLayers layers;
    ParamTable table = {0};
    Volume v = {0};
    gpt_layers_build(&layers, &table, &c->shape, &LAYERS_WHOLE);
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
        /* Blocks are gathered in both passes, and the tied table for the embedding and the head, in
         * every micro-batch. */
        int64_t uses = c->micros * (block || tied ? 2 : 1);
        bool sharded = c->zero.stage == 3 && way != KEEP_WHOLE;
        v.reduced += c->zero.stage >= 2 && !tied ? c->micros * size : size;
        if (c->zero.stage > 0) v.gathered += sharded && way == KEEP_NOTHING ? uses * size : size;
        v.weights += sharded ? part : size;
        v.gradients += c->zero.stage >= 2 && !tied ? part : size;
        if (c->zero.stage >= 2 && !tied && 2 * size > v.transient) v.transient = 2 * size;
        if (sharded && way == KEEP_GATHERED) v.room += size;
        if (c->wire && size > v.wire) v.wire = size;
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
    return v;
}

/* Checks that a step sends only gradients, to be summed, and weights, to be gathered. */
static void check_travelled(const CommCounts *counts, CommVerb sum, DType wire, int64_t reduced,
                            DType weight, int64_t gathered)
{
    for (int verb = 0; verb < COMM_VERBS; verb++) {
        for (int t = 0; t < DTYPE_COUNT; t++) {
            int64_t want = verb == (int)sum && t == (int)wire            ? reduced
                           : verb == COMM_ALL_GATHER && t == (int)weight ? gathered
                                                                         : 0;
            if (counts->of[verb][t].elements != want)
                fail_msg("%s of %s: %lld elements, not %lld", comm_verb_name[verb],
                         dtype_name((DType)t), (long long)counts->of[verb][t].elements,
                         (long long)want);
        }
    }
}

static void check_volumes(int shape, int stage, int ranks, int way, int send)
{
    bool wire = send == SEND_BF16 || send == SEND_BF16_ALL;
    DType kept = wire ? F32 : F64;
    size_t size = dtype_size(kept);
    ZeroCase c = zero_case(fixture_with_dtype(zero_shape(shape), kept), ranks, stage);
    c.micros = 3;
    c.steps = 2;
    c.wire = wire;
    c.zero.wire_dtype = BF16;
    c.zero.all_reduce = send >= SEND_ALL;
    keep(&c, way);
    ZeroResult r = zero_run(&c);
    Volume v = volume_by_hand(&c, way);
    check_travelled(&r.counts,
                    stage == 0 || send >= SEND_ALL ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER,
                    wire ? BF16 : kept, c.steps * v.reduced, kept, c.steps * v.gathered);
    for (int k = 0; k < ranks; k++) {
        const ZeroBytes *b = &r.bytes[k];
        assert_int_equal(b->weights, size * (size_t)v.weights);
        assert_int_equal(b->gradients, size * (size_t)v.gradients);
        assert_int_equal(b->transient, size * (size_t)v.transient);
        assert_int_equal(b->wire, dtype_size(BF16) * (size_t)v.wire);
        if (way != KEEP_NOTHING) assert_int_equal(b->gathered, size * (size_t)v.room);
        assert_int_equal(b->weights + b->gradients + b->gathered + b->transient + b->wire,
                         r.held[k]);
    }
    zero_result_free(&r);
}

static void test_elements_sent_and_bytes_stored_match_formulas(void **state)
{
    (void)state;
    for (int i = 0; i < ZERO_SHAPES; i++) {
        for (int ranks = 2; ranks <= 5; ranks++) {
            for (int stage = 0; stage <= 3; stage++)
                for (int send = 0; send < (ranks < 4 ? SEND_WAYS : 1); send++)
                    check_volumes(i, stage, ranks, KEEP_NOTHING, send);
            for (int way = 1; way < KEEP_WAYS; way++)
                check_volumes(i, 3, ranks, way, SEND_KEPT);
        }
    }
}

/* The store sends gradients as the config's keys say. */
static void test_config_keys_choose_how_gradients_are_sent(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        Config c = {.zero_optimization = {.reduce_scatter = i & 1},
                    .communication_data_type = i & 2 ? GRAD_DTYPE_BF16 : GRAD_DTYPE_AUTO};
        ZeroOptions o = zero_options(&c, true);
        assert_int_equal(o.all_reduce, !(i & 1));
        assert_int_equal(o.wire_dtype, i & 2 ? BF16 : F32);
        assert_int_equal(o.grad_dtype, F32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_40_gradients_of_any_size_keep_their_leading_digits_in_bf16),
        cmocka_unit_test(test_bug_18_the_norm_is_computed_from_the_stored_sums),
        cmocka_unit_test(test_elements_sent_and_bytes_stored_match_formulas),
        cmocka_unit_test(test_config_keys_choose_how_gradients_are_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
