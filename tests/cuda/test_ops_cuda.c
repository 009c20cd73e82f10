/* test_ops_cuda.c -- tests what the CUDA backend promises beyond test_ops.c. All ops at the end of
 * a training step have the same bits as on the CPU: norms, sums, decisions, random numbers (and
 * updates: test_ops_cuda_updates.c). Also tests losses of rows as long as a real vocabulary.
 * Skipped if there is no CUDA device or the program is built without CUDA. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- sums ------------------------------------------------------------------------------------ */

static void test_squared_norms_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    const int64_t count[] = {1,
                             15,
                             17,
                             1000,
                             2345,
                             3003,
                             SQ_NORM_BLOCK,
                             SQ_NORM_BLOCK + 1,
                             3 * SQ_NORM_BLOCK + 37,
                             70 * SQ_NORM_BLOCK};
    for (DType storage = F32; storage <= F16; storage++)
        for (int k = 0; k < 50; k++) {
            Tensor x = pair_drawn(storage, count[k % 10], 100 + (uint64_t)k, 0.1, false),
                   there = device_put(&pair_cuda, x);
            /* starting from the large number, the sum stays between two powers of two */
            double here = k < 10 ? 66666.6 : 0, back = here;
            Tensor sum = device_put(&pair_cuda, tensor_1d(&back, F64, 1));
            for (int twice = 0; twice < 2; twice++) {
                op_sq_norm(&pair_cpu, tensor_1d(&here, F64, 1), &x, 1);
                op_sq_norm(&pair_cuda, sum, &there, 1);
            }
            device_take(&pair_cuda, tensor_1d(&back, F64, 1), sum);
            device_drop(&pair_cuda, there);
            pair_same_bits(tensor_1d(&here, F64, 1), tensor_1d(&back, F64, 1), "sq_norm");
            free(x.data);
        }
}

enum { LOSSES = 5003 };

/* Losses as a model has them, and losses that make in-order rounding hard: of all sizes, halfway
 * between two totals, infinite, negative, close to zero. */
static float drawn_loss(int kind, int64_t i)
{
    double u = drawn_uniform(11, i);
    switch (kind) {
    case 0: return (float)(12 * u);
    case 1: return (float)ldexp(1 + u, -(int)(60 * drawn_uniform(12, i)));
    case 2: return i % 3 ? (float)ldexp(2 * (i % 50) + 1, -42) : (float)u;
    case 3: return i == 4000 ? INFINITY : (float)u;
    case 4: return (float)ldexp(u - 0.25, -(int)(50 * drawn_uniform(12, i)));
    default: return i < 1100 ? 0.0f : (float)ldexp(u, -140);
    }
}

static void test_losses_are_summed_in_ascending_order(void **state)
{
    (void)state;
    pair_needed();
    static float loss[LOSSES];
    static int32_t target[LOSSES];
    const double start[] = {0, 777.7, 1e6 / 3};
    for (int kind = 0; kind < 18; kind++)
        for (int64_t n = 1; n <= LOSSES; n = n == 1 ? 1024 : n == 1024 ? LOSSES : LOSSES + 1) {
            for (int64_t i = 0; i < n; i++) {
                loss[i] = drawn_loss(kind % 6, i);
                target[i] = (int32_t)(drawn_uniform(13, i) * 50) - 1;
            }
            double here[2] = {start[kind / 6], 3}, back[2] = {here[0], here[1]};
            Tensor losses = tensor_1d(loss, F32, n), targets = tensor_1d(target, I32, n);
            Tensor stats = tensor_1d(here, F64, 2), taken = tensor_1d(back, F64, 2);
            Tensor a = device_put(&pair_cuda, losses), b = device_put(&pair_cuda, targets),
                   c = device_put(&pair_cuda, taken);
            for (int twice = 0; twice < 2; twice++) {
                op_loss_sum(&pair_cpu, stats, losses, targets);
                op_loss_sum(&pair_cuda, c, a, b);
            }
            device_take(&pair_cuda, taken, c);
            device_drop(&pair_cuda, a);
            device_drop(&pair_cuda, b);
            pair_same_bits(stats, taken, "loss_sum");
        }
}

/* ---- decisions ------------------------------------------------------------------------------- */

static StepStats drawn_stats(int i)
{
    double u = drawn_uniform(21, i), v = drawn_uniform(22, i);
    StepStats s = {.sq_norm = exp(60 * v - 15), .nats = 700 * v, .targets = floor(64 * u)};
    if (i % 7 == 3) s.sq_norm = i % 2 ? (double)INFINITY : (double)NAN;
    if (i % 41 == 5) s = (StepStats){0};
    return s;
}

