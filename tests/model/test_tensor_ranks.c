/* test_tensor_ranks.c -- tests the model on tensor-parallel ranks, without and with sequence
 * parallelism: every loss and every gradient must equal that of one rank. Bug numbers are those of
 * tests/README.md. */
#include "model/core/check.h"
#include "tests/support/model/tensor_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- every combination of ranks and models --------------------------------------------------- */

/* The i-th of all combinations of ranks and models; i is read as a number in mixed radix, with one
 * digit per option. */
enum { COMBINATIONS = 3 * 2 * 4 * 3 * 3 * 3 * 2 * FIXTURE_BIASES * 2 * 2 * 2 };

static int digit(int *i, int radix)
{
    int d = *i % radix;
    *i /= radix;
    return d;
}

static GptShape combination(int i, RankedCase *c)
{
    /* Numbers of kv heads: one per query head, one for all, and between these fewer than ranks, as
     * many as ranks, or several per rank. */
    static const int kv[3][4] = {{12, 1, 6, 2}, {12, 1, 3, 6}, {12, 1, 2, 4}};
    static const ActivationKind activations[] = {ACTIVATION_GELU, ACTIVATION_RELU2,
                                                 ACTIVATION_SWIGLU};
    static const int vocabulary[] = {17, 127, 300};
    GptShape s = ranked_shape();
    int tp = digit(&i, 3);
    c->tp = 2 + tp;
    c->sequence_parallel = digit(&i, 2);
    s.G = kv[tp][digit(&i, 4)];
    s.activation = activations[digit(&i, 3)];
    s.recompute = (RecomputePolicy)digit(&i, 3);
    s.V = vocabulary[digit(&i, 3)];
    s.position = digit(&i, 2) ? POSITION_ROPE : POSITION_LEARNED;
    fixture_set_biases(&s, digit(&i, FIXTURE_BIASES));
    s.qk_norm = digit(&i, 2);
    s.tied = digit(&i, 2);
    s.norm.kind = digit(&i, 2) ? NORM_RMSNORM : NORM_LAYERNORM;
    s.head_chunk = s.mlp_bias ? 5 : 0;
    return s;
}

static void test_every_kind_of_model_on_ranks_equals_one_rank(void **state)
{
    (void)state;
    /* 83 has no common factor with the radices, and every combination of three options occurs. */
    int stride = getenv("TEST_SAMPLE") ? 83 * 11 : 83;
    for (int i = 0; i < COMBINATIONS; i += stride) {
        RankedCase c = {.dp = 1, .B = 2, .T = 6, .micros = 2, .tolerance = 1e-12};
        GptShape s = combination(i, &c);
        char what[96];
        snprintf(what, sizeof what, "%d: tp %d%s, kv %d, recompute %d", i, c.tp,
                 c.sequence_parallel ? " sp" : "", (int)s.G, (int)s.recompute);
        c.what = what;
        check_ranked(&s, &c);
    }
}

/* ---- grids with data-parallel ranks ---------------------------------------------------------- */

/* Tests tensor-parallel together with data-parallel ranks, at every ZeRO stage: each rank has a
 * shard of its part of the parameters, and partial gradients are summed on the shards. */
static void test_data_parallel_ranks_at_every_zero_stage_equal_one_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        RankedCase c = {.dp = 2, .tp = 2, .B = 2, .T = 6, .micros = 2, .tolerance = 1e-12};
        GptShape s = ranked_shape();
        char what[48];
        c.sequence_parallel = i % 2;
        c.zero_stage = i / 2;
        s.G = i % 4 < 2 ? 1 : 6;
        s.tied = i < 4;
        s.qk_norm = i % 4 < 2;
        s.recompute = (RecomputePolicy)(i % 3);
        snprintf(what, sizeof what, "ZeRO %d%s", c.zero_stage, c.sequence_parallel ? " sp" : "");
        c.what = what;
        check_ranked(&s, &c);
    }
}

/* ---- known bugs (tests/README.md) ------------------------------------------------------------ */

