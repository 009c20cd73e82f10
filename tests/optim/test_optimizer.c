/* test_optimizer.c -- compares the optimizer on a store's shards with plain loops in double: update
 * rules, weight decay by group, skipped steps, masters, slots, and the gradient norm. */
#include "optim/grad_norm.h"
#include "optim/optimizer.h"

#include "model/core/check.h"
#include "tests/support/model/fake_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* Opens an optimizer over the store. *memory is its memory, filled with NaN before
 * initialisation. */
static Optimizer open_optimizer(Store *s, const Config *c, void **memory)
{
    size_t bytes = optimizer_bytes(c, &s->base).device;
    Optimizer o;
    *memory = must_alloc(bytes + 1);
    memset(*memory, 0x7f, bytes + 1);
    Arena arena = arena_over(*memory, bytes);
    optimizer_plan(&o, c, &s->base, &arena, NULL);
    assert_true(arena.used == bytes);
    optimizer_init(&o, &s->dev);
    return o;
}

static void close_optimizer(Optimizer *o, void *memory)
{
    optimizer_free(o);
    free(memory);
}

/* ---- update rules as plain loops in double --------------------------------------------------- */

static Config optimizer_config(OptimizerType type)
{
    Config c = {0};
    c.optimizer.type = type;
    c.optimizer.params.lr = 0.01;
    c.optimizer.params.betas[0] = 0.9;
    c.optimizer.params.betas[1] = 0.95;
    c.optimizer.params.eps = 1e-8;
    c.optimizer.params.weight_decay = 0.1;
    c.optimizer.params.bias_correction = true;
    c.optimizer.params.adam_w_mode = true;
    return c;
}

typedef struct {
    double w[SIZE], m[SIZE], v[SIZE];
} Plain;

static void plain_adam(Plain *p, const Config *c, int i, double g, double lr, int t)
{
    double b1 = c->optimizer.params.betas[0], b2 = c->optimizer.params.betas[1];
    double decay = i < SPLIT ? c->optimizer.params.weight_decay : 0.0;
    bool decoupled = c->optimizer.type == OPTIMIZER_ADAMW || c->optimizer.params.adam_w_mode;
    bool corrected = c->optimizer.params.bias_correction;
    if (decoupled) p->w[i] -= lr * decay * p->w[i];
    if (!decoupled) g += decay * p->w[i];
    p->m[i] = b1 * p->m[i] + (1.0 - b1) * g;
    p->v[i] = b2 * p->v[i] + (1.0 - b2) * g * g;
    double m = p->m[i] / (corrected ? 1.0 - pow(b1, t) : 1.0);
    double v = p->v[i] / (corrected ? 1.0 - pow(b2, t) : 1.0);
    p->w[i] -= lr * m / (sqrt(v) + c->optimizer.params.eps);
}

static void plain_sgd(Plain *p, const Config *c, int i, double g, double lr, int t)
{
    double momentum = c->optimizer.params.momentum;
    g += (i < SPLIT ? c->optimizer.params.weight_decay : 0.0) * p->w[i];
    p->m[i] = t == 1 ? g : momentum * p->m[i] + (1.0 - c->optimizer.params.dampening) * g;
    double direction = c->optimizer.params.nesterov ? g + momentum * p->m[i] : p->m[i];
    if (momentum == 0.0) direction = g;
    p->w[i] -= lr * direction;
}

/* Makes six steps, the third of which is skipped, with the optimizer and with plain loops. Weights
 * (or masters) must agree to `tolerance`. */
