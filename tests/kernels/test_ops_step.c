/* test_ops_step.c -- tests of the end of a step: the decision (clipping, learning rate, DeepSpeed's
 * dynamic loss scale against recorded traces) and skipped updates. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- decision ---------------------------------------------------------------------------------
 */

static StepConstants plain_constants(void)
{
    return (StepConstants){
        .max_norm = 1, .nominal_targets = 64, .samples = 4, .tokens = 64, .skip_nonfinite = true};
}

/* Returns whether device i is the first CPU device or a GPU, for tests that do not need every CPU
 * level. */
static bool chosen(int i)
{
    return i == 0 || devices.item[i].cuda;
}

static StepDecision decide(Device *dev, StepState *state, StepStats stats,
                           const StepConstants *constants)
{
    double lr[] = {0.1, 0.2, 0.3};
    StepDecision decision;
    memset(&decision, 0x7f, sizeof decision);
    void *far_state = device_put_bytes(dev, state, sizeof *state);
    void *far_stats = device_put_bytes(dev, &stats, sizeof stats);
    void *far_decision = device_put_bytes(dev, &decision, sizeof decision);
    Tensor far_lr = device_put(dev, tensor_1d(lr, F64, 3));
    op_step_decide(dev, far_state, far_stats, far_decision, far_lr, constants);
    device_take_bytes(dev, state, far_state, sizeof *state);
    device_take_bytes(dev, &stats, far_stats, sizeof stats);
    device_take_bytes(dev, &decision, far_decision, sizeof decision);
    device_drop(dev, far_lr);
    assert_true(stats.sq_norm == 0 && stats.nats == 0 && stats.targets == 0);
    return decision;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 8 * 0x1p-53 * fabs(b);
}

static void step_decisions_clip_gradients_and_count_steps(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        StepConstants constants = plain_constants();
        StepState s = {.loss_scale = 1};
        StepDecision d =
            decide(dev, &s, (StepStats){.sq_norm = 0.25, .nats = 128, .targets = 64}, &constants);
        assert_true(d.apply == 1 && d.update == 1 && d.lr == 0.1 && d.loss == 2 &&
                    d.loss_scale == 1);
        assert_true(near(d.grad_norm, 0.5) && near(d.grad_scale, 1));
        d = decide(dev, &s, (StepStats){.sq_norm = 16, .nats = 60, .targets = 32}, &constants);
        /* Only half of the targets counted, so the gradients were divided by twice the actual
         * number. The norm is 8 and is clipped to 1. */
        assert_true(d.update == 2 && d.lr == 0.2 && near(d.grad_norm, 8) &&
                    near(d.loss, 60.0 / 32));
        assert_true(near(d.grad_scale, 2 * (1 / (8 + 1e-6))));
        for (int k = 0; k < 3; k++)
            d = decide(dev, &s, (StepStats){.sq_norm = 1e-8, .nats = 1, .targets = 64}, &constants);
        assert_true(d.update == 5 && d.lr == 0.3);
        assert_true(s.steps == 5 && s.updates == 5 && s.samples == 20 && s.tokens == 320 &&
                    s.skipped == 0);
        constants.max_norm = 0;
        d = decide(dev, &s, (StepStats){.sq_norm = 1e8, .nats = 1, .targets = 64}, &constants);
        assert_true(near(d.grad_scale, 1) && near(d.grad_norm, 1e4));
    }
}

/* With gradient_allreduce_op "sum" the gradients of three ranks are added, not averaged; the loss
 * stays the mean. */
static void gradient_allreduce_op_sum_adds_the_gradients_of_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        StepConstants constants = plain_constants();
        constants.summed_ranks = 3;
        StepState s = {.loss_scale = 1};
        StepDecision d =
            decide(dev, &s, (StepStats){.sq_norm = 0.01, .nats = 128, .targets = 64}, &constants);
        assert_true(near(d.grad_norm, 0.3) && near(d.grad_scale, 3) && d.loss == 2);
        d = decide(dev, &s, (StepStats){.sq_norm = 0.25, .nats = 128, .targets = 64}, &constants);
        assert_true(near(d.grad_norm, 1.5) && near(d.grad_scale, 3 * (1 / (1.5 + 1e-6))));
        assert_true(s.loss_seed == 1.0 / 64); /* the loss is divided as usual */
    }
}