/* Compares state and decision of every step. The statistics include overflows, steps without
 * targets, and every change of the loss scale. */
static void check_decisions(StepConstants constants, int steps)
{
    double lr[] = {0.1, 0.2, 0.3};
    StepState here = {.loss_scale = 65536, .hysteresis = 2, .last_overflow = -1}, back;
    StepState *there = device_put_bytes(&pair_cuda, &here, sizeof here);
    Tensor table = tensor_1d(lr, F64, 3), rates = device_put(&pair_cuda, table);
    for (int i = 0; i < steps; i++) {
        StepStats stats = drawn_stats(i), cleared;
        StepDecision decision, found = {0};
        StepStats *sums = device_put_bytes(&pair_cuda, &stats, sizeof stats);
        StepDecision *made = device_put_bytes(&pair_cuda, &found, sizeof found);
        memset(&decision, 0, sizeof decision);
        op_step_decide(&pair_cpu, &here, &stats, &decision, table, &constants);
        op_step_decide(&pair_cuda, there, sums, made, rates, &constants);
        device_take_bytes(&pair_cuda, &found, made, sizeof found);
        device_take_bytes(&pair_cuda, &cleared, sums, sizeof cleared);
        assert_memory_equal(&stats, &cleared, sizeof stats);
        if (isnan(decision.grad_norm) && isnan(found.grad_norm))
            found.grad_norm = decision.grad_norm; /* the other bits of a NaN are unspecified */
        if (isnan(decision.grad_scale) && isnan(found.grad_scale))
            found.grad_scale = decision.grad_scale;
        assert_memory_equal(&decision, &found, sizeof decision);
    }
    device_drop(&pair_cuda, rates);
    device_take_bytes(&pair_cuda, &back, there, sizeof back);
    assert_memory_equal(&here, &back, sizeof here);
}

static void test_step_decisions_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    StepConstants constants = {.max_norm = 1,
                               .nominal_targets = 64,
                               .samples = 4,
                               .tokens = 64,
                               .skip_nonfinite = true,
                               .dynamic_scale = true,
                               .scale_window = 3,
                               .hysteresis = 2,
                               .min_scale = 1};
    check_decisions(constants, 200);
    constants.consecutive_hysteresis = true;
    check_decisions(constants, 100);
    constants.dynamic_scale = constants.skip_nonfinite = false;
    constants.max_norm = 0;
    check_decisions(constants, 50);
    constants.summed_ranks = 3;
    check_decisions(constants, 50);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static void test_normal_numbers_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    const int64_t count[] = {1, 2, 1031, 5000}, first[] = {0, 1, 17, ((int64_t)1 << 33) + 1};
    for (DType storage = F32; storage <= F16; storage++)
        for (int k = 0; k < 16; k++) {
            int64_t n = count[k % 4];
            Tensor here = pair_drawn(storage, n, 0, 0, false), back = pair_copy(here);
            Tensor there = device_put(&pair_cuda, back);
            Segment part = {.stream = rng_stream("w"), .first = first[k / 4]};
            op_normal(&pair_cpu, here, 42 + ((uint64_t)k << 40), &part, 0.02);
            op_normal(&pair_cuda, there, 42 + ((uint64_t)k << 40), &part, 0.02);
            device_take(&pair_cuda, back, there);
            pair_same_bits(here, back, "normal");
            free(here.data);
            free(back.data);
        }
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Compares losses and gradients of rows with several packs per thread and padding. One target is
 * missing, and the first logits are minus infinity. The mean of the other logits is `mean`.
 *
 * For 16-bit logits the device computes e^(x - most) as 2^(x log2(e) - shift), where the shift is
 * most log2(e), rounded to f32. With u = 2^-24 and d = most - x, the relative error of a term is at
 * most 1.3 u d (one rounding of the exponent and that of log2(e)) plus 2 ulp of the instruction.
 * Terms with d above 9 hardly count. So a loss is off by less than 1.1e-6; the losses here are at
 * least 8, so a bound of 1e-6 of the loss suffices. The rounding of the shift would add up to u
 * most. The device corrects it; otherwise the losses of logits around 3000 would be wrong by up to
 * 2e-4. */