static void check_rule(const Config *c, DType storage, double tolerance)
{
    Store *s = store_open(storage, dtype_compute(storage));
    void *memory;
    Optimizer o = open_optimizer(s, c, &memory);
    Plain plain[UNITS] = {0};
    int update = 0;
    for (int u = 0; u < UNITS; u++)
        for (int i = 0; i < SIZE; i++)
            plain[u].w[i] = dtype_get(storage, s->weight[u].data, i);
    for (int step = 0; step < 6; step++) {
        bool apply = step != 2;
        double lr = 0.01 * (1 + step), scale = 0.25 * (1 + step % 3);
        StepDecision d = {
            .apply = apply, .update = apply ? ++update : 0, .lr = lr, .grad_scale = scale};
        for (int u = 0; u < UNITS; u++) {
            fill_numbers(s->grad[u], (uint64_t)(10 + 2 * step + u), 2.0);
            for (int i = 0; apply && i < SIZE; i++) {
                double g = scale * dtype_get(s->grad[u].dtype, s->grad[u].data, i);
                bool sgd = c->optimizer.type == OPTIMIZER_SGD;
                (sgd ? plain_sgd : plain_adam)(&plain[u], c, i, g, lr, update);
            }
        }
        optimizer_step(&o, &s->dev, &s->base, &d);
        s->n_published = 0;
    }
    for (int u = 0; u < UNITS; u++) {
        for (int i = 0; i < SIZE; i++) {
            const OptimizerShard *own = &o.shard[2 * u + (i >= SPLIT)];
            Tensor master = own->slot[SLOT_MASTER],
                   value = tensor_present(master) ? master : own->shard.weight;
            double got = dtype_get(value.dtype, value.data, i - own->shard.offset),
                   want = plain[u].w[i];
            if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
                fail_msg("%s, unit %d, element %d: %.17g, want %.17g", dtype_name(storage), u, i,
                         got, want);
            }
            if (tensor_present(master)) { /* the weight is the master, rounded once */
                uint16_t rounded;
                dtype_set(storage, &rounded, 0, got);
                assert_true(dtype_get(storage, s->weight[u].data, i) ==
                            dtype_get(storage, &rounded, 0));
            }
        }
    }
    close_optimizer(&o, memory);
    store_close(s);
}

static void check_rule_in_all_dtypes(const Config *c)
{
    check_rule(c, F64, 1e-14);
    check_rule(c, F32, 1e-6);
    check_rule(c, BF16, 1e-6);
    check_rule(c, F16, 1e-6);
}

static void test_adamw_equals_plain_loops_in_every_dtype(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.adam_w_mode = false; /* AdamW ignores this key */
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.bias_correction = false;
    check_rule_in_all_dtypes(&c);
}

static void test_adam_equals_plain_loops_in_every_dtype(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAM);
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.adam_w_mode = false; /* L2 regularisation in the gradient */
    check_rule_in_all_dtypes(&c);
}

static void test_sgd_equals_plain_loops_in_every_dtype(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_SGD);
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.momentum = 0.9;
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.nesterov = true;
    check_rule_in_all_dtypes(&c);
    c.optimizer.params.nesterov = false;
    c.optimizer.params.dampening = 0.3;
    check_rule_in_all_dtypes(&c);
}

/* ---- known bugs (tests/README.md) ------------------------------------------------------------ */

/* Makes a thousand updates far below bf16's spacing. Without an f32 master the weight would not
 * move. */
static void test_bug_7_tiny_updates_move_a_bf16_weight_that_has_a_master(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    Store *s = store_open(BF16, F32);
    void *memory;
    Optimizer o = open_optimizer(s, &c, &memory);
    double before = dtype_get(BF16, s->weight[0].data, SPLIT);
    for (int k = 1; k <= 1000; k++) {
        StepDecision d = {.apply = 1, .update = k, .lr = 1e-4, .grad_scale = 1.0};
        for (int u = 0; u < UNITS; u++)
            op_fill(&s->dev, s->grad[u], 1e-3);
        optimizer_step(&o, &s->dev, &s->base, &d);
        s->n_published = 0;
    }
    double moved = before - dtype_get(BF16, s->weight[0].data, SPLIT);
    if (fabs(moved - 0.1) > 0.003) fail_msg("moved by %.17g, want 0.1", moved);
    close_optimizer(&o, memory);
    store_close(s);
}

