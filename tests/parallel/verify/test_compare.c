/* test_compare.c -- the bounds within which a grid must agree with a single rank: a difference just
 * within a bound is accepted, and one just beyond it is reported. */
#include "model/core/check.h"
#include "parallel/verify/compare.h"
#include "tests/support/model/param_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two parameters, of 2 x 3 and of 4 elements, which belong to no unit. */
enum { FIRST = 6, ALL = 10 };
static Param params[] = {{.name = "a.weight", .ndim = 2, .dim = {2, 3}},
                         {.name = "b.bias", .ndim = 1, .dim = {4, 1}}};
static const ParamTable table = {.param = params, .n_params = 2};

typedef struct {
    Capture got, want;
} Pair;

/* Makes two equal captures of a step: gradients have rms 2 in the first parameter and 1e-9 in the
 * second, weights have rms 3 and 0. */
static Pair pair_new(int64_t step)
{
    Pair p = {capture_create(&table), capture_create(&table)};
    Capture *of[] = {&p.got, &p.want};
    assert_int_equal(p.got.n, ALL);
    for (int k = 0; k < 2; k++) {
        *of[k] = (Capture){.step = step,
                           .loss = 4,
                           .grad_norm = 0.5,
                           .loss_scale = 1,
                           .applied = true,
                           .n = ALL,
                           .gradient = of[k]->gradient,
                           .weight = of[k]->weight};
        for (int i = 0; i < ALL; i++) {
            of[k]->gradient[i] = (i % 2 ? -1 : 1) * (i < FIRST ? 2 : 1e-9);
            of[k]->weight[i] = i < FIRST ? 3 : 0;
        }
    }
    return p;
}

static void pair_free(Pair *p)
{
    capture_free(&p->got);
    capture_free(&p->want);
}

/* Compares two captures of step `step` that differ by `by` in one number, with the bounds of
 * `dtype`. */
typedef enum { LOSS, NORM, GRADIENT, WEIGHT } Kind;
static Comparison compare(Kind kind, int element, double by, DType dtype, int64_t step)
{
    Pair p = pair_new(step);
    Comparison c = {0};
    double *number[] = {&p.got.loss, &p.got.grad_norm, p.got.gradient + element,
                        p.got.weight + element};
    CompareBounds bounds = compare_bounds(dtype, 0.25, step);
    *number[kind] += by;
    bool good = compare_captures(&c, &table, dtype, &p.got, &p.want, &bounds);
    assert_int_equal(good, !c.differs);
    pair_free(&p);
    return c;
}

/* Checks differences just within the bound and just beyond it, in both directions; NaN is always
 * refused. */
static void check_bound(Kind kind, int element, double bound, DType dtype, const char *what)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        Comparison good = compare(kind, element, 0.9 * sign * bound, dtype, 1);
        if (good.differs) fail_msg("%s is refused: %s", what, good.difference);
        assert_true(good.worst > 0);
        assert_non_null(strstr(good.where, what));
        Comparison bad = compare(kind, element, 1.1 * sign * bound, dtype, 1);
        if (!bad.differs) fail_msg("%s is not refused", what);
        assert_ptr_equal(strstr(bad.difference, what), bad.difference);
    }
    assert_true(compare(kind, element, NAN, dtype, 1).differs);
}

static void test_f64_numbers_are_accepted_within_their_bounds_and_refused_beyond(void **state)
{
    (void)state;
    double all = sqrt(FIRST * 4.0 / ALL), rounding = 32 * dtype_info[F64].roundoff;
    check_bound(LOSS, 0, 4e-12, F64, "loss, step 1");
    check_bound(NORM, 0, 0.5e-12, F64, "norm of the gradients, step 1");
    check_bound(GRADIENT, 5, 2e-12, F64, "gradient of a.weight[5], step 1");
    /* The bound of a tensor far smaller than the others is 32 roundings of the rms of all
     * gradients. */
    check_bound(GRADIENT, 7, rounding * all, F64, "gradient of b.bias[1], step 1");
    check_bound(WEIGHT, 2, 3e-12, F64, "weight of a.weight[2], step 1");
    /* The bound of zero weights is relative to the learning rate. */
    check_bound(WEIGHT, 9, 0.25e-12, F64, "weight of b.bias[3], step 1");
}