/* A skipped step advances the counts of samples and tokens, but neither t nor the learning rate.
 * The step after it gives the same result as without it. */
static void skipped_step_does_not_affect_the_next_step(Device *dev)
{
    StepConstants constants = plain_constants();
    const double bad[] = {(double)NAN, (double)INFINITY};
    const StepStats good = {.sq_norm = 4, .nats = 70, .targets = 64};
    StepState alone = {.loss_scale = 1};
    StepDecision expected = decide(dev, &alone, good, &constants);
    for (int i = 0; i < 2; i++) {
        StepState s = {.loss_scale = 1};
        StepDecision d = decide(dev, &s, (StepStats){bad[i], (double)NAN, 64}, &constants);
        assert_true(d.apply == 0 && s.updates == 0 && s.skipped == 1 && s.skips_in_row == 1 &&
                    s.steps == 1);
        assert_true(s.samples == 4 && s.tokens == 64 && s.loss_scale == 1 && s.stop == 0);
        d = decide(dev, &s, good, &constants);
        assert_true(d.update == expected.update && d.lr == expected.lr &&
                    d.grad_scale == expected.grad_scale);
        assert_true(s.updates == 1 && s.skipped == 1 && s.skips_in_row == 0);
    }
    StepState s = {.loss_scale = 1};
    constants.skip_nonfinite = false;
    assert_true(decide(dev, &s, (StepStats){(double)NAN, 1, 64}, &constants).apply == 1 &&
                s.updates == 1);
}

static void bug_10_11_42_a_skipped_step_does_not_affect_the_next_step(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        if (chosen(i)) skipped_step_does_not_affect_the_next_step(&devices.item[i].device);
}

/* Runs a sequence of steps, '0' (normal) or '1' (overflow); writes scale/hysteresis after each, and
 * "stop" if the run must end. */
static void scale_trace(Device *dev, char *out, size_t n, const char *overflow, double start,
                        int64_t window, int64_t hysteresis, bool consecutive)
{
    StepConstants constants = plain_constants();
    constants.dynamic_scale = true;
    constants.scale_window = window;
    constants.hysteresis = hysteresis;
    constants.consecutive_hysteresis = consecutive;
    constants.min_scale = 1;
    StepState s = {.loss_scale = start, .hysteresis = hysteresis, .last_overflow = -1};
    size_t k = 0;
    out[0] = 0;
    for (const char *p = overflow; *p && k < n; p++) {
        double before = s.loss_scale;
        double sq_norm = *p == '1' ? (double)INFINITY : before * before;
        StepDecision d = decide(dev, &s, (StepStats){sq_norm, 1, 64}, &constants);
        assert_true(d.loss_scale == before && d.apply == (*p == '0'));
        if (*p == '0') assert_true(near(d.grad_norm, 1));
        if (s.stop)
            k += (size_t)snprintf(out + k, n - k, "stop ");
        else
            k +=
                (size_t)snprintf(out + k, n - k, "%g/%lld ", s.loss_scale, (long long)s.hysteresis);
    }
}

static void loss_scale_moves(Device *dev)
{
    char trace[512];
    scale_trace(dev, trace, sizeof trace, "00000000", 16, 3, 2, false);
    assert_string_equal(trace, "16/2 16/2 16/2 32/2 32/2 32/2 64/2 64/2 ");
    scale_trace(dev, trace, sizeof trace, "010000111", 16, 3, 2, false);
    assert_string_equal(trace, "16/2 16/1 16/1 16/1 16/1 32/2 32/1 16/1 8/1 ");
    scale_trace(dev, trace, sizeof trace, "010000111", 16, 3, 2, true);
    assert_string_equal(trace, "16/2 16/1 16/2 16/2 16/2 32/2 32/1 16/1 8/1 ");
    scale_trace(dev, trace, sizeof trace, "111", 4, 3, 1, false);
    assert_string_equal(trace, "2/1 1/1 stop ");
}