/* Checks tp 2, 3 and 4, without and with sequence parallelism. */
static void check_all_ranks(const GptShape *s, const char *what,
                            void (*change)(const Param *row, double *weight))
{
    for (int tp = 2; tp <= 4; tp++)
        for (int sp = 0; sp < 2; sp++) {
            RankedCase c = {.dp = 1,
                            .tp = tp,
                            .sequence_parallel = sp,
                            .B = 2,
                            .T = 6,
                            .micros = 1,
                            .change = change,
                            .tolerance = 1e-12};
            char text[96];
            snprintf(text, sizeof text, "%s: tp %d%s", what, tp, sp ? " sp" : "");
            c.what = text;
            check_ranked(s, &c);
        }
}

static void biases_are_one(const Param *row, double *weight)
{
    size_t n = strlen(row->name);
    if (strcmp(row->name + n - 5, ".bias") == 0) *weight = 1;
}

/* Bug 20: the bias of a linear layer whose input is split must be added once, after the sum over
 * the ranks. If each rank added it, biases of 1 would make an output wrong by tp - 1. */
static void test_bug_20_biases_after_a_sum_over_ranks_are_added_once(void **state)
{
    (void)state;
    GptShape s = ranked_shape();
    check_all_ranks(&s, "biases of 1", biases_are_one);
}

/* Bugs 21, 22, 23: the columns of the vocabulary are divided among the ranks, so that some ranks
 * have only one real column, or none. Loss and gradients must not depend on where the splits and
 * the padding are. */
static void test_bug_21_22_23_vocabularies_of_any_size_equal_one_rank(void **state)
{
    (void)state;
    static const struct {
        int64_t V, Vp;
    } is[] = {{17, 384}, {127, 384}, {97, 384}, {129, 384}, {384, 384}, {193, 768}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        GptShape s = ranked_shape();
        char what[48];
        s.V = is[i].V;
        s.Vp = is[i].Vp;
        s.tied = i % 2;
        s.head_chunk = i % 3 == 0 ? 5 : 0;
        snprintf(what, sizeof what, "vocabulary %d of %d", (int)s.V, (int)s.Vp);
        check_all_ranks(&s, what, NULL);
    }
}

/* Scales the head's rows, so that logits reach several hundred. */
static void head_is_steep(const Param *row, double *weight)
{
    if (strcmp(row->name, "head.weight") == 0) *weight *= 300;
}

/* Bug 24: before exponentials are taken, the largest logit of all ranks must be subtracted, not the
 * largest of the rank's own columns. */
static void test_bug_24_large_logits_on_several_ranks_equal_one_rank(void **state)
{
    (void)state;
    GptShape s = ranked_shape();
    s.tied = false;
    s.V = 300;
    check_all_ranks(&s, "steep logits", head_is_steep);
}

/* Bug 27: the rows of q, k and v belong to heads, however they are split. So whole weights must
 * give the same logits on 1, 2, 3 and 4 ranks. (check_ranked compares logits, too.) */
static void test_bug_27_heads_keep_their_rows_on_any_number_of_ranks(void **state)
{
    (void)state;
    static const int kv[] = {12, 1, 12};
    for (int i = 0; i < 3; i++) {
        GptShape s = ranked_shape();
        s.G = kv[i];
        s.position = i ? POSITION_ROPE : POSITION_LEARNED;
        s.qk_norm = i == 2;
        check_all_ranks(&s, "heads", NULL);
    }
}

/* Bug 19: parameters that all ranks have must get gradients with the same bits on all ranks. */
static void compare_copies(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                           void *context)
{
    int64_t n = extent->count, first = extent->offset - shard->offset;
    double *mine = must_alloc((size_t)n * sizeof *mine), *his = must_alloc((size_t)n * sizeof *his);
    if (f->table.param[extent->param].tp_dim < 0) {
        for (int64_t i = 0; i < n; i++)
            his[i] = mine[i] = dtype_get(values.dtype, values.data, first + i);
        comm_broadcast(&f->grid.tp, NULL, tensor_1d(his, F64, n), 0);
        if (memcmp(mine, his, (size_t)n * sizeof *his) != 0)
            rank_wrong(context, "%s: copies of the gradient differ",
                       f->table.param[extent->param].name);
    }
    free(mine);
    free(his);
}

