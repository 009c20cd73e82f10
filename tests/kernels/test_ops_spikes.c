/* test_ops_spikes.c -- tests of the decision on a step whose loss is a spike, against a median that
 * is computed by sorting. */
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the oracle -------------------------------------------------------------------------------
 */

enum { MOST_STEPS = 400 };

/* The losses of all updates so far, and the counts of a run. */
typedef struct {
    double loss[MOST_STEPS];
    int64_t n, spikes, in_row, skipped, skipped_tokens;
} History;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sorted_middle(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}

/* Returns whether a loss is a spike after this history; if it is, sets *median and *deviation. */
static bool is_spike(const History *h, double loss, double deviations, double *median,
                     double *deviation)
{
    double last[LOSS_WINDOW];
    int64_t n = h->n < LOSS_WINDOW ? h->n : LOSS_WINDOW;
    if (deviations == 0 || n < LOSS_WINDOW_LEAST) return false;
    memcpy(last, h->loss + h->n - n, (size_t)n * sizeof *last);
    double middle = sorted_middle(last, n);
    for (int64_t i = 0; i < n; i++)
        last[i] = fabs(last[i] - middle);
    double spread = fmax(1.4826 * sorted_middle(last, n), middle / 256);
    if (loss <= middle + deviations * spread) return false;
    *median = middle;
    *deviation = spread;
    return true;
}

/* Takes a step of the oracle. Its decision must equal d. */
static void follow(History *h, double loss, bool finite, const StepConstants *constants,
                   const StepDecision *d)
{
    double median = 0, deviation = 0;
    bool spike = finite && is_spike(h, loss, constants->spike_deviations, &median, &deviation);
    bool apply = finite && !(spike && constants->skip_spikes);
    assert_int_equal(d->spike, spike);
    assert_int_equal(d->apply, apply);
    assert_true(d->median == median && d->deviation == deviation);
    h->spikes += spike;
    h->in_row = apply ? 0 : h->in_row + spike;
    h->skipped += !apply;
    h->skipped_tokens += apply ? 0 : constants->tokens;
    if (apply && isfinite(loss)) h->loss[h->n++] = loss;
}

static void same_state(const History *h, const StepState *s)
{
    assert_true(s->n_losses == h->n && s->spikes == h->spikes && s->spikes_in_row == h->in_row);
    assert_true(s->skipped == h->skipped && s->skipped_tokens == h->skipped_tokens);
    for (int64_t i = h->n > LOSS_WINDOW ? h->n - LOSS_WINDOW : 0; i < h->n; i++)
        assert_true(s->losses[i % LOSS_WINDOW] == h->loss[i]);
}

/* ---- runs --------------------------------------------------------------------------------------
 */

static StepDecision decide(Device *dev, StepState *state, double loss, double sq_norm,
                           const StepConstants *constants)
{
    StepStats stats = {.sq_norm = sq_norm, .nats = loss * 64, .targets = 64};
    StepDecision decision;
    double lr = 0.1;
    memset(&decision, 0x7f, sizeof decision);
    void *far_state = device_put_bytes(dev, state, sizeof *state);
    void *far_stats = device_put_bytes(dev, &stats, sizeof stats);
    void *far_decision = device_put_bytes(dev, &decision, sizeof decision);
    Tensor far_lr = device_put(dev, tensor_1d(&lr, F64, 1));
    op_step_decide(dev, far_state, far_stats, far_decision, far_lr, constants);
    device_take_bytes(dev, state, far_state, sizeof *state);
    device_release(dev, far_stats, sizeof stats);
    device_take_bytes(dev, &decision, far_decision, sizeof decision);
    device_drop(dev, far_lr);
    return decision;
}

/* The kinds of loss curves: noise around a falling level, hardly any noise, none, and a level that
 * rises for good in the middle. */
typedef enum { CURVE_FALLING, CURVE_QUIET, CURVE_CONSTANT, CURVE_RISING, CURVES } Curve;

static double loss_of(Curve curve, int i)
{
    double noise = drawn_normal(5 + (int)curve, i), jump = drawn_uniform(15, i);
    double level = curve == CURVE_FALLING ? 3 + 4 * exp(-i / 30.0) : 3;
    if (curve == CURVE_RISING && i >= 150) level = 9;
    double width = curve == CURVE_CONSTANT ? 0 : curve == CURVE_QUIET ? 1e-6 : 0.05;
    double loss = level + width * noise;
    if (jump < 0.02) return loss * 3;
    if (jump < 0.04) return loss * 1.045; /* a little above the smallest rise that can be a spike */
    if (jump < 0.06) return loss + 10 * width;
    return loss;
}