static void the_loss_scale_follows_recorded_traces_of_deepspeed(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        if (chosen(i)) loss_scale_moves(&devices.item[i].device);
}

/* ---- updates ----------------------------------------------------------------------------------
 */

enum { ELEMENTS = 77 };

/* The weights, gradients and optimizer states of one update. */
typedef struct {
    float master[ELEMENTS], grad[ELEMENTS], slot[2][ELEMENTS];
    uint16_t weight[ELEMENTS];
} Slots;

static Slots drawn_slots(void)
{
    Slots s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < ELEMENTS; i++) {
        s.master[i] = (float)drawn_normal(1, i);
        s.weight[i] = bf16_from_f32(s.master[i]);
        s.grad[i] = (float)drawn_normal(2, i);
        s.slot[0][i] = (float)drawn_normal(3, i);
        s.slot[1][i] = (float)drawn_uniform(4, i);
    }
    return s;
}

static void update(Device *dev, Slots *host, const StepDecision *decision, bool adam)
{
    Slots *s = device_put_bytes(dev, host, sizeof *host);
    StepDecision *d = device_put_bytes(dev, decision, sizeof *decision);
    AdamW adamw = {.beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8,
                   .weight_decay = 0.1,
                   .decoupled = true,
                   .bias_correction = true};
    Sgd sgd = {.momentum = 0.9, .weight_decay = 0.1};
    UpdateRange range = {.weight = tensor_1d(s->weight, BF16, ELEMENTS),
                         .grad = tensor_1d(s->grad, F32, ELEMENTS),
                         .master = tensor_1d(s->master, F32, ELEMENTS),
                         .slot = {tensor_1d(s->slot[0], F32, ELEMENTS)}};
    if (adam) {
        range.slot[1] = tensor_1d(s->slot[1], F32, ELEMENTS);
        op_adamw(dev, &range, 1, d, &adamw);
    } else {
        op_sgd(dev, &range, 1, d, &sgd);
    }
    device_take_bytes(dev, host, s, sizeof *host);
    device_release(dev, d, sizeof *d);
}

/* Returns the sum of the squares of x (n). */
static double squares(Device *dev, const float *x, int64_t n)
{
    double sum = 0;
    Tensor far = device_put(dev, tensor_1d((void *)(uintptr_t)x, F32, n));
    double *far_sum = device_put_bytes(dev, &sum, sizeof sum);
    op_sq_norm(dev, tensor_1d(far_sum, F64, 1), &far, 1);
    device_take_bytes(dev, &sum, far_sum, sizeof sum);
    device_drop(dev, far);
    return sum;
}

static void skipped_updates_change_no_bit_of_weights_and_states(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (int adam = 0; adam < 2; adam++) {
            Slots before = drawn_slots();
            before.grad[3] = NAN;
            Slots after = before;
            StepDecision d = {.apply = 0, .update = 1, .lr = 0.1, .grad_scale = (double)NAN};
            update(&devices.item[i].device, &after, &d, adam);
            assert_memory_equal(&before, &after, sizeof before);
        }
}

/* Gradients multiplied by a loss scale of 2^16 give the same bits as without it, also with
 * clipping. */
