/* test_recompute.c -- tests that recomputing activations for backward changes no bit of loss or
 * gradients in any variant of the model, and that the memory used equals the plan. */
#include "model/core/check.h"
#include "model/generate.h"
#include "parallel/pipeline/pipeline.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/support.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const DType all_dtypes[] = {F64, F32, BF16, F16};
static const char *const policy_name[] = {"none", "selective", "full"};
/* All combinations of the options of a block; tied models and others have different biases. */
enum { VARIANTS = 2 * 3 * 2 * 2 * 2 * 2 * 2 };

static GptShape variant(int i)
{
    static const ActivationKind activations[] = {ACTIVATION_GELU, ACTIVATION_RELU2,
                                                 ACTIVATION_SWIGLU};
    GptShape s = fixture_shape();
    s.norm.kind = i % 2 ? NORM_RMSNORM : NORM_LAYERNORM;
    fixture_set_biases(&s, i / 2 % 2 + 2 * (i / 32 % 2));
    s.qk_norm = i / 4 % 2;
    s.position = i / 8 % 2 ? POSITION_ROPE : POSITION_LEARNED;
    s.G = i / 16 % 2 ? 2 : 4;
    s.tied = i / 32 % 2;
    s.activation = activations[i / 64];
    s.head_chunk = 8; /* else the head would need more scratch than the blocks */
    return s;
}

/* ---- recompute changes no bit ---------------------------------------------------------------- */

/* The loss of two micro-batches, and the sum of their gradients. */
typedef struct {
    double loss;
    unsigned char *gradients;
    size_t bytes;
} Result;

/* Checks that the model has used exactly the planned bytes, in a training step or an evaluation. */
static void check_plan(const Fixture *f, const Gpt *gpt, GptMode mode)
{
    const GptShape *s = &f->layers.shape;
    GptBytes plan = gpt_bytes(&f->layers, NULL, f->B, f->T, mode), used = model_used(gpt);
    if (plan.scratch != used.scratch || plan.activations != used.activations ||
        plan.angles != used.angles)
        fail_msg("%s, %s, %s: planned %zu, %zu, %zu bytes and used %zu, %zu, %zu",
                 dtype_name(s->dtype), policy_name[s->recompute],
                 mode == GPT_TRAIN ? "training" : "evaluation", plan.activations, plan.scratch,
                 plan.angles, used.activations, used.scratch, used.angles);
}

static GptBatch first_batch(void *context, const Action *action)
{
    (void)action;
    return ((Fixture *)context)->batch;
}

/* Checks the memory plans of a model that only evaluates, and of a decoder. */
static void check_other_plans(Fixture *f)
{
    Gpt *gpt = gpt_create(&f->dev, &f->layers, f->params, &f->tp, f->B, f->T, GPT_EVALUATE, NULL);
    StepStats *stats = device_alloc(&f->dev, sizeof *stats, "stats");
    Stage stage = gpt_stage(gpt);
    gpt_connect(gpt, first_batch, f, stats, NULL);
    f->params->step_begin(f->params, NULL, 0);
    pipeline_run(NULL, &stage, &(Action){.kind = ACT_EVALUATE}, 1, NULL);
    check_plan(f, gpt, GPT_EVALUATE);
    gpt_destroy(gpt);
    device_release(&f->dev, stats, sizeof *stats);
    Decoder *decoder = decoder_create(&f->dev, &f->layers, f->params, &f->tp, NULL, f->T);
    size_t held = decoder_used(decoder);
    decoder_feed(decoder, f->tokens, f->T);
    assert_int_equal(decoder_used(decoder), decoder_bytes(&f->layers, f->T));
    assert_true(held < decoder_used(decoder)); /* decoder_used counts the pass, too */
    decoder_destroy(decoder);
    f->params->step_end(f->params);
}

/* Runs two micro-batches with three threads; before each, fills activations and scratch with NaN.
 */
static Result run(const GptShape *shape, RecomputePolicy policy)
{
    Fixture f;
    GptShape s = *shape;
    s.recompute = policy;
    fixture_open(&f, &s, 3, 7, 2, 3, 0);
    f.poison = true;
    Result r = {.loss = fixture_backward(&f)};
    check_plan(&f, f.gpt, GPT_TRAIN);
    r.gradients = fixture_gradients(&f, &r.bytes);
    /* These plans do not depend on the policy, so one check is enough. */
    if (policy == RECOMPUTE_NONE) check_other_plans(&f);
    fixture_close(&f);
    return r;
}

