/* test_weight_source.c -- tests the conversion of weights between types against rounding that is
 * done by search: the nearest of all values of the target type, the even one of two. */
#include "model/core/check.h"
#include "model/weights/source.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double widened(DType t, uint16_t bits)
{
    return t == BF16 ? (double)bf16_to_f32(bits) : (double)f16_to_f32(bits);
}

/* Returns the 16-bit value nearest to x >= 0, the even one if two are equally near. Values are in
 * the order of their bits, so the two neighbours of x are found by bisection. Beyond the largest
 * finite value, infinity stands for the next power of two. */
static uint16_t nearest(DType t, double x)
{
    uint16_t low = 0, high = t == BF16 ? 0x7f80 : 0x7c00;
    double beyond = t == BF16 ? 0x1p128 : 0x1p16;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        *(widened(t, middle) <= x ? &low : &high) = middle;
    }
    double above = isinf(widened(t, high)) ? beyond : widened(t, high);
    double down = x - widened(t, low), up = above - x;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void check_rounding(DType to, double x)
{
    uint16_t got, expected = nearest(to, fabs(x));
    int64_t overflows = weights_convert(&got, to, &x, F64, 1);
    if (signbit(x)) expected |= 0x8000;
    if (got != expected)
        fail_msg("%a to %s: %04x instead of %04x", x, dtype_name(to), got, expected);
    assert_int_equal(overflows, isinf(widened(to, got)));
    float f = (float)x;
    if ((double)f != x) return;
    weights_convert(&got, to, &f, F32, 1);
    assert_int_equal(got, expected);
}

/* Values near ties of each 16-bit type: halfway between two neighbours, and one or a few units of a
 * double or a float to both sides, where rounding twice goes wrong. */
static void test_conversion_to_16_bits_rounds_once_to_nearest_even(void **state)
{
    (void)state;
    static const DType types[] = {BF16, F16};
    uint64_t seed = 88172645463325252u;
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 20000; i++) {
            uint16_t most = types[t] == BF16 ? 0x7f7f : 0x7bff;
            uint16_t bits = (uint16_t)(next_random(&seed) % (most + 1u));
            double a = widened(types[t], bits), b = widened(types[t], (uint16_t)(bits + 1));
            if (isinf(b)) b = types[t] == BF16 ? 0x1p128 : 0x1p16;
            double tie = (a + b) / 2;
            check_rounding(types[t], tie);
            check_rounding(types[t], -nextafter(tie, INFINITY));
            check_rounding(types[t], nextafter(tie, 0));
            check_rounding(types[t], (double)nextafterf((float)tie, 0));
            check_rounding(types[t], tie * (1 + 0x1p-26));
        }
}

static void test_16_bit_values_survive_conversion_to_wider_types_and_back(void **state)
{
    (void)state;
    static const DType narrow[] = {BF16, F16}, wide[] = {F32, F64};
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++)
            for (uint32_t bits = 0; bits < 0x10000; bits++) {
                uint16_t from = (uint16_t)bits, back;
                double between;
                assert_int_equal(weights_convert(&between, wide[w], &from, narrow[t], 1), 0);
                assert_int_equal(weights_convert(&back, narrow[t], &between, wide[w], 1), 0);
                if (isnan(widened(narrow[t], from)))
                    assert_true(isnan(widened(narrow[t], back)));
                else
                    assert_int_equal(back, from);
            }
}

static void test_overflows_are_counted_and_nans_kept(void **state)
{
    (void)state;
    const float in[] = {65504.0f, 65519.996f, 65520.0f, -1e38f, INFINITY, NAN, 1e-30f, -0.0f};
    uint16_t out[8];
    assert_int_equal(weights_convert(out, F16, in, F32, 8), 2);
    static const uint16_t expected[] = {0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00, 0, 0, 0x8000};
    for (int i = 0; i < 8; i++)
        if (i != 5) assert_int_equal(out[i], expected[i]);
    assert_true(isnan(f16_to_f32(out[5])));
    const double wide[] = {1e300, -1e39, 3.4e38, (double)NAN, (double)-INFINITY};
    float narrow[5];
    assert_int_equal(weights_convert(narrow, F32, wide, F64, 5), 2);
    assert_true(isinf(narrow[0]) && isinf(narrow[1]) && isnan(narrow[3]) && isinf(narrow[4]));
    /* Equal types: not even the bits of a NaN change. */
    const uint32_t nan = 0xffa12345u;
    uint32_t copy;
    assert_int_equal(weights_convert(&copy, F32, &nan, F32, 1), 0);
    assert_int_equal(copy, nan);
}

static void test_weight_source_find_finds_a_tensor_by_its_exact_name(void **state)
{
    (void)state;
    SourceTensor tensors[] = {
        {.name = "token_embedding.weight", .dtype = BF16, .ndim = 2, .dim = {5, 4}},
        {.name = "final_norm.weight", .dtype = F32, .ndim = 1, .dim = {4, 1}}};
    WeightSource source = {.tensor = tensors, .n_tensors = 2};
    assert_int_equal(weight_source_find(&source, "final_norm.weight"), 1);
    assert_int_equal(weight_source_find(&source, "final_norm"), -1);
    assert_int_equal(source_row_bytes(&tensors[0]), 8);
    assert_int_equal(source_row_bytes(&tensors[1]), 4);
}

static void test_values_that_are_not_finite_are_counted(void **state)
{
    (void)state;
    static const double values[] = {0, NAN, 1, INFINITY, -INFINITY, -2, 65504};
    static const DType types[] = {F64, F32, BF16, F16};
    for (int i = 0; i < 4; i++) {
        double room[7]; /* as many elements of any type */
        weights_convert(room, types[i], values, F64, 7);
        assert_int_equal(weights_not_finite(room, types[i], 7), 3);
        assert_int_equal(weights_not_finite(room, types[i], 1), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversion_to_16_bits_rounds_once_to_nearest_even),
        cmocka_unit_test(test_16_bit_values_survive_conversion_to_wider_types_and_back),
        cmocka_unit_test(test_overflows_are_counted_and_nans_kept),
        cmocka_unit_test(test_weight_source_find_finds_a_tensor_by_its_exact_name),
        cmocka_unit_test(test_values_that_are_not_finite_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
