/* test_bf16_moments.c -- tests AdamW's averages in bf16: the average of squares neither freezes nor
 * drifts, a range's bits do not depend on how it is cut, and which slots are bf16 under which
 * config. */
#include "model/core/device.h"
#include "model/kernels/rounding_rule.h"
#include "optim/optimizer.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PLACES = 4096, UPDATES = 4096 };

static void open_cpu(Device *dev)
{
    char err[256];
    DeviceOptions options = {
        .threads = 1, .local_ranks = 1, .level = CPU_LEVEL_BASELINE, .blas = BLAS_BUILTIN};
    assert_true(device_open(dev, "cpu", &options, err, sizeof err));
}

/* The state of a range whose gradients are all 1. Weights have masters of f32 or none. */
typedef struct {
    uint16_t weight[PLACES], m[PLACES], v[PLACES];
    float grad[PLACES], master[PLACES];
} Numbers;

static const Segment whole = {.stream = 77, .cols = 32, .whole_cols = 32};

/* Makes update number t of the elements [from, to) of the range, with beta2 0.999. */
static void update_part(Device *dev, Numbers *r, int64_t t, bool masters, int64_t from, int64_t to)
{
    int64_t n = to - from;
    Segment segment = whole;
    segment.start = -from;
    StepDecision decision = {.apply = 1, .update = t, .lr = 1e-3, .grad_scale = 1};
    AdamW hyper = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decoupled = true};
    UpdateRange range = {
        .weight = tensor_1d(r->weight + from, BF16, n),
        .grad = tensor_1d(r->grad + from, F32, n),
        .master = masters ? tensor_1d(r->master + from, F32, n) : NO_TENSOR,
        .slot = {tensor_1d(r->m + from, BF16, n), tensor_1d(r->v + from, BF16, n)},
        .rounding = {.seed = 5, .segments = tensor_2d(&segment, I64, 1, SEGMENT_WORDS)}};
    op_adamw(dev, &range, 1, &decision, &hyper);
}

static void start(Numbers *r)
{
    *r = (Numbers){.weight = {0}};
    for (int i = 0; i < PLACES; i++)
        r->grad[i] = 1;
}

static double mean_square(const Numbers *r)
{
    double sum = 0;
    for (int i = 0; i < PLACES; i++)
        sum += (double)bf16_to_f32(r->v[i]);
    return sum / PLACES;
}

/* After 4096 updates with a squared gradient of 1 the exact average is 1 - 0.999^4096 = 0.983. Each
 * update adds a thousandth of the distance to 1. Rounded to nearest, as `nearest` is, the average
 * stops growing where this is less than half a step between bf16 numbers. Stochastic rounding adds
 * an error of half a step at most (as a standard deviation) at each update, and each later update
 * forgets a thousandth of it. So the standard deviation of an element is at most 0.04, and that of
 * the mean over 4096 elements 0.0006. */
static void test_an_average_of_squares_in_bf16_does_not_freeze_at_beta2_0999(void **state)
{
    Device dev;
    float nearest = 0;
    (void)state;
    open_cpu(&dev);
    for (int masters = 0; masters < 2; masters++) {
        Numbers *r = malloc(sizeof *r);
        double worst = 0;
        start(r);
        for (int64_t t = 1; t <= UPDATES; t++) {
            update_part(&dev, r, t, masters, 0, PLACES);
            double exact = 1 - pow(0.999, (double)t), off = mean_square(r) / exact - 1;
            if (t >= 256 && fabs(off) > fabs(worst)) worst = off;
            if (masters) nearest = bf16_to_f32(bf16_from_f32(0.999f * nearest + 0.001f));
        }
        printf("masters %d: mean of squares %.5f, exactly %.5f; farthest off by %+.5f\n", masters,
               mean_square(r), 1 - pow(0.999, UPDATES), worst);
        assert_true(fabs(worst) < 4e-3);
        free(r);
    }
    printf("to nearest: %.5f\n", (double)nearest);
    assert_true(nearest < 0.6f);
    device_close(&dev);
}

/* Two parts give the bits of the whole, although the second begins within a row of the parameter
 * and within the eight elements that share random numbers. */
static void test_a_range_split_in_parts_has_the_same_bits_as_the_whole(void **state)
{
    enum { CUT = 43 };
    Device dev;
    Numbers *one = malloc(sizeof *one), *two = malloc(sizeof *two);
    (void)state;
    open_cpu(&dev);
    start(one);
    for (int i = 0; i < PLACES; i++)
        one->grad[i] = (float)drawn_normal(3, i);
    *two = *one;
    for (int64_t t = 1; t <= 3; t++) {
        update_part(&dev, one, t, false, 0, PLACES);
        update_part(&dev, two, t, false, 0, CUT);
        update_part(&dev, two, t, false, CUT, PLACES);
    }
    assert_memory_equal(one, two, sizeof *one);
    device_close(&dev);
    free(one);
    free(two);
}

/* The average of squares is rounded with the random bits of its own stream, that of gradients to
 * nearest even. */
static void test_only_the_average_of_squares_is_rounded_stochastically(void **state)
{
    Device dev;
    Numbers *r = malloc(sizeof *r);
    int as_weights = 0;
    (void)state;
    open_cpu(&dev);
    start(r);
    for (int i = 0; i < PLACES; i++)
        r->grad[i] = (float)drawn_normal(3, i);
    update_part(&dev, r, 1, true, 0, PLACES);
    for (int i = 0; i < PLACES; i++) {
        uint32_t own[4], weights[4];
        float g = r->grad[i], v = (float)(1 - 0.999) * (g * g);
        rounding_words(5, rounding_square_stream(whole.stream), 1, i / ROUNDING_BLOCK, own);
        rounding_words(5, whole.stream, 1, i / ROUNDING_BLOCK, weights);
        assert_int_equal(r->m[i], bf16_from_f32((float)(1 - 0.9) * g));
        assert_int_equal(r->v[i], rounding_bf16(v, rounding_bits(own, i)));
        as_weights += r->v[i] == rounding_bf16(v, rounding_bits(weights, i));
    }
    assert_true(as_weights < PLACES * 3 / 4);
    device_close(&dev);
    free(r);
}

/* Only the averages of AdamW and Adam, and only those of bf16 weights, are bf16. */
static void test_averages_are_bf16_only_if_the_config_asks_for_it(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++)
        for (int masters = 0; masters < 2; masters++)
            for (OptimizerType type = OPTIMIZER_ADAMW; type <= OPTIMIZER_SGD; type++)
                for (DType storage = F64; storage <= F16; storage++) {
                    Config c = {.optimizer.type = type};
                    c.bf16.bf16_optimizer_states = states;
                    c.bf16.bf16_master_weights_and_grads = !masters;
                    bool bf16 = states && storage == BF16 && type != OPTIMIZER_SGD;
                    DType compute = dtype_compute(storage);
                    assert_int_equal(optimizer_slot_dtype(&c, storage, SLOT_MASTER), compute);
                    for (int slot = SLOT_FIRST; slot < SLOT_MAX; slot++)
                        assert_int_equal(optimizer_slot_dtype(&c, storage, slot),
                                         bf16 ? BF16 : compute);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_average_of_squares_in_bf16_does_not_freeze_at_beta2_0999),
        cmocka_unit_test(test_a_range_split_in_parts_has_the_same_bits_as_the_whole),
        cmocka_unit_test(test_only_the_average_of_squares_is_rounded_stochastically),
        cmocka_unit_test(test_averages_are_bf16_only_if_the_config_asks_for_it),
    };
    return cmocka_run_group_tests_name("bf16 moments", tests, NULL, NULL);
}
