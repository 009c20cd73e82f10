/* test_ops_rounding.c -- tests stochastic rounding of bf16 weights: the rounding rule for all
 * random bits; AdamW and SGD bit for bit against an oracle on every CPU level and the GPU (or the
 * emulated one), however a range is divided, packed and split over ranks; the mean; and the inputs
 * of the random generator. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/rounding_rule.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the rule -------------------------------------------------------------------------------- */

/* If x is k / 2^16 of a step away from its bf16 neighbour towards zero, exactly k of the 2^16
 * random numbers round it away from zero, so the mean of all results is x. */
static void rounding_over_all_random_bits_has_the_exact_mean(void **state)
{
    (void)state;
    const float cases[] = {1.0f + 0x1p-20f, 0.3f,   -0.3f,      1e-3f, 3.1e38f,
                           -0x1.fffffep9f,  1e-40f, -0x1p-149f, 0.02f, 7.0f / 3};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t low = f32_bits(cases[k]) & 0xffffu, ups = 0;
        float down = f32_from_bits(f32_bits(cases[k]) - low);
        float up = f32_from_bits(f32_bits(down) + 0x10000u);
        double mean = 0;
        for (uint32_t bits = 0; bits < 65536; bits++) {
            float y = bf16_to_f32(rounding_bf16(cases[k], bits));
            assert_true(y == down || y == up);
            ups += y != down;
            mean += (double)y / 65536;
        }
        assert_int_equal(ups, low);
        assert_true(fabs(mean - (double)cases[k]) <= 1e-9 * fabs((double)up));
    }
}

/* Values that bf16 represents, and infinities, do not change with any random bits; a NaN stays NaN.
 */
static void rounding_keeps_values_that_bf16_represents(void **state)
{
    (void)state;
    const uint32_t bits[] = {0, 1, 0x8000, 0xffff};
    for (uint32_t b = 0; b < 65536; b++) {
        bool nan = (b & 0x7fffu) > 0x7f80u;
        for (int k = 0; k < 4; k++)
            assert_int_equal(rounding_bf16(f32_from_bits(b << 16), bits[k]), nan ? 0x7fc0 : b);
    }
    assert_int_equal(rounding_bf16(f32_from_bits(0x7f800001u), 0xffff), 0x7fc0);
    /* Above the largest finite number the result is infinity or that number. */
    assert_int_equal(rounding_bf16(f32_from_bits(0x7f7fffffu), 0), 0x7f7f);
    assert_int_equal(rounding_bf16(f32_from_bits(0x7f7fffffu), 1), 0x7f80);
    assert_int_equal(rounding_bf16(f32_from_bits(0xff7fffffu), 1), 0xff80);
}

/* ---- updates --------------------------------------------------------------------------------- */

enum { PLACES = 700 };
static const uint64_t SEED = 0x123456789abcdefu;

/* A range of numbers in host memory, in f32; the weights are representable in bf16. */
typedef struct {
    float weight[PLACES], grad[PLACES], m[PLACES], v[PLACES];
} Range;

static void range_draw(Range *r)
{
    for (int i = 0; i < PLACES; i++) {
        r->weight[i] = bf16_to_f32(bf16_from_f32((float)drawn_normal(1, i)));
        r->grad[i] = (float)drawn_normal(2, i);
        r->m[i] = (float)(0.1 * drawn_normal(3, i));
        r->v[i] = (float)(0.01 * drawn_uniform(4, i));
    }
}

static StepDecision decision_of(int64_t update)
{
    return (StepDecision){.apply = 1, .update = update, .lr = 6e-4, .grad_scale = 0.37};
}

