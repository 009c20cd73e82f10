/* test_layers.c -- tests the walk over the table of layers: it must acquire exactly the units that
 * it has announced to the store, and enter and leave every tensor-parallel region. */
#include "model/core/check.h"
#include "parallel/pipeline/pipeline.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/model/tensor_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A store that records what is acquired and forwards every call to the real one. */
typedef struct {
    ParamStore base;
    ParamStore *real;
    Use seen[64];
    int n, held;
} Noting;

static void noted_acquire(ParamStore *base, int unit)
{
    Noting *s = (Noting *)base;
    s->seen[s->n++] = (Use){.unit = unit, .weight = true};
    s->held++;
    s->real->acquire(s->real, unit);
}

static void noted_release(ParamStore *base, int unit)
{
    Noting *s = (Noting *)base;
    s->held--;
    s->real->release(s->real, unit);
}

static Tensor noted_weight(ParamStore *base, int param, int n)
{
    ParamStore *real = ((Noting *)base)->real;
    return real->weight(real, param, n);
}

/* If the weights of the same unit were acquired just before, this is part of that use; otherwise it
 * is a separate use. */
static bool noted_grad_acquire(ParamStore *base, int unit)
{
    Noting *s = (Noting *)base;
    Use *last = s->n > 0 ? &s->seen[s->n - 1] : NULL;
    if (last == NULL || last->unit != unit || last->gradient) s->seen[s->n++] = (Use){.unit = unit};
    s->seen[s->n - 1].gradient = true;
    s->held++;
    return s->real->grad_acquire(s->real, unit);
}

static Tensor noted_grad(ParamStore *base, int param, int n)
{
    ParamStore *real = ((Noting *)base)->real;
    return real->grad(real, param, n);
}

static void noted_grad_release(ParamStore *base, int unit)
{
    Noting *s = (Noting *)base;
    s->held--;
    s->real->grad_release(s->real, unit);
}

static GptBatch same_batch(void *context, const Action *action)
{
    (void)action;
    return *(GptBatch *)context;
}

static void check_same_uses(const Use *announced, int64_t n, const Noting *noting)
{
    assert_int_equal(noting->held, 0);
    assert_int_equal(noting->n, n);
    for (int i = 0; i < n; i++)
        if (announced[i].unit != noting->seen[i].unit ||
            announced[i].weight != noting->seen[i].weight ||
            announced[i].gradient != noting->seen[i].gradient)
            fail_msg("use %d: unit %d announced, unit %d seen", i, announced[i].unit,
                     noting->seen[i].unit);
}

/* Computing logits must use the same layers in the same order as an evaluation. */
static void check_logits_uses(Fixture *f, Gpt *gpt, Noting *noting)
{
    Use announced[16];
    const GptShape *s = &f->layers.shape;
    Tensor logits = tensor_2d(must_calloc((size_t)(2 * s->Vp), sizeof(double)), F64, 2, s->Vp);
    noting->n = 0;
    model_logits(gpt, &f->batch, logits);
    check_same_uses(announced, gpt_uses(&f->layers, &(Action){.kind = ACT_EVALUATE}, 1, announced),
                    noting);
    free(logits.data);
}

/* The most uses that an action makes outside blocks: two by the embedding, two by the head. */
enum { MOST_TABLE_USES = 4 };

/* Checks that gpt_uses lists exactly the uses that the model makes, and that no unit stays acquired
 * between two actions. */
static void check_uses(const GptShape *shape)
{
    static const ActionKind kinds[] = {ACT_FORWARD, ACT_BACKWARD, ACT_EVALUATE, ACT_FORWARD,
                                       ACT_BACKWARD};
    Fixture f;
    Use announced[64];
    StepStats stats = {0};
    double scale = 1;
    fixture_open(&f, shape, 1, 2, 1, 1, 0);
    Noting noting = {.base = {.table = &f.table,
                              .acquire = noted_acquire,
                              .release = noted_release,
                              .weight = noted_weight,
                              .grad_acquire = noted_grad_acquire,
                              .grad = noted_grad,
                              .grad_release = noted_grad_release},
                     .real = f.params};
    Gpt *gpt = gpt_create(&f.dev, &f.layers, &noting.base, &f.tp, 1, 2, GPT_TRAIN, NULL);
    Stage stage = gpt_stage(gpt);
    gpt_connect(gpt, same_batch, &f.batch, &stats, &scale);
    Action actions[5];
    for (int i = 0; i < 5; i++)
        actions[i] = (Action){.kind = kinds[i]};
    int64_t n = gpt_uses(&f.layers, actions, 5, announced);
    assert_int_equal(gpt_uses(&f.layers, actions, 5, NULL), n);
    assert_true(n <= 5 * (shape->L + MOST_TABLE_USES));
    f.params->step_begin(f.params, announced, n);
    for (int i = 0; i < 5; i++) {
        pipeline_run(NULL, &stage, &actions[i], 1, NULL);
        assert_int_equal(noting.held, 0);
    }
    f.params->step_end(f.params);
    check_same_uses(announced, n, &noting);
    f.params->step_begin(f.params, NULL, 0);
    check_logits_uses(&f, gpt, &noting);
    gpt_destroy(gpt);
    fixture_close(&f);
}

