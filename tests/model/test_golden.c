/* test_golden.c -- compares the model with PyTorch (scripts/make_golden.py): logits, every
 * gradient, twenty training losses.
 *
 * The bounds depend on the tensor: |difference| <= tolerance * max(rms of the tensor, 1e-6 of the
 * global gradient rms), and at least 32 roundings of that global rms. The latter is for gradients
 * that are zero in theory (the key bias without rotary positions), where only rounding of cancelled
 * terms remains. The tolerance is 1e-9 in f64, and 1e-10 for logits. In f32 a gradient passes
 * through about thirty sums of up to a hundred terms, each with a rounding of 6e-8 of the larger
 * terms, so 1e-4 of the rms bounds the worst element; losses are means and stay within 2e-6. */
#include "model/core/check.h"
#include "tests/support/model/golden.h"
#include "tests/support/support.h"
#include "tests/support/trainer/own_training.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 20 };

static void load_weights(Fixture *f, const Golden *g)
{
    for (int p = 0; p < f->table.n_params; p++) {
        Tensor w = fixture_fetch(f, fixture_weight(f, p));
        Tensor x = golden_tensor(g, f->table.param[p].name);
        assert_int_equal(tensor_count(w), tensor_count(x));
        for (int64_t i = 0; i < tensor_count(w); i++)
            dtype_set(w.dtype, w.data, i, ((double *)x.data)[i]);
        fixture_store(f, fixture_weight(f, p), w);
        free(w.data);
    }
}

/* Loads batch `step` of the recorded tokens (STEPS, B, T+1). */
static void set_batch(Fixture *f, const Golden *g, int64_t step)
{
    Tensor tokens = golden_tensor(g, "tokens");
    double *at = (double *)tokens.data + step * f->B * (f->T + 1);
    for (int64_t b = 0; b < f->B; b++) {
        for (int64_t t = 0; t < f->T; t++) {
            f->tokens[b * f->T + t] = (int32_t)at[b * (f->T + 1) + t];
            f->targets[b * f->T + t] = (int32_t)at[b * (f->T + 1) + t + 1];
        }
    }
}

static void open_golden(const char *name, const char *backend, bool f64, RecomputePolicy recompute,
                        Golden **g, const Config **c, Fixture *f)
{
    *g = golden_open(name);
    *c = golden_config(*g, f64);
    GptShape shape = gpt_shape(*c, 1);
    shape.recompute = recompute;
    fixture_open_on(f, backend, &shape, 3, 16, 1, 2, 0);
    load_weights(f, *g);
    set_batch(f, *g, 0);
}

static void close_golden(Golden *g, const Config *c, Fixture *f)
{
    fixture_close(f);
    config_free(c);
    golden_close(g);
}

static void check_tensor(const char *name, Tensor got, int64_t ld, Tensor want, double global,
                         double tolerance)
{
    int64_t n = tensor_count(want), cols = tensor_cols(want);
    double *x = want.data, rms = 0;
    for (int64_t i = 0; i < n; i++)
        rms += x[i] * x[i] / (double)n;
    double bound = tolerance * fmax(sqrt(rms), 1e-6 * global);
    bound = fmax(bound, 32 * dtype_info[got.dtype].roundoff * global);
    for (int64_t i = 0; i < n; i++) {
        double y = dtype_get(got.dtype, got.data, i / cols * ld + i % cols);
        if (!(fabs(y - x[i]) <= bound))
            fail_msg("%s[%lld]: %.17g, PyTorch says %.17g, bound %g", name, (long long)i, y, x[i],
                     bound);
    }
}

static void check_forward_backward(const char *name, const char *backend, bool f64)
{
    Golden *g;
    const Config *c;
    Fixture f;
    double tolerance = f64 ? 1e-9 : 1e-4, global = 0;
    int64_t count = 0;
    open_golden(name, backend, f64, RECOMPUTE_NONE, &g, &c, &f);
    const GptShape *s = &f.layers.shape;
    Tensor logits =
        tensor_2d(must_calloc((size_t)(48 * s->Vp), dtype_size(s->dtype)), s->dtype, 48, s->Vp);
    fixture_logits(&f, 0, logits);
    check_tensor("logits", logits, s->Vp, golden_tensor(g, "logits"), 0, f64 ? 1e-10 : tolerance);
    double loss = fixture_backward(&f), want = *(double *)golden_tensor(g, "loss").data;
    assert_true(fabs(loss - want) <= (f64 ? 1e-12 : 2e-6) * fabs(want));
    for (int pass = 0; pass < 2; pass++) {
        for (int p = 0; p < f.table.n_params; p++) {
            char key[80];
            snprintf(key, sizeof key, "%s.grad", f.table.param[p].name);
            Tensor x = golden_tensor(g, key), y = fixture_fetch(&f, fixture_grad(&f, p));
            for (int64_t i = 0; pass == 0 && i < tensor_count(x); i++, count++)
                global += ((double *)x.data)[i] * ((double *)x.data)[i];
            if (pass == 1) check_tensor(key, y, y.ld, x, sqrt(global / (double)count), tolerance);
            free(y.data);
        }
    }
    free(logits.data);
    close_golden(g, c, &f);
}

