/* test_ops_step.c -- what a step's end does: the decision (clipping, learning rate, DeepSpeed's
 * dynamic loss scale against recorded traces), skipped updates, and the random numbers of
 * initialisation. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "tests/op_devices.h"
#include "tests/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static TestDevices devices;

/* ---- decision ---------------------------------------------------------------------------------
 */

static StepRules plain_rules(void)
{
    return (StepRules){
        .max_norm = 1, .nominal_targets = 64, .samples = 4, .tokens = 64, .skip_nonfinite = true};
}

static StepDecision decide(Device *dev, StepState *state, StepStats stats, const StepRules *rules)
{
    double lr[] = {0.1, 0.2, 0.3};
    StepDecision decision;
    memset(&decision, 0x7f, sizeof decision);
    op_step_decide(dev, state, &stats, &decision, tensor_1d(lr, F64, 3), rules);
    assert_true(stats.sq_norm == 0 && stats.nats == 0 && stats.targets == 0);
    return decision;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 8 * 0x1p-53 * fabs(b);
}

static void decision_clips_and_counts(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        StepRules rules = plain_rules();
        StepState s = {.loss_scale = 1};
        StepDecision d =
            decide(dev, &s, (StepStats){.sq_norm = 0.25, .nats = 128, .targets = 64}, &rules);
        assert_true(d.apply == 1 && d.update == 1 && d.lr == 0.1 && d.loss == 2 &&
                    d.loss_scale == 1);
        assert_true(near(d.grad_norm, 0.5) && near(d.grad_scale, 1));
        d = decide(dev, &s, (StepStats){.sq_norm = 16, .nats = 60, .targets = 32}, &rules);
        /* Half of the targets counted: gradients were divided by twice too much, the norm is 8 and
         * clips to 1. */
        assert_true(d.update == 2 && d.lr == 0.2 && near(d.grad_norm, 8) &&
                    near(d.loss, 60.0 / 32));
        assert_true(near(d.grad_scale, 2 * (1 / (8 + 1e-6))));
        for (int k = 0; k < 3; k++)
            d = decide(dev, &s, (StepStats){.sq_norm = 1e-8, .nats = 1, .targets = 64}, &rules);
        assert_true(d.update == 5 && d.lr == 0.3);
        assert_true(s.steps == 5 && s.updates == 5 && s.samples == 20 && s.tokens == 320 &&
                    s.skipped == 0);
        rules.max_norm = 0;
        d = decide(dev, &s, (StepStats){.sq_norm = 1e8, .nats = 1, .targets = 64}, &rules);
        assert_true(near(d.grad_scale, 1) && near(d.grad_norm, 1e4));
    }
}

/* A skip advances samples and tokens, not t nor the learning rate; the step after it is as if it
 * had not been. */
static void bug_10_11_42_a_skipped_step_leaves_no_trace(void **state)
{
    (void)state;
    Device *dev = &devices.item[0].device;
    StepRules rules = plain_rules();
    const double bad[] = {(double)NAN, (double)INFINITY};
    const StepStats good = {.sq_norm = 4, .nats = 70, .targets = 64};
    StepState alone = {.loss_scale = 1};
    StepDecision expected = decide(dev, &alone, good, &rules);
    for (int i = 0; i < 2; i++) {
        StepState s = {.loss_scale = 1};
        StepDecision d = decide(dev, &s, (StepStats){bad[i], (double)NAN, 64}, &rules);
        assert_true(d.apply == 0 && s.updates == 0 && s.skipped == 1 && s.skips_in_row == 1 &&
                    s.steps == 1);
        assert_true(s.samples == 4 && s.tokens == 64 && s.loss_scale == 1 && s.stop == 0);
        d = decide(dev, &s, good, &rules);
        assert_true(d.update == expected.update && d.lr == expected.lr &&
                    d.grad_scale == expected.grad_scale);
        assert_true(s.updates == 1 && s.skipped == 1 && s.skips_in_row == 0);
    }
    StepState s = {.loss_scale = 1};
    rules.skip_nonfinite = false;
    assert_true(decide(dev, &s, (StepStats){(double)NAN, 1, 64}, &rules).apply == 1 &&
                s.updates == 1);
}

/* Steps through '0' (fine) and '1' (overflow); writes scale/hysteresis after each, "stop" where the
 * run must end. */
static void scale_trace(char *out, size_t n, const char *overflow, double start, int64_t window,
                        int64_t hysteresis, bool consecutive)
{
    StepRules rules = plain_rules();
    rules.dynamic_scale = true;
    rules.scale_window = window;
    rules.hysteresis = hysteresis;
    rules.consecutive_hysteresis = consecutive;
    rules.min_scale = 1;
    StepState s = {.loss_scale = start, .hysteresis = hysteresis, .last_overflow = -1};
    size_t k = 0;
    out[0] = 0;
    for (const char *p = overflow; *p && k < n; p++) {
        double before = s.loss_scale;
        double sq_norm = *p == '1' ? (double)INFINITY : before * before;
        StepDecision d = decide(&devices.item[0].device, &s, (StepStats){sq_norm, 1, 64}, &rules);
        assert_true(d.loss_scale == before && d.apply == (*p == '0'));
        if (*p == '0') assert_true(near(d.grad_norm, 1));
        if (s.stop)
            k += (size_t)snprintf(out + k, n - k, "stop ");
        else
            k +=
                (size_t)snprintf(out + k, n - k, "%g/%lld ", s.loss_scale, (long long)s.hysteresis);
    }
}