/* Checks every kind of model, and for one model compares with a list written in this test. */
static void test_a_model_acquires_exactly_the_units_it_announced(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_VARIANTS; i++) {
        GptShape s = fixture_variant(i);
        check_uses(&s);
    }
    Fixture f;
    GptShape s = fixture_shape(); /* units: 0 tokens, 1 positions, 2 and 3 blocks, 4 norm */
    static const Use want[] = {
        {0, true, false}, {1, true, false}, {2, true, false}, {3, true, false}, {4, true, true},
        {0, true, true},  {3, true, true},  {2, true, true},  {0, false, true}, {1, false, true}};
    Use announced[16];
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    Action actions[] = {{.kind = ACT_FORWARD}, {.kind = ACT_BACKWARD}};
    assert_int_equal(gpt_uses(&f.layers, actions, 2, announced), 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(announced[i].unit, want[i].unit);
        assert_int_equal(announced[i].weight, want[i].weight);
        assert_int_equal(announced[i].gradient, want[i].gradient);
    }
    /* No action makes more uses than backward with learned positions. */
    assert_int_equal(gpt_uses(&f.layers, actions + 1, 1, announced), s.L + MOST_TABLE_USES);
    fixture_close(&f);
}

/* ---- regions --------------------------------------------------------------------------------- */

/* The region borders that a rank has crossed, one letter each, and the region that does the work.
 */
typedef struct {
    Region own;
    char seen[64];
    size_t n;
} Borders;

static const Region *note(void *self, char border)
{
    Borders *b = self;
    if (b->n + 1 < sizeof b->seen) b->seen[b->n++] = border;
    return &b->own;
}

static void enters(void *self, Tensor dst, Tensor src)
{
    region_enter_forward(note(self, 'e'), dst, src);
}

static void exits(void *self, Tensor dst, Tensor src)
{
    region_exit_forward(note(self, 'x'), dst, src);
}

static void enters_back(void *self, Tensor dst, Tensor src)
{
    region_enter_backward(note(self, 'E'), dst, src);
}

static void exits_back(void *self, Tensor dst, Tensor src)
{
    region_exit_backward(note(self, 'X'), dst, src);
}

static void awaits(void *self)
{
    region_await(note(self, '.'));
}

static void reduces(void *self, Tensor x, ReduceOp op)
{
    region_reduce(&((Borders *)self)->own, x, op);
}

static void cross_borders(Comm *world, void *context)
{
    const char *expected = context;
    Fixture f;
    GptShape s = ranked_shape();
    RankedCase c = {.dp = 1, .tp = world->size, .B = 1, .T = 2, .micros = 1};
    s.L = 2;
    ranked_open(&f, world, &s, &c);
    Borders borders = {.own = f.tp};
    f.tp = (Region){.enter_forward = enters,
                    .exit_forward = exits,
                    .enter_backward = enters_back,
                    .await = awaits,
                    .exit_backward = exits_back,
                    .reduce = reduces,
                    .self = &borders,
                    .parts = 1};
    fixture_backward(&f);
    if (strcmp(borders.seen, expected) != 0)
        rank_wrong(world, "borders %s, not %s", borders.seen, expected);
    f.tp = borders.own;
    fixture_close(&f);
}

/* Checks the order in which regions are entered and left on two ranks. Forward: the token table's
 * region is left; those of attention and MLP of both blocks are entered and left; the head's is
 * entered and, after the loss, at once entered backward. Backward is the reverse, and the inputs of
 * regions are gathered again before the weight gradients read them. Every backward entry must be
 * awaited ('.'). A single rank need not leave the regions of blocks: there a product adds its
 * result to the residual stream. */
static void test_every_region_is_entered_and_left_in_the_right_order(void **state)
{
    (void)state;
    thread_ranks(2, 60, cross_borders,
                 "x"
                 "exex"
                 "exex"
                 "eE."
                 "XeE.XeE."
                 "XeE.XeE."
                 "X");
    thread_ranks(1, 60, cross_borders,
                 "x"
                 "ee"
                 "ee"
                 "eE."
                 "XeE.XeE."
                 "XeE.XeE."
                 "X");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_acquires_exactly_the_units_it_announced),
        cmocka_unit_test(test_every_region_is_entered_and_left_in_the_right_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