static void check_policies(const GptShape *s, int what)
{
    Result none = run(s, RECOMPUTE_NONE);
    for (RecomputePolicy p = RECOMPUTE_SELECTIVE; p <= RECOMPUTE_FULL; p++) {
        Result r = run(s, p);
        assert_int_equal(r.bytes, none.bytes);
        if (memcmp(&r.loss, &none.loss, sizeof r.loss) != 0)
            fail_msg("variant %d, %s, %s: losses %.17g and %.17g", what, dtype_name(s->dtype),
                     policy_name[p], r.loss, none.loss);
        for (size_t i = 0; i < r.bytes; i++)
            if (r.gradients[i] != none.gradients[i])
                fail_msg("variant %d, %s, %s: gradients differ from byte %zu of %zu", what,
                         dtype_name(s->dtype), policy_name[p], i, r.bytes);
        free(r.gradients);
    }
    free(none.gradients);
}

/* Returns whether to test fewer variants, because the device may be emulated (TEST_DEVICE) or the
 * program runs under a sanitizer (TEST_SAMPLE), which is slow. Rows are then narrower, and every
 * seventh variant is tested, which covers every pair of options. If both are set, every 29th, which
 * covers every option and kernel. TEST_EVERY=N: every N-th instead. The first varies (turns.h). */
static bool thinned(void)
{
    return getenv("TEST_DEVICE") != NULL || getenv("TEST_SAMPLE") != NULL;
}

static bool thinned_twice(void)
{
    return getenv("TEST_DEVICE") != NULL && getenv("TEST_SAMPLE") != NULL;
}

static int variant_stride(void)
{
    if (getenv("TEST_EVERY") != NULL) return (int)turns_every(1);
    return thinned_twice() ? 29 : thinned() ? 7 : 1;
}

/* Returns whether to test shape n in this type: on a named device only in one type, and never in
 * f64, which only the CPU supports. */
static bool asked_in(int n, DType dtype)
{
    return getenv("TEST_DEVICE") == NULL || dtype == all_dtypes[1 + n % 3];
}

/* Bug 53 of tests/README.md: recompute must not change a bit. */
static void test_bug_53_recompute_changes_no_bit(void **state)
{
    (void)state;
    int stride = variant_stride();
    for (int i = (int)turns_first(stride); i < VARIANTS; i += stride) {
        for (int t = 0; t < 4; t++) {
            if (!asked_in(i, all_dtypes[t])) continue;
            GptShape s = fixture_with_dtype(variant(i), all_dtypes[t]);
            check_policies(&s, i);
        }
    }
}

/* Tests heads whose total width is not the hidden size, with one kv head; and many wide rows. */
static void test_bug_53_recompute_changes_no_bit_with_other_sizes(void **state)
{
    (void)state;
    int every = thinned_twice() ? 6 : thinned() ? 3 : (int)turns_every(1);
    for (int t = 0; t < 4; t++) {
        GptShape mqa = fixture_with_dtype(fixture_mqa_shape(), all_dtypes[t]);
        mqa.qk_norm = true;
        if (asked_in(0, all_dtypes[t])) check_policies(&mqa, VARIANTS);
        /* Test both norms with all other options; a thinned run tests some of the six models. */
        for (int i = (int)turns_first(every); i < 6; i += every) {
            GptShape wide = fixture_with_dtype(variant(30 + i % 2 + 64 * (i / 2)), all_dtypes[t]);
            wide.C = 132;
            wide.D = 34;
            wide.F = thinned() ? 261 : 5001;
            if (asked_in(1 + i / 3, all_dtypes[t])) check_policies(&wide, VARIANTS + 1 + i);
        }
    }
}

/* ---- fused and separate ops have the same bits ----------------------------------------------- */