static void bug_8_runs_with_and_without_loss_scale_have_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Slots plain = drawn_slots(), scaled = plain;
        Device *dev = &devices.item[i].device;
        for (int k = 0; k < ELEMENTS; k++)
            scaled.grad[k] *= 65536;
        double sum[2] = {squares(dev, plain.grad, ELEMENTS), squares(dev, scaled.grad, ELEMENTS)};
        assert_true(sum[0] > 1); /* so gradients are clipped */
        StepConstants constants = plain_constants();
        StepState s = {.loss_scale = 1}, t = {.loss_scale = 65536};
        StepDecision d = decide(dev, &s, (StepStats){sum[0], 1, 64}, &constants);
        StepDecision e = decide(dev, &t, (StepStats){sum[1], 1, 64}, &constants);
        assert_true(d.grad_norm == e.grad_norm && d.grad_scale == 65536 * e.grad_scale);
        update(dev, &plain, &d, true);
        update(dev, &scaled, &e, true);
        assert_memory_equal(plain.weight, scaled.weight, sizeof plain.weight);
        assert_memory_equal(plain.master, scaled.master, sizeof plain.master);
    }
}

/* An update of 0.001 does not change a bf16 weight of 1, but it changes the f32 master weight. So
 * 1000 updates bring the weight to 0. */
static void tiny_updates_move_a_bf16_weight(Device *dev)
{
    Slots s = drawn_slots();
    StepDecision d = {.apply = 1, .update = 2, .lr = 1e-3, .grad_scale = 1};
    Sgd sgd = {0};
    for (int i = 0; i < ELEMENTS; i++) {
        s.master[i] = 1;
        s.grad[i] = 1;
    }
    Slots *far = device_put_bytes(dev, &s, sizeof s);
    StepDecision *far_d = device_put_bytes(dev, &d, sizeof d);
    UpdateRange range = {.weight = tensor_1d(far->weight, BF16, ELEMENTS),
                         .grad = tensor_1d(far->grad, F32, ELEMENTS),
                         .master = tensor_1d(far->master, F32, ELEMENTS)};
    for (int k = 0; k < 1000; k++)
        op_sgd(dev, &range, 1, far_d, &sgd);
    device_take_bytes(dev, &s, far, sizeof s);
    device_release(dev, far_d, sizeof d);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(fabs(s.master[i]) < 1e-4 &&
                    fabs(bf16_to_f32(s.weight[i]) - s.master[i]) < 1e-6);
}

static void bug_7_tiny_updates_move_a_bf16_weight_that_has_a_master(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        if (chosen(i)) tiny_updates_move_a_bf16_weight(&devices.item[i].device);
}

/* The first update sets the momentum buffer to the whole gradient; dampening begins with the second
 * update. */
static void sgd_dampens_from_the_second_update(void **state)
{
    (void)state;
    double w = 1, g = 2, buffer = (double)NAN;
    Sgd sgd = {.momentum = 0.9, .dampening = 0.5};
    StepDecision d = {.apply = 1, .update = 1, .lr = 0.1, .grad_scale = 1};
    for (int i = 0; i < 2; i++) {
        d.update = i + 1;
        if (i == 0) buffer = 0;
        UpdateRange range = {.weight = tensor_1d(&w, F64, 1),
                             .grad = tensor_1d(&g, F64, 1),
                             .slot = {tensor_1d(&buffer, F64, 1)}};
        op_sgd(&devices.item[0].device, &range, 1, &d, &sgd);
        assert_true(near(buffer, i == 0 ? 2 : 0.9 * 2 + 0.5 * 2));
        assert_true(near(w, i == 0 ? 0.8 : 0.8 - 0.28));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_decisions_clip_gradients_and_count_steps),
        cmocka_unit_test(gradient_allreduce_op_sum_adds_the_gradients_of_ranks),
        cmocka_unit_test(bug_10_11_42_a_skipped_step_does_not_affect_the_next_step),
        cmocka_unit_test(the_loss_scale_follows_recorded_traces_of_deepspeed),
        cmocka_unit_test(skipped_updates_change_no_bit_of_weights_and_states),
        cmocka_unit_test(bug_8_runs_with_and_without_loss_scale_have_the_same_bits),
        cmocka_unit_test(bug_7_tiny_updates_move_a_bf16_weight_that_has_a_master),
        cmocka_unit_test(sgd_dampens_from_the_second_update),
    };
    return cmocka_run_group_tests_name("end of a step", tests, devices_setup, devices_teardown);
}