/* Updates by rule 0 (AdamW), 1 (SGD) or 2 (SGD with momentum). */
static void update(Device *dev, int rule, Tensor w, Tensor g, Tensor m, Tensor v,
                   const StepDecision *decision, const Rounding *rounding)
{
    AdamW adamw = {.beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8,
                   .weight_decay = 0.1,
                   .decoupled = true,
                   .bias_correction = true};
    Sgd sgd = {.momentum = rule == 2 ? 0.9 : 0, .weight_decay = 0.1};
    UpdateRange range = {.weight = w, .grad = g, .slot = {m, v}};
    if (rounding) range.rounding = *rounding;
    if (rule == 1) range.slot[0] = NO_TENSOR;
    if (rule > 0) range.slot[1] = NO_TENSOR;
    if (rule == 0)
        op_adamw(dev, &range, 1, decision, &adamw);
    else
        op_sgd(dev, &range, 1, decision, &sgd);
}

/* Computes the updated weights before rounding: the same update on f32 weights. */
static void updated_exactly(int rule, const Range *before, int64_t t, float *after)
{
    Range r = *before;
    StepDecision d = decision_of(t);
    update(&devices.item[0].device, rule, tensor_1d(r.weight, F32, PLACES),
           tensor_1d(r.grad, F32, PLACES), tensor_1d(r.m, F32, PLACES), tensor_1d(r.v, F32, PLACES),
           &d, NULL);
    memcpy(after, r.weight, sizeof r.weight);
}

/* Updates elements `from` to `to` of the range on a device, with stochastic rounding by these
 * segments, into `out`. */
static void updated_on(Device *dev, int rule, const Range *before, int64_t t,
                       const Segment *segment, int segments, int64_t from, int64_t to,
                       uint16_t *out)
{
    Range r = *before;
    uint16_t weight[PLACES];
    StepDecision d = decision_of(t);
    int64_t n = to - from;
    for (int64_t i = 0; i < n; i++)
        weight[i] = bf16_from_f32(r.weight[from + i]);
    Tensor host = tensor_1d(weight, BF16, n), w = device_put(dev, host);
    Tensor g = device_put(dev, tensor_1d(r.grad + from, F32, n)),
           m = device_put(dev, tensor_1d(r.m + from, F32, n)),
           v = device_put(dev, tensor_1d(r.v + from, F32, n));
    Tensor table = tensor_2d((void *)(uintptr_t)segment, I64, segments, SEGMENT_WORDS);
    StepDecision *on_device = device_put_bytes(dev, &d, sizeof d);
    Rounding rounding = {.seed = SEED, .segments = device_put(dev, table)};
    update(dev, rule, w, g, m, v, on_device, &rounding);
    device_take(dev, host, w);
    device_drop(dev, g);
    device_drop(dev, m);
    device_drop(dev, v);
    device_drop(dev, rounding.segments);
    device_release(dev, on_device, sizeof d);
    memcpy(out + from, weight, (size_t)n * sizeof *weight);
}

/* Segments that begin inside a parameter, with odd borders, a gap, split columns, and borders at
 * multiples of 4. */
static const Segment mixed[] = {
    {101, -12, 0, 9, 9},          {102, 57, 0, 1, 1},
    {103, 64, 6, 5, 20},          {104, 251, 0, 3, 3},
    {105, 400, 1000003, 40, 120}, {(uint64_t)-5, 640, ((int64_t)1 << 34) + 1, 8, 8}};
enum { MIXED = sizeof mixed / sizeof *mixed };

static void updates_have_the_same_bits_as_the_oracle(void **state)
{
    (void)state;
    static Range r;
    float exact[PLACES];
    uint16_t got[PLACES];
    range_draw(&r);
    for (int rule = 0; rule < 3; rule++)
        for (int64_t t = 1; t < 1000000; t = t * 999 + 1) {
            updated_exactly(rule, &r, t, exact);
            for (int d = 0; d < devices.count; d++)
                for (int odd = 0; odd < 2; odd++) { /* 0: in packs; 1: element by element */
                    updated_on(&devices.item[d].device, rule, &r, t, mixed, MIXED, 0, PLACES - odd,
                               got);
                    for (int i = 0; i < PLACES - odd; i++) {
                        double want =
                            oracle_stochastic_at((double)exact[i], SEED, mixed, MIXED, t, i);
                        if ((double)bf16_to_f32(got[i]) != want)
                            fail_msg("%s: rule %d, update %lld, place %d: %a is rounded to %a, "
                                     "not %a",
                                     devices.item[d].name, rule, (long long)t, i, (double)exact[i],
                                     (double)bf16_to_f32(got[i]), want);
                    }
                }
        }
}