/* Return a host tensor (rows, cols) of random numbers around `mean`, or of zeros. */
static Tensor drawn(DType dtype, int64_t rows, int64_t cols, uint64_t stream, double mean)
{
    Tensor t = tensor_2d(must_calloc((size_t)(rows * cols), dtype_size(dtype)), dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        dtype_set(dtype, t.data, i, mean + drawn_normal(stream, i));
    return t;
}

static Tensor zeros(DType dtype, int64_t rows, int64_t cols)
{
    return tensor_2d(must_calloc((size_t)(rows * cols), dtype_size(dtype)), dtype, rows, cols);
}

/* Fails unless `one` and `two`, both on the device, have the same bits. Frees them. */
static void same_bits(TestDevice *d, const char *what, Tensor one, Tensor two, int64_t cols)
{
    Tensor a = zeros(one.dtype, tensor_rows(one), tensor_cols(one)),
           b = zeros(one.dtype, tensor_rows(one), tensor_cols(one));
    device_take(&d->device, a, one);
    device_take(&d->device, b, two);
    if (memcmp(a.data, b.data, tensor_bytes(a)) != 0)
        fail_msg("%s, %s, %lld columns: %s differs", d->name, dtype_name(one.dtype),
                 (long long)cols, what);
    free(a.data);
    free(b.data);
}

static Tensor put(TestDevice *d, Tensor host)
{
    Tensor t = device_put(&d->device, host);
    free(host.data);
    return t;
}

/* Residual add and norm in one op: y and stats must be those of the norm of the written sum. */
static void check_fused_norm(TestDevice *d, DType dtype, int64_t C, NormKind kind)
{
    Device *dev = &d->device;
    enum { N = 5 };
    DType compute = dtype_compute(dtype);
    Norm norm = {.kind = kind, .epsilon = 1e-5};
    Tensor x = put(d, drawn(dtype, N, C, 1, 0.5)), a = put(d, drawn(dtype, N, C, 2, 0));
    Tensor bias = put(d, drawn(dtype, 1, C, 3, 0)), w = put(d, drawn(dtype, 1, C, 4, 1));
    Tensor b = put(d, drawn(dtype, 1, C, 5, 0)), sum = put(d, zeros(dtype, N, C));
    Tensor y[2] = {put(d, zeros(dtype, N, C)), put(d, zeros(dtype, N, C))};
    Tensor stats[2] = {put(d, zeros(compute, N, 2)), put(d, zeros(compute, N, 2))};
    Tensor beta = kind == NORM_LAYERNORM ? tensor_flat(b) : NO_TENSOR;
    op_residual_norm_forward(dev, sum, y[0], stats[0], x, a, tensor_flat(bias), tensor_flat(w),
                             beta, norm);
    op_norm_forward(dev, y[1], stats[1], sum, tensor_flat(w), beta, norm);
    same_bits(d, "the norm beside its residual", y[0], y[1], C);
    same_bits(d, "its statistics", stats[0], stats[1], C);
    Tensor rest[] = {x, a, bias, w, b, sum};
    for (int i = 0; i < 6; i++)
        device_drop(dev, rest[i]);
}

/* Product and GELU in one op: y must be GELU of the rounded `pre` that the op wrote. */
static void check_fused_gelu(TestDevice *d, DType dtype, int64_t F)
{
    Device *dev = &d->device;
    enum { N = 16, C = 40 };
    Tensor x = put(d, drawn(dtype, N, C, 6, 0)), w = put(d, drawn(dtype, F, C, 7, 0));
    Tensor bias = put(d, drawn(dtype, 1, F, 8, 0)), pre = put(d, zeros(dtype, N, F));
    Tensor y[2] = {put(d, zeros(dtype, N, F)), put(d, zeros(dtype, N, F))};
    op_linear_forward(dev, y[0], x, w, tensor_flat(bias), EPILOGUE_GELU, pre);
    op_activation_forward(dev, y[1], pre, ACTIVATION_GELU);
    same_bits(d, "GELU beside its product", y[0], y[1], F);
    Tensor rest[] = {x, w, bias, pre};
    for (int i = 0; i < 4; i++)
        device_drop(dev, rest[i]);
}

/* ops.h promises equal bits, and selective recompute relies on it. */
static void test_fused_ops_give_the_same_bits_as_separate_ops(void **state)
{
    (void)state;
    static const int64_t cols[] = {1, 7, 64, 136, 768, 1030, 3072};
    for (int i = 0; i < devices.count * 4 * 7; i++) {
        TestDevice *d = &devices.item[i / 28];
        DType dtype = all_dtypes[i / 7 % 4];
        if (!device_has_storage(&d->device, dtype)) continue;
        check_fused_norm(d, dtype, cols[i % 7], NORM_LAYERNORM);
        check_fused_norm(d, dtype, cols[i % 7], NORM_RMSNORM);
        check_fused_gelu(d, dtype, cols[i % 7]);
    }
}

/* ---- recompute saves memory ------------------------------------------------------------------ */

static size_t padded(int64_t elements, DType dtype)
{
    size_t bytes = (size_t)elements * dtype_size(dtype);
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Returns the bytes per block that selective recompute does not keep: norm outputs and statistics,
 * and the activation. */
static size_t not_kept(const GptShape *s, int64_t N)
{
    DType compute = dtype_compute(s->dtype);
    size_t bytes = 2 * padded(N * s->C, s->dtype) + 2 * padded(2 * N, compute);
    bytes += padded(N * s->F, s->dtype);
    if (!s->qk_norm) return bytes;
    return bytes + padded(N * (s->H + s->G) * s->D, s->dtype) + padded(2 * N * s->H, compute) +
           padded(2 * N * s->G, compute);
}

/* Returns the bytes of all layers on one rank. */
static GptBytes bytes_of(const GptShape *s, int64_t B, int64_t T, GptMode mode)
{
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, s, &LAYERS_WHOLE);
    GptBytes bytes = gpt_bytes(&layers, NULL, B, T, mode);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return bytes;
}

/* Selective recompute must save exactly what it computes again; full recompute must save more. */
static void test_selective_recompute_uses_less_memory_than_none_and_more_than_full(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * VARIANTS; i++) {
        GptBytes bytes[3];
        GptShape s = fixture_with_dtype(variant(i / 4), all_dtypes[i % 4]);
        for (RecomputePolicy p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++) {
            s.recompute = p;
            bytes[p] = bytes_of(&s, 3, 7, GPT_TRAIN);
        }
        assert_int_equal(bytes[RECOMPUTE_NONE].activations - bytes[RECOMPUTE_SELECTIVE].activations,
                         (size_t)s.L * not_kept(&s, 21));
        assert_true(bytes[RECOMPUTE_FULL].activations < bytes[RECOMPUTE_SELECTIVE].activations);
        /* Recomputed fields take memory in scratch only once, not once per block. */
        assert_true(bytes[RECOMPUTE_SELECTIVE].scratch <=
                    bytes[RECOMPUTE_NONE].scratch + not_kept(&s, 21));
        assert_true(bytes[RECOMPUTE_FULL].scratch >= bytes[RECOMPUTE_SELECTIVE].scratch);
    }
}