static void loss_scale_moves_as_deepspeed_s(void **state)
{
    (void)state;
    char trace[512];
    scale_trace(trace, sizeof trace, "00000000", 16, 3, 2, false);
    assert_string_equal(trace, "16/2 16/2 16/2 32/2 32/2 32/2 64/2 64/2 ");
    scale_trace(trace, sizeof trace, "010000111", 16, 3, 2, false);
    assert_string_equal(trace, "16/2 16/1 16/1 16/1 16/1 32/2 32/1 16/1 8/1 ");
    scale_trace(trace, sizeof trace, "010000111", 16, 3, 2, true);
    assert_string_equal(trace, "16/2 16/1 16/2 16/2 16/2 32/2 32/1 16/1 8/1 ");
    scale_trace(trace, sizeof trace, "111", 4, 3, 1, false);
    assert_string_equal(trace, "2/1 1/1 stop ");
}

/* ---- updates ----------------------------------------------------------------------------------
 */

enum { ELEMENTS = 77 };

/* Weights and slots of one update, and their bytes before it. */
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

static void update(Device *dev, Slots *s, const StepDecision *d, bool adam)
{
    AdamW adamw = {.beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8,
                   .weight_decay = 0.1,
                   .decoupled = true,
                   .bias_correction = true};
    Sgd sgd = {.momentum = 0.9, .weight_decay = 0.1};
    Tensor w = tensor_1d(s->weight, BF16, ELEMENTS), g = tensor_1d(s->grad, F32, ELEMENTS);
    Tensor master = tensor_1d(s->master, F32, ELEMENTS), m = tensor_1d(s->slot[0], F32, ELEMENTS);
    if (adam)
        op_adamw(dev, w, g, master, m, tensor_1d(s->slot[1], F32, ELEMENTS), d, &adamw);
    else
        op_sgd(dev, w, g, master, m, d, &sgd);
}

static void skipped_updates_change_no_bit(void **state)
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

/* Gradients times 2^16 with that loss scale give the bits that they give without one, clipping
 * included. */
static void bug_8_scaled_and_unscaled_runs_are_equal(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Slots plain = drawn_slots(), scaled = plain;
        Device *dev = &devices.item[i].device;
        double sum[2] = {0, 0};
        for (int k = 0; k < ELEMENTS; k++)
            scaled.grad[k] *= 65536;
        op_sq_norm(dev, tensor_1d(&sum[0], F64, 1), tensor_1d(plain.grad, F32, ELEMENTS));
        op_sq_norm(dev, tensor_1d(&sum[1], F64, 1), tensor_1d(scaled.grad, F32, ELEMENTS));
        assert_true(sum[0] > 1); /* so that clipping has work */
        StepRules rules = plain_rules();
        StepState s = {.loss_scale = 1}, t = {.loss_scale = 65536};
        StepDecision d = decide(dev, &s, (StepStats){sum[0], 1, 64}, &rules);
        StepDecision e = decide(dev, &t, (StepStats){sum[1], 1, 64}, &rules);
        assert_true(d.grad_norm == e.grad_norm && d.grad_scale == 65536 * e.grad_scale);
        update(dev, &plain, &d, true);
        update(dev, &scaled, &e, true);
        assert_memory_equal(plain.weight, scaled.weight, sizeof plain.weight);
        assert_memory_equal(plain.master, scaled.master, sizeof plain.master);
    }
}

/* A weight of 1 in bf16 cannot take 0.001; its master can. */
static void bug_7_tiny_updates_move_a_bf16_weight(void **state)
{
    (void)state;
    Slots s = drawn_slots();
    StepDecision d = {.apply = 1, .update = 2, .lr = 1e-3, .grad_scale = 1};
    Sgd sgd = {0};
    for (int i = 0; i < ELEMENTS; i++) {
        s.master[i] = 1;
        s.grad[i] = 1;
    }
    for (int k = 0; k < 1000; k++)
        op_sgd(&devices.item[0].device, tensor_1d(s.weight, BF16, ELEMENTS),
               tensor_1d(s.grad, F32, ELEMENTS), tensor_1d(s.master, F32, ELEMENTS), NO_TENSOR, &d,
               &sgd);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(fabs(s.master[i]) < 1e-4 &&
                    fabs(bf16_to_f32(s.weight[i]) - s.master[i]) < 1e-6);
}

