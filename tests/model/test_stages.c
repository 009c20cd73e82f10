/* test_stages.c -- tests a model that is split into chunks of layers: which units each stage has,
 * and that chunks with several micro-batches in progress compute the same as the whole model. */
#include "model/core/check.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/model_inside.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- which stage has which layers ------------------------------------------------------------ */

/* A model with five blocks; its units are 0 tokens, 1 positions, 2 to 6 blocks, 7 final norm, 8
 * untied head. */
static GptShape five_blocks(bool tied)
{
    GptShape s = fixture_shape();
    s.L = 5;
    s.tied = tied;
    return s;
}

static void check_home(const ParamTable *table, int unit, int first, int last)
{
    const Home *home = &table->unit[unit].home;
    if (home->n != (first == last ? 1 : 2) || home->stage[0] != first ||
        home->stage[home->n - 1] != last)
        fail_msg("unit %d: %d homes, from stage %d to %d", unit, home->n, home->stage[0],
                 home->stage[home->n - 1]);
}

/* Checks four chunks on two stages: embedding and block 0 | block 1 | blocks 2, 3 | block 4 and the
 * head. */
static void test_units_are_stored_on_the_stages_of_their_layers(void **state)
{
    (void)state;
    static const int border[] = {0, 2, 3, 5, 7}, home[] = {0, 0, 0, 1, 0, 0, 1, 1, 1};
    for (int tied = 0; tied < 2; tied++) {
        GptShape s = five_blocks(tied);
        for (int stage = 0; stage < 2; stage++) {
            LayersPart part = {
                .size = {2, 1, 1, 1}, .at = {.pp = stage}, .chunks = 2, .border = border};
            GptLayers m;
            ParamTable table = {0};
            gpt_layers_build(&m, &table, &s, &part);
            for (int u = 0; u < table.n_units; u++)
                check_home(&table, u, home[u], tied && u == 0 ? 1 : home[u]);
            assert_int_equal(table.n_units, tied ? 8 : 9);
            assert_int_equal(m.n_chunks, 2);
            for (int c = 0; c < 2; c++) {
                assert_int_equal(m.chunk[c].first, border[2 * c + stage]);
                assert_int_equal(m.chunk[c].end, border[2 * c + stage + 1]);
                assert_int_equal(layers_begin(&m, c), stage == 0 && c == 0);
                assert_int_equal(layers_end(&m, c), stage == 1 && c == 1);
            }
            gpt_layers_free(&m);
            param_table_free(&table);
        }
    }
}

/* The operations of all layers must add up to the model's. */
static void test_the_flops_of_all_layers_add_up_to_the_model(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_VARIANTS; i++) {
        GptShape s = fixture_variant(i);
        double sum = 0;
        for (int row = 0; row < s.L + 2; row++)
            sum += gpt_layer_flops(&s, 9, row);
        assert_true(sum == gpt_flops_per_token(&s, 9));
        assert_true(gpt_layer_flops(&s, 9, 0) == 0);
        assert_true(gpt_layer_flops(&s, 9, 1) == gpt_layer_flops(&s, 9, (int)s.L));
        assert_true(gpt_layer_flops(&s, 9, (int)s.L + 1) == 6.0 * (double)(s.Vp * s.C));
    }
}

/* ---- chunks of layers ------------------------------------------------------------------------ */

enum { RUNS = 3, MICROS = 2, B = 2, T = 3 };

typedef struct {
    Fixture *f;
    GptBatch place[MICROS];
} Batches;

/* Returns the tokens that the micro-batch's first forward stored; every later action of it reads
 * the same. */
static GptBatch batch_of(void *context, const Action *action)
{
    const Batches *b = context;
    int64_t N = b->f->B * b->f->T, at = action->micro * N;
    GptBatch batch = b->place[action->batch];
    if (action->kind == ACT_FORWARD && action->chunk == 0) {
        memcpy(batch.tokens.data, b->f->tokens + at, tensor_bytes(batch.tokens));
        memcpy(batch.targets.data, b->f->targets + at, tensor_bytes(batch.targets));
        memcpy(batch.positions.data, b->f->positions + at, tensor_bytes(batch.positions));
    }
    return batch;
}