static void on_rank_with_copies(Comm *world, void *context)
{
    const RankedCase *c = context;
    GptShape s = ranked_shape();
    Fixture f;
    s.qk_norm = true;
    ranked_open(&f, world, &s, c);
    fixture_backward(&f);
    visit_extents(&f, true, compare_copies, world);
    fixture_close(&f);
}

static void test_bug_19_copies_on_all_ranks_get_the_same_gradient_bits(void **state)
{
    (void)state;
    for (int tp = 2; tp <= 4; tp++)
        for (int sp = 0; sp < 2; sp++) {
            RankedCase c = {
                .dp = 1, .tp = tp, .sequence_parallel = sp, .B = 2, .T = 6, .micros = 2};
            thread_ranks(tp, 60, on_rank_with_copies, &c);
        }
}

/* ---- what ranks send ------------------------------------------------------------------------- */

typedef struct {
    const RankedCase *c;
    GptShape shape;
} Counted;

static CommCount added(const CommCounts *before, const CommCounts *now, CommVerb verb)
{
    const CommCount *a = &before->of[verb][F64], *b = &now->of[verb][F64];
    return (CommCount){b->calls - a->calls, b->elements - a->elements, b->bytes - a->bytes};
}

static void check_count(Comm *world, const char *what, CommCount is, int64_t calls,
                        int64_t elements)
{
    if (is.calls != calls || is.elements != elements)
        rank_wrong(world, "%s: %lld calls of %lld elements, not %lld of %lld", what,
                   (long long)is.calls, (long long)is.elements, (long long)calls,
                   (long long)elements);
}

/* Counts the collective calls and elements of a micro-batch. Without sequence parallelism a layer
 * makes four sums, two of them in forward. With sequence parallelism it makes six gathers and four
 * scattered sums, two and two of them in forward. Full recompute repeats forward, except for the
 * sum after the down product. Embedding and head cross one border in each direction, and each chunk
 * of logits sends its maxima and two sums per row. */
static void count_on_rank(Comm *world, void *context)
{
    const Counted *job = context;
    const GptShape *s = &job->shape;
    bool sp = job->c->sequence_parallel;
    int64_t micros = job->c->micros, N = job->c->B * job->c->T, rows = N * s->C,
            again = s->recompute == RECOMPUTE_FULL ? 1 : 0,
            chunks = s->head_chunk ? (N + s->head_chunk - 1) / s->head_chunk : 1,
            loss = 2 * chunks * micros, numbers = 3 * N * micros;
    Fixture f;
    ranked_open(&f, world, s, job->c);
    CommCounts before = *comm_counts(&f.grid.tp);
    fixture_backward(&f);
    CommCounts trained = *comm_counts(&f.grid.tp);
    fixture_loss(&f);
    CommCounts all = *comm_counts(&f.grid.tp);
    int64_t gathers = sp ? micros * (s->L * (6 + 2 * again) + 2) : 0,
            scatters = sp ? micros * (s->L * (4 + again) + 2) : 0,
            sums = sp ? 0 : micros * (s->L * (4 + again) + 2), once = micros * (2 * s->L + 1);
    check_count(world, "gathers", added(&before, &trained, COMM_ALL_GATHER), gathers,
                gathers * rows);
    check_count(world, "scattered sums", added(&before, &trained, COMM_REDUCE_SCATTER), scatters,
                scatters * rows);
    if (!sp) /* otherwise they are sent with the sums of gradients (tests/parallel) */
        check_count(world, "sums", added(&before, &trained, COMM_ALL_REDUCE), sums + loss,
                    sums * rows + numbers);
    check_count(world, "gathers of an evaluation", added(&trained, &all, COMM_ALL_GATHER),
                sp ? once : 0, sp ? once * rows : 0);
    check_count(world, "scattered sums of an evaluation",
                added(&trained, &all, COMM_REDUCE_SCATTER), sp ? once : 0, sp ? once * rows : 0);
    check_count(world, "sums of an evaluation", added(&trained, &all, COMM_ALL_REDUCE),
                loss + (sp ? 0 : once), numbers + (sp ? 0 : once * rows));
    fixture_close(&f);
}