/* With a zero gradient only rows with weight decay change, and by exactly lr x weight_decay. */
static void test_bug_37_only_rows_with_weight_decay_change_without_gradient(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    c.optimizer.params.weight_decay = 50.0;
    Store *s = store_open(F64, F64);
    void *memory;
    Optimizer o = open_optimizer(s, &c, &memory);
    StepDecision d = {.apply = 1, .update = 1, .lr = 1e-3, .grad_scale = 1.0};
    double before[UNITS][SIZE];
    for (int u = 0; u < UNITS; u++)
        memcpy(before[u], s->weight[u].data, sizeof before[u]);
    optimizer_step(&o, &s->dev, &s->base, &d);
    for (int u = 0; u < UNITS; u++) {
        for (int i = 0; i < SIZE; i++) {
            double got = ((double *)s->weight[u].data)[i];
            double want = i < SPLIT ? before[u][i] * 0.95 : before[u][i];
            if (fabs(got - want) > 1e-15)
                fail_msg("unit %d, element %d: %.17g, want %.17g", u, i, got, want);
        }
    }
    close_optimizer(&o, memory);
    store_close(s);
}

/* Makes steps with decisions made on the device; step `bad` (-1: none) has non-finite gradients. */
static void run_with_skip(Store *s, int bad)
{
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    void *memory;
    Optimizer o = open_optimizer(s, &c, &memory);
    GradNorm norm = grad_norm_create(&s->base);
    StepConstants constants = {
        .max_norm = 1.0, .nominal_targets = 8.0, .samples = 1, .tokens = 8, .skip_nonfinite = true};
    StepState st = {.loss_scale = 1.0, .last_overflow = -1};
    StepDecision d;
    double lr[] = {0.1, 0.2, 0.3};
    for (int step = 0, good = 0; good < 3; step++) {
        StepStats stats = {.nats = 8.0, .targets = 8.0};
        for (int u = 0; u < UNITS; u++)
            fill_numbers(s->grad[u], (uint64_t)(20 + good), 1.0);
        if (step == bad) dtype_set(s->grad[1].dtype, s->grad[1].data, 5, NAN);
        grad_norm_add(&norm, &s->dev, &stats);
        op_step_decide(&s->dev, &st, &stats, &d, tensor_1d(lr, F64, 3), &constants);
        optimizer_step(&o, &s->dev, &s->base, &d);
        s->n_published = 0;
        good += step != bad;
    }
    assert_int_equal(st.skipped, bad >= 0);
    grad_norm_free(&norm);
    close_optimizer(&o, memory);
}

static void test_bug_42_a_skipped_step_does_not_advance_bias_correction(void **state)
{
    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        Store *a = store_open(F32, F32), *b = store_open(F32, F32);
        run_with_skip(a, -1);
        run_with_skip(b, bad);
        for (int u = 0; u < UNITS; u++) {
            const float *x = a->weight[u].data, *y = b->weight[u].data;
            for (int i = 0; i < SIZE; i++) {
                if (f32_bits(x[i]) != f32_bits(y[i])) {
                    fail_msg("skip at %d, unit %d, element %d: %a, want %a", bad, u, i,
                             (double)y[i], (double)x[i]);
                }
            }
        }
        store_close(a);
        store_close(b);
    }
}

/* ---- published units, slots and the norm ----------------------------------------------------- */

static void test_a_step_publishes_every_unit_once_and_in_order(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    Store *s = store_open(BF16, F32);
    void *memory;
    Optimizer o = open_optimizer(s, &c, &memory);
    StepDecision d = {.apply = 0};
    optimizer_step(&o, &s->dev, &s->base, &d);
    assert_int_equal(s->n_published, UNITS);
    for (int u = 0; u < UNITS; u++)
        assert_int_equal(s->published[u], u);
    close_optimizer(&o, memory);
    store_close(s);
}

/* The last unit's first weight when unit 0 was published; set by note_publish. */
static float last_then;
static void note_publish(ParamStore *base, int unit, Event *updated)
{
    if (unit == 0 && updated == NULL) last_then = *(float *)((Store *)base)->weight[UNITS - 1].data;
}

/* Only if publishing overlaps with updates is the last unit unchanged when unit 0 is published. */
static void test_units_are_updated_one_by_one_only_if_publishing_overlaps(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    StepDecision d = {.apply = 1, .update = 1, .lr = 0.1, .grad_scale = 1};
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        Store *s = store_open(F32, F32);
        void *memory;
        Optimizer o = open_optimizer(s, &c, &memory);
        float *last = s->weight[UNITS - 1].data, before = *last;
        s->base.publish_overlaps = overlaps;
        s->base.publish = note_publish;
        optimizer_step(&o, &s->dev, &s->base, &d);
        assert_true(*last != before && (last_then == before) == overlaps);
        close_optimizer(&o, memory);
        store_close(s);
    }
}