static void check_long_rows(DType storage, int64_t cols, int64_t vocab, double mean,
                            double tolerance)
{
    enum { ROWS = 3 };
    float loss[2][ROWS];
    double one = 0.5;
    int32_t target[ROWS] = {(int32_t)vocab - 1, -1, 200};
    Tensor here = pair_drawn(storage, ROWS * cols, 31, 2, false), scale = tensor_1d(&one, F64, 1);
    here = tensor_2d(here.data, storage, ROWS, cols);
    for (int64_t i = 0; i < ROWS * cols; i++)
        dtype_set(storage, here.data, i, mean + dtype_get(storage, here.data, i));
    for (int64_t i = 0; i < 100; i++)
        dtype_set(storage, here.data, i, -(double)INFINITY);
    Tensor back = pair_copy(here), there = device_put(&pair_cuda, here);
    Tensor targets = tensor_1d(target, I32, ROWS), t = device_put(&pair_cuda, targets),
           s = device_put(&pair_cuda, scale),
           l = device_put(&pair_cuda, tensor_1d(loss[1], F32, ROWS));
    op_loss(&pair_cpu, tensor_1d(loss[0], F32, ROWS), here, targets, vocab, scale, true);
    op_loss(&pair_cuda, l, there, t, vocab, s, true);
    device_take(&pair_cuda, back, there);
    device_take(&pair_cuda, tensor_1d(loss[1], F32, ROWS), l);
    device_drop(&pair_cuda, t);
    device_drop(&pair_cuda, s);
    for (int i = 0; i < ROWS; i++)
        assert_true(fabsf(loss[0][i] - loss[1][i]) <= 1e-6f * loss[0][i]);
    for (int64_t i = 0; i < ROWS * cols; i++) {
        double a = dtype_get(storage, here.data, i), b = dtype_get(storage, back.data, i);
        if (!(fabs(a - b) <= tolerance * fabs(a) + (storage == F16 ? 0x1p-24 : 0)))
            fail_msg("%s: gradient %lld is %a, not %a", dtype_name(storage), (long long)i, b, a);
    }
    free(here.data);
    free(back.data);
}

static void test_losses_of_long_rows_agree_with_the_cpu(void **state)
{
    (void)state;
    pair_needed();
    check_long_rows(F32, 9000, 8999, 0, 1e-5);
    check_long_rows(BF16, 50304, 50257, 0, 0x1p-7);
    check_long_rows(F32, 60000, 59973, 0, 1e-5); /* too long for shared memory */
    check_long_rows(BF16, 120064, 120001, 0, 0x1p-7);
    check_long_rows(F16, 120001, 120001, 0, 0x1p-9);
    check_long_rows(BF16, 9008, 9001, 3000, 0x1p-7);
    check_long_rows(F16, 9001, 9001, 60000, 0x1p-9);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Queries that see no key, here a whole block of them, must still wait for the copies that they
 * started, and must not change the results of other queries. */
static void test_queries_without_keys_do_not_change_results_of_other_queries(void **state)
{
    (void)state;
    enum { T = 256, BLIND = 128, D = 64 };
    int32_t first[T] = {0};
    float lse[T] = {0};
    Attention attention = {.heads = 1, .kv_heads = 1, .head_size = D, .scale = 0.125};
    pair_needed();
    Tensor drawn = pair_drawn(BF16, 3 * T * D, 41, 1, false), in[3], made[2], seeing[2];
    for (int i = 0; i < 3; i++)
        in[i] =
            device_put(&pair_cuda, tensor_3d((uint16_t *)drawn.data + i * T * D, BF16, 1, T, D));
    for (int i = 0; i < 2; i++) {
        made[i] = tensor_3d(must_calloc(T * D, 2), BF16, 1, T, D);
        seeing[i] = tensor_1d((uint16_t *)made[i].data + BLIND * D, BF16, (T - BLIND) * D);
        for (int t = 0; i > 0 && t < BLIND; t++)
            first[t] = T - 8;
        Tensor o = device_put(&pair_cuda, made[i]),
               keys = device_put(&pair_cuda, tensor_1d(first, I32, T));
        Tensor sums = device_put(&pair_cuda, tensor_3d(lse, F32, 1, 1, T));
        op_attention_forward(&pair_cuda, o, sums, in[0], in[1], in[2], attention, keys);
        device_take(&pair_cuda, made[i], o);
        device_drop(&pair_cuda, sums);
        device_drop(&pair_cuda, keys);
    }
    pair_same_bits(seeing[0], seeing[1], "what queries after blind ones see");
    for (int i = 0; i < 3; i++)
        device_drop(&pair_cuda, in[i]);
    free(made[0].data);
    free(made[1].data);
    free(drawn.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_squared_norms_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_losses_are_summed_in_ascending_order),
        cmocka_unit_test(test_step_decisions_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_normal_numbers_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_losses_of_long_rows_agree_with_the_cpu),
        cmocka_unit_test(test_queries_without_keys_do_not_change_results_of_other_queries),
    };
    return cmocka_run_group_tests_name("step's end on cuda", tests, pair_setup, pair_teardown);
}