/* ---- splits ------------------------------------------------------------------------------------
 */

/* A range updated in pieces, each with its own segments, gets the bits of one call. */
static void a_range_updated_in_pieces_has_the_same_bits(void **state)
{
    (void)state;
    static Range r;
    static const int64_t border[] = {0, 4, 57, 130, 131, 399, 640, PLACES};
    uint16_t whole[PLACES], pieces[PLACES];
    range_draw(&r);
    for (int d = 0; d < devices.count; d++) {
        Device *dev = &devices.item[d].device;
        updated_on(dev, 0, &r, 7, mixed, MIXED, 0, PLACES, whole);
        for (int k = 0; k + 1 < 8; k++) {
            Segment shifted[MIXED];
            memcpy(shifted, mixed, sizeof mixed);
            for (int s = 0; s < MIXED; s++)
                shifted[s].start -= border[k];
            int first = 0; /* segments that end before the piece are not in its table */
            while (first + 1 < MIXED && shifted[first + 1].start <= 0)
                first++;
            updated_on(dev, 0, &r, 7, shifted + first, MIXED - first, border[k], border[k + 1],
                       pieces);
        }
        assert_memory_equal(whole, pieces, sizeof whole);
    }
}

/* A matrix of 20 x 35 on one rank, and on two ranks that split its columns or its rows; each with
 * another parameter before it. */
static void ranks_round_a_split_matrix_like_one_rank(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 35, LEFT = 15 };
    static Range r, part;
    const Segment one[] = {{9, 0, 0, COLS, COLS}};
    uint16_t whole[PLACES], got[PLACES];
    range_draw(&r);
    Device *dev = &devices.item[devices.count - 1].device;
    updated_on(dev, 0, &r, 5, one, 1, 0, PLACES, whole);
    for (int rank = 0; rank < 4; rank++) {
        bool by_rows = rank / 2;
        int rows = by_rows ? ROWS / 2 : ROWS, row0 = rank == 3 ? ROWS / 2 : 0;
        int cols = by_rows ? COLS : rank ? COLS - LEFT : LEFT, col0 = rank == 1 ? LEFT : 0;
        const Segment cut[] = {{8, 0, 0, 1, 1}, {9, 3, row0 * COLS + col0, cols, COLS}};
        range_draw(&part);
        for (int i = 0; i < rows * cols; i++) {
            int from = (row0 + i / cols) * COLS + col0 + i % cols;
            part.weight[3 + i] = r.weight[from];
            part.grad[3 + i] = r.grad[from];
            part.m[3 + i] = r.m[from];
            part.v[3 + i] = r.v[from];
        }
        updated_on(dev, 0, &part, 5, cut, 2, 0, 3 + rows * cols, got);
        for (int i = 0; i < rows * cols; i++)
            assert_int_equal(got[3 + i], whole[(row0 + i / cols) * COLS + col0 + i % cols]);
    }
}

/* ---- random bits ----------------------------------------------------------------------------- */

/* Updates n weights of 1 by SGD to 1 + 2^-9 and rounds them stochastically to bf16, into out.
 * Returns how many were rounded up. */