static void check_slots(OptimizerType type, double momentum, DType storage, const char *want)
{
    Config c = optimizer_config(type);
    c.optimizer.params.momentum = momentum;
    Store *s = store_open(storage, F32);
    void *memory;
    Optimizer o = open_optimizer(s, &c, &memory);
    char got[128] = "";
    for (int slot = 0; slot < SLOT_MAX; slot++) {
        if (!optimizer_has_slot(&c, storage, slot)) continue;
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ",
                 optimizer_slot_name(o.rule, slot));
        for (int k = 0; k < o.n_shards; k++) { /* element = 1000 x shard + index */
            float *x = o.shard[k].slot[slot].data;
            for (int i = 0; i < o.shard[k].shard.count; i++)
                x[i] = (float)(1000 * k + i);
        }
        Shard part = o.shard[1].shard; /* a PURPOSE_COUNT shard may be a part of it */
        part.offset += 2;
        part.count -= 3;
        Tensor view = optimizer_slot_of(&o, &part, slot);
        assert_true(view.ndim == 1 && view.dim[0] == part.count);
        assert_true(((float *)view.data)[0] == 1002.0f);
    }
    assert_string_equal(got, want);
    close_optimizer(&o, memory);
    store_close(s);
}

static void test_each_optimizer_and_dtype_has_the_expected_slots(void **state)
{
    (void)state;
    check_slots(OPTIMIZER_ADAMW, 0.0, F32, "exp_avg exp_avg_sq ");
    check_slots(OPTIMIZER_ADAM, 0.0, BF16, "master exp_avg exp_avg_sq ");
    check_slots(OPTIMIZER_SGD, 0.0, F32, "");
    check_slots(OPTIMIZER_SGD, 0.9, F16, "master momentum ");
}

/* The measured bytes must be those of the slots. (open_optimizer asserts that the real layout takes
 * the same number.) */
static void test_optimizer_bytes_counts_exactly_the_slots(void **state)
{
    (void)state;
    Config c = optimizer_config(OPTIMIZER_ADAMW);
    Store *s = store_open(BF16, F32);
    assert_true(optimizer_bytes(&c, &s->base).device == 3 * sizeof(float) * UNITS * SIZE);
    store_close(s);
}

static void test_bug_13_14_the_norm_counts_each_shard_once(void **state)
{
    (void)state;
    Store *s = store_open(F32, F32);
    GradNorm norm = grad_norm_create(&s->base);
    StepStats stats = {.sq_norm = 100.0};
    for (int u = 0; u < UNITS; u++)
        op_fill(&s->dev, s->grad[u], 2.0);
    grad_norm_add(&norm, &s->dev, &stats);
    assert_true(stats.sq_norm == 100.0 + 4.0 * (SPLIT + 2 * (SIZE - SPLIT)));
    assert_true(stats.nats == 0.0 && stats.targets == 0.0);
    grad_norm_free(&norm);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_equals_plain_loops_in_every_dtype),
        cmocka_unit_test(test_adam_equals_plain_loops_in_every_dtype),
        cmocka_unit_test(test_sgd_equals_plain_loops_in_every_dtype),
        cmocka_unit_test(test_bug_7_tiny_updates_move_a_bf16_weight_that_has_a_master),
        cmocka_unit_test(test_bug_37_only_rows_with_weight_decay_change_without_gradient),
        cmocka_unit_test(test_bug_42_a_skipped_step_does_not_advance_bias_correction),
        cmocka_unit_test(test_a_step_publishes_every_unit_once_and_in_order),
        cmocka_unit_test(test_units_are_updated_one_by_one_only_if_publishing_overlaps),
        cmocka_unit_test(test_each_optimizer_and_dtype_has_the_expected_slots),
        cmocka_unit_test(test_optimizer_bytes_counts_exactly_the_slots),
        cmocka_unit_test(test_bug_13_14_the_norm_counts_each_shard_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