static void test_f32_numbers_are_accepted_within_their_bounds_and_refused_beyond(void **state)
{
    (void)state;
    check_bound(LOSS, 0, 8e-5, F32, "loss, step 1");
    check_bound(NORM, 0, 1e-5, F32, "norm of the gradients, step 1");
    check_bound(GRADIENT, 0, 4e-5, F32, "gradient of a.weight[0], step 1");
    assert_false(compare(GRADIENT, 0, 1, F32, 2).differs);
    assert_false(compare(WEIGHT, 0, 1, F32, 1).differs);
    assert_true(compare(LOSS, 0, 1e-4, F32, 3).differs);
    assert_true(compare(GRADIENT, 0, 1e-9, F64, 3).differs);
}

/* If 4 ranks send in bf16, a tensor and the norm may differ by (sqrt(4) + sqrt(1)) / 256 of their
 * rms; the loss may not differ before the first update. In fp16, tiny gradients may be lost
 * altogether. */
static void test_bounds_grow_by_the_rounding_of_gradients_sent_in_16_bits(void **state)
{
    (void)state;
    CompareWire bf16 = compare_wire(F32, BF16, 4, 1), fp16 = compare_wire(F32, F16, 4, 1);
    assert_true(bf16.relative == 3.0 / 256 && fp16.relative == 3.0 / 2048);
    assert_true(fp16.absolute == 5 * 0x1p-25 && bf16.absolute > 0 && bf16.absolute < 1e-30);
    assert_true(compare_wire(BF16, BF16, 4, 1).absolute == 0);
    assert_true(compare_wire(F32, F32, 4, 1).relative == 0);
    for (int i = 0; i < 11; i++) {
        Pair p = pair_new(i >= 9 ? 2 : 1);
        Comparison c = {0};
        CompareBounds bounds = compare_bounds(F32, 1e-3, p.want.step);
        bounds.wire = i == 4 || i == 5 ? fp16 : bf16;
        double by = i % 2 ? 1.1 : 0.9;
        p.want.loss_scale = i == 4 || i == 5 ? 0x1p-10 : 1;
        /* The bound of one element is larger than that of the rms of its tensor. */
        if (i < 2) p.want.gradient[0] = p.got.gradient[0] = 20;
        for (int k = 0; k < FIRST && i < 2; k++)
            p.got.gradient[k] += by * sqrt(420.0 / FIRST) * (bf16.relative + 2e-5);
        if (i == 2 || i == 3) p.got.grad_norm += by * 0.5 * (bf16.relative + 2e-5);
        if (i == 4 || i == 5) p.got.gradient[7] += by * fp16.absolute / 0x1p-10;
        if (i == 6 || i == 7) p.got.loss += by * 4 * 2e-5;
        /* After an update the loss may change by 2 lr sqrt(n) times the rounding of gradients. */
        if (i >= 8)
            p.got.loss += 4 * 2e-5 + (i < 10 ? 0.9 : 1.1) * 2e-3 * sqrt(ALL) * 0.5 * bf16.relative;
        bool bad = i == 8 || i == 10 || (i < 8 && i % 2);
        if (compare_captures(&c, &table, F32, &p.got, &p.want, &bounds) == bad)
            fail_msg("case %d: %s", i, bad ? "is not refused" : c.difference);
        pair_free(&p);
    }
    for (int i = 0; i < 2; i++) {
        Comparison c = {0};
        Pair p = pair_new(1);
        for (int k = 0; k < FIRST; k++)
            p.got.gradient[k] += (i ? 1.1 : 0.9) * 2 * bf16.relative;
        assert_int_equal(compare_distances(&c, &table, &p.got, &p.want, &p.want, &bf16), i == 0);
        pair_free(&p);
    }
}