/* Checks activations plus scratch of GPT-2 124M; in evaluation they do not depend on the policy. */
static void test_memory_of_gpt2_124m_has_the_expected_size(void **state)
{
    (void)state;
    size_t total[3], evaluated[3];
    GptShape s = fixture_gpt2_shape();
    for (RecomputePolicy p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++) {
        s.recompute = p;
        GptBytes train = bytes_of(&s, 4, 1024, GPT_TRAIN),
                 evaluate = bytes_of(&s, 4, 1024, GPT_EVALUATE);
        total[p] = train.activations + train.scratch;
        evaluated[p] = evaluate.activations + evaluate.scratch;
    }
    assert_true(total[RECOMPUTE_FULL] < total[RECOMPUTE_SELECTIVE]);
    assert_true(total[RECOMPUTE_SELECTIVE] < total[RECOMPUTE_NONE]);
    assert_int_equal(evaluated[RECOMPUTE_SELECTIVE], evaluated[RECOMPUTE_NONE]);
    assert_int_equal(evaluated[RECOMPUTE_FULL], evaluated[RECOMPUTE_NONE]);
}

/* ---- recompute repeats the right ops --------------------------------------------------------- */

/* Counts the calls of each op in a backward pass over one micro-batch. */
static void count_calls(RecomputePolicy policy, Profile *profile)
{
    Fixture f;
    GptShape s = fixture_with_dtype(fixture_shape(), F32);
    s.recompute = policy;
    *profile = (Profile){.mark = must_calloc(1024, sizeof(OpMark)), .max_marks = 1024};
    fixture_open(&f, &s, 3, 7, 1, 1, 0);
    f.dev.profile = profile;
    fixture_backward(&f);
    check_plan(&f, f.gpt, GPT_TRAIN); /* with this shape the head needs the most scratch */
    f.dev.profile = NULL;
    profile_close(&f.dev, profile);
    free(profile->mark);
    fixture_close(&f);
}

/* Full recompute must call the ops of forward again, up to the down product; selective recompute
 * only the norms and the activation. */
static void test_backward_repeats_only_the_ops_that_the_policy_requires(void **state)
{
    (void)state;
    Profile none, selective, full;
    int64_t L = fixture_shape().L;
    count_calls(RECOMPUTE_NONE, &none);
    count_calls(RECOMPUTE_SELECTIVE, &selective);
    count_calls(RECOMPUTE_FULL, &full);
    assert_int_equal(none.calls[OP_attention_forward], L);
    assert_int_equal(selective.calls[OP_attention_forward], L);
    assert_int_equal(full.calls[OP_attention_forward], 2 * L);
    assert_int_equal(selective.calls[OP_linear_forward], none.calls[OP_linear_forward]);
    assert_int_equal(full.calls[OP_linear_forward], none.calls[OP_linear_forward] + 2 * L);
    assert_int_equal(full.calls[OP_linear_residual_forward], 3 * L);
    assert_int_equal(selective.calls[OP_norm_forward], none.calls[OP_norm_forward] + 2 * L);
    assert_int_equal(selective.calls[OP_activation_forward], none.calls[OP_activation_forward] + L);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_53_recompute_changes_no_bit),
        cmocka_unit_test(test_bug_53_recompute_changes_no_bit_with_other_sizes),
        cmocka_unit_test_setup_teardown(test_fused_ops_give_the_same_bits_as_separate_ops,
                                        devices_setup, devices_teardown),
        cmocka_unit_test(test_selective_recompute_uses_less_memory_than_none_and_more_than_full),
        cmocka_unit_test(test_memory_of_gpt2_124m_has_the_expected_size),
        cmocka_unit_test(test_backward_repeats_only_the_ops_that_the_policy_requires),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