static int ups_of(Device *dev, uint64_t seed, uint64_t stream, int64_t t, uint16_t *out, int n)
{
    static float grad[PLACES];
    const Segment segment[] = {{stream, 0, 0, n, n}};
    StepDecision d = {.apply = 1, .update = t, .lr = 0x1p-9, .grad_scale = 1};
    Sgd sgd = {0};
    Rounding rounding = {
        .seed = seed,
        .segments = device_put(dev, tensor_2d((void *)(uintptr_t)segment, I64, 1, SEGMENT_WORDS))};
    int ups = 0;
    for (int i = 0; i < n; i++) {
        out[i] = bf16_from_f32(1.0f);
        grad[i] = -1;
    }
    Tensor host = tensor_1d(out, BF16, n), w = device_put(dev, host),
           g = device_put(dev, tensor_1d(grad, F32, n));
    StepDecision *on_device = device_put_bytes(dev, &d, sizeof d);
    op_sgd(dev, &(UpdateRange){.weight = w, .grad = g, .rounding = rounding}, 1, on_device, &sgd);
    device_take(dev, host, w);
    device_drop(dev, g);
    device_drop(dev, rounding.segments);
    device_release(dev, on_device, sizeof d);
    for (int i = 0; i < n; i++)
        ups += out[i] != bf16_from_f32(1.0f);
    return ups;
}

/* 1 + 2^-9 is a quarter of a step above 1, so of N elements N / 4 are rounded up, within five
 * standard deviations. Two updates, seeds or parameters agree only by chance: in (1/4)^2 + (3/4)^2
 * = 10 / 16 of all elements. */
static void random_bits_are_unbiased_and_differ_by_update_seed_and_parameter(void **state)
{
    (void)state;
    enum { UPDATES = 40 };
    static uint16_t out[UPDATES][PLACES], other[PLACES];
    Device *dev = &devices.item[devices.count - 1].device;
    double n = UPDATES * PLACES, ups = 0;
    for (int t = 0; t < UPDATES; t++)
        ups += ups_of(dev, 1, 2, t + 1, out[t], PLACES);
    double bound = 5 * sqrt(n * 0.25 * 0.75);
    if (fabs(ups - n / 4) > bound) fail_msg("%g of %g went up, %g may be off", ups, n, bound);
    for (int k = 0; k < 4; k++) {
        if (k == 0) memcpy(other, out[1], sizeof other); /* another update */
        if (k == 1) ups_of(dev, 3, 2, 1, other, PLACES); /* another seed */
        if (k == 2)
            ups_of(dev, 1 + (1ull << 40), 2, 1, other, PLACES); /* another high half of the seed */
        if (k == 3) ups_of(dev, 1, 2 + (1ull << 50), 1, other, PLACES); /* another parameter */
        int same = 0;
        for (int i = 0; i < PLACES; i++)
            same += other[i] == out[0][i];
        assert_true(fabs(same - PLACES * 10.0 / 16) < 5 * sqrt(PLACES * 10.0 / 16 * 6 / 16));
    }
    ups_of(dev, 1, 2, 1, other, PLACES);
    assert_memory_equal(other, out[0], sizeof other); /* and the same key gives the same bits */
}

/* Initial weights and roundings of one parameter share no Philox block. */
static void rounding_shares_no_philox_block_with_initial_weights(void **state)
{
    (void)state;
    for (int64_t block = 0; block < 100; block++)
        for (int64_t t = 0; t < 100; t++) {
            uint32_t ours[4], theirs[4];
            const uint32_t key[2] = {42, 0}, ctr[4] = {(uint32_t)block, (uint32_t)t, 7, 0};
            rounding_words(42, 7, t, block, ours);
            philox4x32(ctr, key, theirs);
            assert_memory_not_equal(ours, theirs, sizeof ours);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_over_all_random_bits_has_the_exact_mean),
        cmocka_unit_test(rounding_keeps_values_that_bf16_represents),
        cmocka_unit_test(updates_have_the_same_bits_as_the_oracle),
        cmocka_unit_test(a_range_updated_in_pieces_has_the_same_bits),
        cmocka_unit_test(ranks_round_a_split_matrix_like_one_rank),
        cmocka_unit_test(random_bits_are_unbiased_and_differ_by_update_seed_and_parameter),
        cmocka_unit_test(rounding_shares_no_philox_block_with_initial_weights),
    };
    return cmocka_run_group_tests_name("stochastic rounding", tests, devices_setup,
                                       devices_teardown);
}