/* Returns compare_grid of a config in JSON on `ranks` ranks. */
static CompareWire of_grid(const char *keys, int ranks, bool each)
{
    char *text = text_format("{\"data\":{\"text\":\"x\"},\"train_micro_batch_size_per_gpu\":2,"
                             "\"gradient_accumulation_steps\":3,\"train_steps\":9,%s}",
                             keys);
    ConfigContext context = {.world = ranks};
    ConfigReport report = {0};
    const Config *c = config_parse(&context, "a grid", text, strlen(text), 0, NULL, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    CompareWire wire = compare_grid(c, each);
    config_report_free(&report);
    config_free(c);
    free(text);
    return wire;
}

/* If each addition is rounded, a sum over 4 ranks has two more roundings, of partial sums of 2 and
 * 3 addends; a sum over 2 ranks has none. */
static void test_bounds_grow_if_each_addition_is_rounded(void **state)
{
    (void)state;
    const double u = 1.0 / 256, four = sqrt(0.5) + sqrt(0.75);
    CompareWire bf16 = compare_additions(BF16, 4, 1), fp16 = compare_additions(F16, 4, 3);
    assert_true(bf16.relative == four * u && bf16.absolute == 2 * 0x1p-134);
    assert_true(fp16.relative == sqrt(3.0) * four / 2048 && fp16.absolute == 6 * 0x1p-25);
    assert_true(compare_additions(F16, 2, 1).relative == 0);
    assert_true(compare_additions(F32, 4, 1).relative == 0);
    static const struct {
        const char *keys;
        int ranks;
        /* In units of bf16's rounding, without and with rounded additions. */
        double once, each;
    } grids[] = {
        {"\"bf16\":{\"enabled\":true}", 4, 0, 0},
        {"\"bf16\":{\"enabled\":true},\"communication_data_type\":\"bf16\"", 4, 3, 3 + 1.573},
        {"\"bf16\":{\"enabled\":true},\"communication_data_type\":\"bf16\","
         "\"zero_optimization\":{\"stage\":2}",
         4, 3 * 1.732, (3 + 1.573) * 1.732},
        {"\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true}", 4, 0, 1.573},
        {"\"bf16\":{\"enabled\":true},\"parallel\":{\"tensor\":4}", 4, 3, 3 + 1.573},
        {"\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true},"
         "\"parallel\":{\"tensor\":4,\"sequence_parallel\":true}",
         4, 3, 3 + 2 * 1.573},
        {"\"bf16\":{\"enabled\":true},\"parallel\":{\"tensor\":2}", 4, 2.414, 2.414},
    };
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        double once = of_grid(grids[i].keys, grids[i].ranks, false).relative / u,
               each = of_grid(grids[i].keys, grids[i].ranks, true).relative / u;
        if (fabs(once - grids[i].once) > 0.01 || fabs(each - grids[i].each) > 0.01)
            fail_msg("%s: %g and %g", grids[i].keys, once, each);
    }
}

/* Of several differences the first is reported, and of all deviations the largest. */
static void test_the_first_difference_and_the_largest_deviation_are_reported(void **state)
{
    (void)state;
    Comparison c = {0};
    CompareBounds bounds = compare_bounds(F64, 0.25, 1);
    for (int64_t step = 1; step <= 2; step++) {
        Pair p = pair_new(step);
        p.got.gradient[1] += step == 1 ? 0.5 : 0;
        p.got.weight[4] += step == 1 ? 0.25 : 0;
        p.got.gradient[3] += step == 2 ? 100 : 0;
        assert_false(compare_captures(&c, &table, F64, &p.got, &p.want, &bounds));
        pair_free(&p);
    }
    assert_string_equal(c.difference, "gradient of a.weight[1], step 1: -1.5, a single rank has "
                                      "-2; bound 2e-12");
    assert_string_equal(c.where, "gradient of a.weight[3], step 2");
    assert_true(c.worst == 50);
}