static void test_a_layer_makes_the_expected_collective_calls(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        RankedCase c = {
            .dp = 1, .tp = 2 + i % 3, .sequence_parallel = i / 3 % 2, .B = 2, .T = 6, .micros = 2};
        Counted job = {.c = &c, .shape = ranked_shape()};
        job.shape.L = 1 + i % 4;
        job.shape.recompute = (RecomputePolicy)(i % 3);
        job.shape.G = i / 6 ? 12 : 1; /* sums over ranks that share a kv head use another group */
        job.shape.head_chunk = i % 2 ? 5 : 0;
        thread_ranks(c.tp, 60, count_on_rank, &job);
    }
}

/* ---- recompute ------------------------------------------------------------------------------- */

typedef struct {
    const RankedCase *c;
    GptShape shape;
    unsigned char *gradients[4]; /* the gradients of each rank */
    size_t bytes[4];
    double loss;
} Bits;

static void bits_on_rank(Comm *world, void *context)
{
    Bits *bits = context;
    Fixture f;
    ranked_open(&f, world, &bits->shape, bits->c);
    double loss = fixture_backward(&f);
    bits->gradients[world->rank] = fixture_gradients(&f, &bits->bytes[world->rank]);
    if (world->rank == 0) bits->loss = loss;
    fixture_close(&f);
}

/* Bug 53: full recompute calls a region's collectives again. Neither kind of recompute may change a
 * bit. */
static void test_bug_53_recompute_on_ranks_changes_no_bit(void **state)
{
    (void)state;
    static const DType dtypes[] = {F64, F32, BF16, F16};
    for (int i = 0; i < 16; i++) {
        RankedCase c = {
            .dp = 1, .tp = 2 + i % 3, .sequence_parallel = i / 2 % 2, .B = 2, .T = 6, .micros = 2};
        Bits bits[3];
        for (int p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++) {
            bits[p] = (Bits){.c = &c, .shape = fixture_with_dtype(ranked_shape(), dtypes[i / 4])};
            bits[p].shape.recompute = (RecomputePolicy)p;
            bits[p].shape.qk_norm = i % 2;
            bits[p].shape.G = i % 4 < 2 ? 1 : 12;
            thread_ranks(c.tp, 60, bits_on_rank, &bits[p]);
            assert_true(bits[p].loss == bits[0].loss);
        }
        for (int r = 0; r < c.tp; r++) {
            for (int p = RECOMPUTE_SELECTIVE; p <= RECOMPUTE_FULL; p++) {
                assert_int_equal(bits[p].bytes[r], bits[0].bytes[r]);
                assert_memory_equal(bits[p].gradients[r], bits[0].gradients[r], bits[0].bytes[r]);
            }
            for (int p = 0; p < 3; p++)
                free(bits[p].gradients[r]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_model_on_ranks_equals_one_rank),
        cmocka_unit_test(test_data_parallel_ranks_at_every_zero_stage_equal_one_rank),
        cmocka_unit_test(test_bug_20_biases_after_a_sum_over_ranks_are_added_once),
        cmocka_unit_test(test_bug_21_22_23_vocabularies_of_any_size_equal_one_rank),
        cmocka_unit_test(test_bug_24_large_logits_on_several_ranks_equal_one_rank),
        cmocka_unit_test(test_bug_27_heads_keep_their_rows_on_any_number_of_ranks),
        cmocka_unit_test(test_bug_19_copies_on_all_ranks_get_the_same_gradient_bits),
        cmocka_unit_test(test_a_layer_makes_the_expected_collective_calls),
        cmocka_unit_test(test_bug_53_recompute_on_ranks_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