/* Returns the number of spikes that were found. */
static int64_t follow_curve(Device *dev, Curve curve, const StepConstants *constants, int steps)
{
    StepState s = {.loss_scale = 1};
    History h = {0};
    for (int i = 0; i < steps; i++) {
        bool finite = drawn_uniform(21, i) > 0.03;
        double loss = loss_of(curve, i);
        StepDecision d = decide(dev, &s, loss, finite ? 1 : (double)NAN, constants);
        follow(&h, loss, finite, constants, &d);
        same_state(&h, &s);
    }
    return h.spikes;
}

static StepConstants plain_constants(double deviations, bool skip)
{
    return (StepConstants){.nominal_targets = 64,
                           .samples = 4,
                           .tokens = 64,
                           .skip_nonfinite = true,
                           .spike_deviations = deviations,
                           .skip_spikes = skip};
}

/* Every device finds the spikes that the oracle finds, and has the same medians and deviations bit
 * for bit. */
static void spikes_match_an_oracle_that_finds_the_median_by_sorting(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        bool slow = devices.item[i].cuda;
        for (int curve = 0; curve < CURVES; curve++)
            for (int skip = 0; skip < 2; skip++) {
                StepConstants c = plain_constants(10, skip);
                int64_t found = follow_curve(&devices.item[i].device, (Curve)curve, &c,
                                             slow ? 200 : MOST_STEPS);
                assert_true(found > 0);
                c.spike_deviations = 0;
                found = follow_curve(&devices.item[i].device, (Curve)curve, &c, 60);
                assert_int_equal(found, 0);
            }
    }
}

/* Without a policy that skips them, spikes change nothing about the update, the learning rate or
 * the loss scale; a skipped spike changes nothing but the counts. */
static void a_spike_does_not_affect_the_update_unless_spikes_are_skipped(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        StepConstants off = plain_constants(0, false), warn = plain_constants(10, false),
                      skip = plain_constants(10, true);
        StepState a = {.loss_scale = 1}, b = a, c = a;
        for (int k = 0; k < LOSS_WINDOW_LEAST + 4; k++) {
            double loss = k == LOSS_WINDOW_LEAST ? 30 : 3;
            StepDecision x = decide(dev, &a, loss, 1, &off), y = decide(dev, &b, loss, 1, &warn),
                         z = decide(dev, &c, loss, 1, &skip);
            assert_true(x.apply == y.apply && x.update == y.update && x.lr == y.lr &&
                        x.grad_scale == y.grad_scale && x.loss == y.loss);
            assert_int_equal(y.spike, k == LOSS_WINDOW_LEAST);
            assert_int_equal(z.apply, k != LOSS_WINDOW_LEAST);
        }
        assert_true(a.updates == b.updates && c.updates == a.updates - 1 && c.skipped == 1);
        assert_true(c.spikes == 1 && c.spikes_in_row == 0 && c.skips_in_row == 0);
        assert_true(c.samples == a.samples && c.loss_seed == a.loss_seed);
    }
}

/* A loss that is not finite, with an update that the user wants nonetheless, is a spike. It never
 * joins the losses with which later losses are compared, so the next spikes are found. */
static void bug_10_a_non_finite_loss_does_not_enter_the_median(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        StepConstants constants = plain_constants(10, false);
        constants.skip_nonfinite = false;
        StepState s = {.loss_scale = 1};
        for (int k = 0; k < LOSS_WINDOW_LEAST; k++)
            decide(dev, &s, 3, 1, &constants);
        const double bad[] = {(double)NAN, (double)INFINITY, 30};
        for (int k = 0; k < 3; k++)
            assert_true(decide(dev, &s, bad[k], k < 2 ? bad[k] : 1, &constants).spike == 1);
        assert_true(s.spikes == 3 && s.n_losses == LOSS_WINDOW_LEAST + 1 && s.updates == 19);
        assert_true(decide(dev, &s, 3, 1, &constants).spike == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spikes_match_an_oracle_that_finds_the_median_by_sorting),
        cmocka_unit_test(a_spike_does_not_affect_the_update_unless_spikes_are_skipped),
        cmocka_unit_test(bug_10_a_non_finite_loss_does_not_enter_the_median),
    };
    return cmocka_run_group_tests_name("spikes", tests, devices_setup, devices_teardown);
}