/* If one side skipped a step, that is a difference. If both skipped it, there is nothing to
 * compare. */
static void test_a_step_skipped_by_one_side_differs_and_by_both_is_not_compared(void **state)
{
    (void)state;
    CompareBounds bounds = compare_bounds(F64, 0.25, 1);
    for (int i = 0; i < 4; i++) {
        Comparison c = {0}, narrow = {0};
        Pair p = pair_new(7);
        p.got.applied = i & 1;
        p.want.applied = i & 2;
        p.got.gradient[0] = i == 0 ? NAN : p.got.gradient[0];
        bool same = i == 0 || i == 3;
        assert_int_equal(compare_captures(&c, &table, F64, &p.got, &p.want, &bounds), same);
        assert_int_equal(
            compare_distances(&narrow, &table, &p.got, &p.want, &p.want, &(CompareWire){0}), same);
        assert_int_equal(c.skipped, i == 0 ? 7 : 0);
        assert_int_equal(narrow.skipped, i == 0 ? 7 : 0);
        assert_int_equal(c.gradients, i == 3 ? 2 : 0);
        assert_int_equal(narrow.gradients, i == 3 ? 1 : 0);
        if (!same) {
            const char *want = i == 1 ? "step 7 is made, a single rank has skipped it"
                                      : "step 7 is skipped, a single rank has made it";
            assert_string_equal(c.difference, want);
            assert_string_equal(narrow.difference, want);
        }
        pair_free(&p);
    }
}

/* The distance is computed per tensor, in units of its rms; tensors that are only noise are left
 * out. */
static void test_a_16_bit_grid_may_be_1_5_times_as_far_from_f32_as_a_single_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        Comparison c = {0};
        Pair p = pair_new(1), other = pair_new(1);
        for (int k = 0; k < FIRST; k++) {
            p.want.gradient[k] += 0.02;                  /* a single rank, 0.01 from f32 */
            p.got.gradient[k] += i == 0 ? 0.028 : 0.032; /* 0.014 and 0.016 from f32 */
        }
        for (int k = FIRST; k < ALL; k++)
            p.got.gradient[k] += 1e-5; /* far away, but tiny compared to the others */
        double d = compare_distance(&table, &p.want, &other.want);
        assert_true(fabs(d - 0.01) < 1e-12);
        bool good = compare_distances(&c, &table, &p.got, &p.want, &other.want, &(CompareWire){0});
        assert_int_equal(good, i == 0);
        assert_true(fabs(c.worst - (i == 0 ? 0.014 : 0.016)) < 1e-12);
        assert_string_equal(c.where, "gradients beside f32, step 1");
        if (i == 1) assert_non_null(strstr(c.difference, "gradients of step 1: 0.016 from"));
        pair_free(&p);
        pair_free(&other);
    }
}

/* A capture has the elements of all parameters, one parameter after the other. */
static void test_param_of_element_finds_the_parameter_of_each_element(void **state)
{
    (void)state;
    for (int64_t i = 0; i < ALL; i++) {
        int64_t element;
        assert_int_equal(param_of_element(&table, i, &element), i >= FIRST);
        assert_int_equal(element, i >= FIRST ? i - FIRST : i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f64_numbers_are_accepted_within_their_bounds_and_refused_beyond),
        cmocka_unit_test(test_f32_numbers_are_accepted_within_their_bounds_and_refused_beyond),
        cmocka_unit_test(test_bounds_grow_by_the_rounding_of_gradients_sent_in_16_bits),
        cmocka_unit_test(test_bounds_grow_if_each_addition_is_rounded),
        cmocka_unit_test(test_the_first_difference_and_the_largest_deviation_are_reported),
        cmocka_unit_test(test_a_step_skipped_by_one_side_differs_and_by_both_is_not_compared),
        cmocka_unit_test(test_a_16_bit_grid_may_be_1_5_times_as_far_from_f32_as_a_single_rank),
        cmocka_unit_test(test_param_of_element_finds_the_parameter_of_each_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