/* The first update of momentum takes the gradient whole: dampening begins with the second. */
static void sgd_dampens_from_the_second_update(void **state)
{
    (void)state;
    double w = 1, g = 2, buffer = (double)NAN;
    Sgd sgd = {.momentum = 0.9, .dampening = 0.5};
    StepDecision d = {.apply = 1, .update = 1, .lr = 0.1, .grad_scale = 1};
    for (int i = 0; i < 2; i++) {
        d.update = i + 1;
        if (i == 0) buffer = 0;
        op_sgd(&devices.item[0].device, tensor_1d(&w, F64, 1), tensor_1d(&g, F64, 1), NO_TENSOR,
               tensor_1d(&buffer, F64, 1), &d, &sgd);
        assert_true(near(buffer, i == 0 ? 2 : 0.9 * 2 + 0.5 * 2));
        assert_true(near(w, i == 0 ? 0.8 : 0.8 - 0.28));
    }
}

/* ---- random numbers ---------------------------------------------------------------------------
 */

static void philox_answers_its_published_vectors(void **state)
{
    (void)state;
    static const uint32_t v[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(v[i], v[i] + 4, out);
        assert_memory_equal(out, v[i] + 6, sizeof out);
    }
}

enum { NORMALS = 5003 };

/* Bits of normals 0 .. 7 of seed 42, stream 7, and a hash of the first NORMALS. */
static const uint64_t golden_normal[8] = {
    0xbff1197f79546c8d, 0x3ffd6b7f681a4e08, 0x3fdc82780285efc3, 0x3feb92114e174f39,
    0x3ff0f2232f8bafbd, 0xc000d3834d0ef3b8, 0x3ff2992b801f0b6e, 0xbfb71a5d3a98249b};
static const uint64_t golden_hash = 0x77cd9be126d2c0e4;

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static void normals_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    static double wide[NORMALS];
    static float narrow[NORMALS];
    static uint16_t half[2][NORMALS];
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        op_normal(dev, tensor_1d(wide, F64, NORMALS), 42, 7, 0, 1);
        op_normal(dev, tensor_1d(narrow, F32, NORMALS), 42, 7, 0, 1);
        op_normal(dev, tensor_1d(half[0], BF16, NORMALS), 42, 7, 0, 1);
        op_normal(dev, tensor_1d(half[1], F16, NORMALS), 42, 7, 0, 1);
        for (int k = 0; k < 8; k++) {
            uint64_t bits;
            memcpy(&bits, &wide[k], sizeof bits);
            if (bits != golden_normal[k])
                fail_msg("%s: normal %d is %a (0x%016llx)", devices.item[i].name, k, wide[k],
                         (unsigned long long)bits);
        }
        uint64_t h = hash_of(wide, sizeof wide);
        if (h != golden_hash)
            fail_msg("%s: hash 0x%016llx", devices.item[i].name, (unsigned long long)h);
        for (int k = 0; k < NORMALS; k++) {
            assert_true(narrow[k] == (float)wide[k]);
            assert_true(half[0][k] == bf16_from_f32((float)wide[k]));
            assert_true(half[1][k] == f16_from_f32((float)wide[k]));
        }
        /* Any part alone, from an odd index on, is the same part. */
        static double part[301];
        op_normal(dev, tensor_1d(part, F64, 301), 42, 7, 517, 1);
        assert_memory_equal(part, wide + 517, sizeof part);
    }
}

/* Mean, variance, fourth moment and neighbours' products within four deviations of what normals
 * give. */
static void normals_are_normal(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    double *x = must_alloc(COUNT * sizeof *x), sum[4] = {0}, n = COUNT;
    op_normal(&devices.item[0].device, tensor_1d(x, F64, COUNT), 1, 2, 0, 1);
    for (int i = 0; i < COUNT; i++) {
        sum[0] += x[i];
        sum[1] += x[i] * x[i];
        sum[2] += x[i] * x[i] * x[i] * x[i];
        if (i > 0) sum[3] += x[i] * x[i - 1];
    }
    free(x);
    assert_true(fabs(sum[0] / n) < 4 / sqrt(n));
    assert_true(fabs(sum[1] / n - 1) < 4 * sqrt(2 / n));
    assert_true(fabs(sum[2] / n - 3) < 4 * sqrt(96 / n));
    assert_true(fabs(sum[3] / n) < 4 / sqrt(n));
}

static int open_devices(void **state)
{
    (void)state;
    devices_open(&devices);
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    devices_close(&devices);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decision_clips_and_counts),
        cmocka_unit_test(bug_10_11_42_a_skipped_step_leaves_no_trace),
        cmocka_unit_test(loss_scale_moves_as_deepspeed_s),
        cmocka_unit_test(skipped_updates_change_no_bit),
        cmocka_unit_test(bug_8_scaled_and_unscaled_runs_are_equal),
        cmocka_unit_test(bug_7_tiny_updates_move_a_bf16_weight),
        cmocka_unit_test(sgd_dampens_from_the_second_update),
        cmocka_unit_test(philox_answers_its_published_vectors),
        cmocka_unit_test(normals_have_the_same_bits_everywhere),
        cmocka_unit_test(normals_are_normal),
    };
    return cmocka_run_group_tests_name("end of a step", tests, open_devices, close_devices);
}