static Tensor host_rows(DType dtype, int64_t rows, int64_t cols)
{
    return tensor_2d(must_calloc((size_t)(rows * cols), dtype_size(dtype)), dtype, rows, cols);
}

static void forget(Tensor x)
{
    memset(x.data, 0xff, tensor_bytes(x));
}

/* Runs all micro-batches forward through every chunk, then all backward, with two in progress at a
 * time, each in its own slot. After each action, its inputs and scratch are filled with NaN. Slots
 * are assigned from last to first, so that a slot's number never equals its micro-batch's. */
static void run_chunks(Fixture *f, const GptLayers *layers, Gpt *gpt)
{
    Batches batches = {.f = f};
    int64_t N = f->B * f->T;
    Tensor wire[MICROS][RUNS + 1];
    Action actions[2 * MICROS * RUNS];
    int n = 0;
    for (int i = 0; i < MICROS; i++) {
        for (int r = 0; r <= RUNS; r++)
            wire[i][r] = host_rows(layers->shape.dtype, N, layers->shape.C);
        Tensor *of[3] = {&batches.place[i].tokens, &batches.place[i].targets,
                         &batches.place[i].positions};
        for (int k = 0; k < 3; k++)
            *of[k] = tensor_1d(must_calloc((size_t)N, sizeof(int32_t)), I32, N);
        for (int r = 0; r < RUNS; r++) {
            Action a = {.chunk = r, .micro = i, .slot = MICROS - 1 - i, .batch = i};
            a.kind = ACT_FORWARD;
            actions[i * RUNS + r] = a;
            a.kind = ACT_BACKWARD;
            actions[(MICROS + i) * RUNS + RUNS - 1 - r] = a;
            n += 2;
        }
    }
    Use *uses = must_calloc((size_t)gpt_uses(layers, actions, n, NULL), sizeof *uses);
    double scale = f->scale;
    StepStats stats = {0};
    gpt_connect(gpt, batch_of, &batches, &stats, &scale);
    Stage stage = gpt_stage(gpt);
    f->params->step_begin(f->params, uses, gpt_uses(layers, actions, n, uses));
    model_poison(gpt);
    for (int i = 0; i < n; i++) {
        const Action *a = &actions[i];
        bool back = a->kind == ACT_BACKWARD;
        /* Indices of the borders between runs of layers. */
        int from = a->chunk + back, to = a->chunk + !back;
        Tensor in = from > 0 && from < RUNS ? wire[a->micro][from] : NO_TENSOR,
               out = to > 0 && to < RUNS ? wire[a->micro][to] : NO_TENSOR;
        if (tensor_present(out)) forget(out);
        (back ? stage.backward : stage.forward)(stage.self, a, in, out);
        if (tensor_present(in)) forget(in);
        model_poison_scratch(gpt);
    }
    f->params->step_end(f->params);
    f->stats = stats;
    free(uses);
    for (int i = 0; i < MICROS; i++) {
        for (int r = 0; r <= RUNS; r++)
            free(wire[i][r].data);
        free(batches.place[i].tokens.data);
        free(batches.place[i].targets.data);
        free(batches.place[i].positions.data);
    }
}

/* Without biases the same ops get the same operands, so all bits must equal the whole model's. With
 * biases they may differ: their column sums come from the norm that follows, but at a border from a
 * separate sum, which rounds differently. */