/* Returns how many of the recorded steps to make. Later steps run the same code as the first ones,
 * so a few are enough in slow builds: under a sanitizer, or with threads in another order
 * (TEST_SAMPLE). */
static int steps_made(void)
{
    return getenv("TEST_SAMPLE") != NULL ? 3 : STEPS;
}

/* Makes the recorded steps with norm, decision and optimizer, and compares the losses. */
static void check_training(const char *name, const char *backend, bool f64,
                           RecomputePolicy recompute)
{
    Golden *g;
    const Config *c;
    Fixture f;
    OwnTraining training;
    double tolerance = f64 ? 1e-9 : 2e-5;
    open_golden(name, backend, f64, recompute, &g, &c, &f);
    own_training_open(&training, &f, c, STEPS);
    double *losses = golden_tensor(g, "train.losses").data,
           *norms = golden_tensor(g, "train.norms").data;
    for (int step = 0, n = steps_made(); step < n; step++) {
        set_batch(&f, g, step);
        StepDecision decision = own_training_step(&training);
        if (!(fabs(decision.loss - losses[step]) <= tolerance * losses[step]))
            fail_msg("%s: loss of step %d is %.17g, PyTorch says %.17g", name, step, decision.loss,
                     losses[step]);
        if (!(fabs(decision.grad_norm - norms[step]) <= 10 * tolerance * norms[step]))
            fail_msg("%s: norm of step %d is %.17g, PyTorch says %.17g", name, step,
                     decision.grad_norm, norms[step]);
    }
    own_training_close(&training);
    close_golden(g, c, &f);
}

static const char *const models[] = {"gpt2",   "llama", "relu2", "llama_gqa",
                                     "llama3", "qwen2", "qwen3"};
enum { MODELS = sizeof models / sizeof *models };

static void test_logits_and_gradients_equal_pytorch_in_f64(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        check_forward_backward(models[i], "cpu", true);
}

static void test_logits_and_gradients_equal_pytorch_in_f32(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        check_forward_backward(models[i], "cpu", false);
}

static void test_twenty_losses_equal_pytorch_in_f64(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        check_training(models[i], "cpu", true, RECOMPUTE_NONE);
}

static void test_twenty_losses_equal_pytorch_in_f32(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        check_training(models[i], "cpu", false, RECOMPUTE_NONE);
}

static void test_twenty_losses_equal_pytorch_with_recompute(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (RecomputePolicy p = RECOMPUTE_SELECTIVE; p <= RECOMPUTE_FULL; p++)
            check_training(models[i], "cpu", true, p);
}

/* The CUDA backend computes in f32 and must meet the CPU's f32 bounds. With
 * TEST_EVERY=N, which is for slow builds, every N-th model is tested. */
static void test_logits_and_gradients_equal_pytorch_on_cuda(void **state)
{
    (void)state;
    cuda_needed();
    int every = (int)turns_every(1);
    for (int i = (int)turns_first(every); i < MODELS; i += every)
        check_forward_backward(models[i], "cuda", false);
}

static void test_twenty_losses_equal_pytorch_on_cuda(void **state)
{
    (void)state;
    cuda_needed();
    int every = (int)turns_every(1);
    for (int i = (int)turns_first(every); i < MODELS; i += every)
        for (RecomputePolicy p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++)
            check_training(models[i], "cuda", false, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_and_gradients_equal_pytorch_in_f64),
        cmocka_unit_test(test_logits_and_gradients_equal_pytorch_in_f32),
        cmocka_unit_test(test_twenty_losses_equal_pytorch_in_f64),
        cmocka_unit_test(test_twenty_losses_equal_pytorch_in_f32),
        cmocka_unit_test(test_twenty_losses_equal_pytorch_with_recompute),
        cmocka_unit_test(test_logits_and_gradients_equal_pytorch_on_cuda),
        cmocka_unit_test(test_twenty_losses_equal_pytorch_on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