static void check_chunks(const GptShape *shape, const int *border)
{
    Fixture f;
    GptLayers layers;
    ParamTable table = {0};
    int slots[RUNS] = {MICROS, MICROS, MICROS};
    LayersPart part = {.size = GRID_OF_ONE, .chunks = RUNS, .border = border};
    size_t bytes, again;
    fixture_open(&f, shape, B, T, MICROS, 1, 0);
    gpt_layers_build(&layers, &table, shape, &part);
    Gpt *gpt = gpt_create(&f.dev, &layers, f.params, &f.tp, B, T, GPT_TRAIN, slots);
    double loss = fixture_backward(&f);
    double *want = (double *)(void *)fixture_gradients(&f, &bytes);
    run_chunks(&f, &layers, gpt);
    double *have = (double *)(void *)fixture_gradients(&f, &again);
    assert_int_equal(bytes, again);
    if (f.stats.nats * f.scale != loss)
        fail_msg("loss %.17g in chunks, %.17g whole", f.stats.nats * f.scale, loss);
    for (size_t i = 0; i < bytes / sizeof *want; i++) {
        double bound = shape_has_residual_bias(shape) ? 1e-12 * (fabs(want[i]) + 1e-3) : 0;
        if (!(fabs(have[i] - want[i]) <= bound))
            fail_msg(
                "gradient %zu is %.17g in chunks, %.17g whole (attention bias %d, recompute %d)", i,
                have[i], want[i], (int)shape->attention_bias, shape->recompute);
    }
    GptBytes plan = gpt_bytes(&layers, slots, B, T, GPT_TRAIN), used = model_used(gpt);
    assert_int_equal(plan.activations, used.activations);
    assert_int_equal(plan.scratch, used.scratch);
    free(want);
    free(have);
    gpt_destroy(gpt);
    gpt_layers_free(&layers);
    param_table_free(&table);
    fixture_close(&f);
}

static void test_chunks_compute_the_same_as_the_whole_model(void **state)
{
    (void)state;
    static const int cut[][RUNS + 1] = {{0, 2, 4, 7}, {0, 1, 6, 7}, {0, 3, 6, 7}};
    for (int i = 0; i < FIXTURE_VARIANTS; i++) {
        GptShape s = fixture_variant(i);
        s.L = 5;
        s.recompute = (RecomputePolicy)(i % 3);
        check_chunks(&s, cut[i / 3 % 3]);
    }
}

/* The memory of slots must add up, and scratch must be that of one chunk. */
static void test_memory_grows_by_one_slot_per_micro_batch_kept(void **state)
{
    (void)state;
    static const int border[] = {0, 2, 4, 7};
    LayersPart part = {.size = GRID_OF_ONE, .chunks = RUNS, .border = border};
    for (RecomputePolicy p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++) {
        GptShape s = fixture_llama_shape();
        GptLayers chunks, whole;
        ParamTable a = {0}, b = {0};
        s.L = 5;
        s.recompute = p;
        gpt_layers_build(&chunks, &a, &s, &part);
        gpt_layers_build(&whole, &b, &s, &LAYERS_WHOLE);
        GptBytes one = gpt_bytes(&whole, NULL, B, T, GPT_TRAIN),
                 cut = gpt_bytes(&chunks, NULL, B, T, GPT_TRAIN),
                 many = gpt_bytes(&chunks, (const int[]){3, 2, 1}, B, T, GPT_TRAIN);
        size_t stream = (size_t)(B * T * s.C) * 8;
        stream = (stream + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
        /* Both models keep six residual streams: the one after a chunk is also the first of the
         * next chunk. */
        assert_int_equal(one.activations, cut.activations);
        assert_int_equal(cut.scratch, one.scratch);
        assert_int_equal(many.scratch, cut.scratch);
        /* The chunks have one, two and two blocks; the last one also has the head's input
         * stream. */
        size_t block = (one.activations - stream) / 5;
        assert_int_equal(many.activations, one.activations + 2 * block + 2 * block);
        gpt_layers_free(&chunks);
        gpt_layers_free(&whole);
        param_table_free(&a);
        param_table_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_are_stored_on_the_stages_of_their_layers),
        cmocka_unit_test(test_the_flops_of_all_layers_add_up_to_the_model),
        cmocka_unit_test(test_chunks_compute_the_same_as_the_whole_model),
        cmocka_unit_test(test_memory_grows_by_one_slot_per_micro_batch_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
