/* test_tensor_memory.c -- compares the activations and the scratch of a tensor-parallel rank with
 * formulas in this file: everything inside regions is split by heads or columns, and with sequence
 * parallelism everything outside is split by rows. */
#include "model/gpt.h"
#include "model/head.h"
#include "tests/support/model/tensor_ranks.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { BATCH = 2, LENGTH = 6, TOKENS = BATCH * LENGTH };

static size_t bytes_of(int64_t elements)
{
    size_t bytes = (size_t)elements * sizeof(double);
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* The sizes of a rank's part, computed here and not by gpt_local_shape. */
typedef struct {
    int64_t rows, C, heads, kv_heads, D, F, up, Vp;
} Local;

static Local local_of(const GptShape *s, int tp, bool sp)
{
    return (Local){.rows = sp ? TOKENS / tp : TOKENS,
                   .C = s->C,
                   .heads = s->H / tp,
                   .kv_heads = s->G < tp ? 1 : s->G / tp,
                   .D = s->D,
                   .F = s->F / tp,
                   .up = s->F / tp * (s->activation == ACTIVATION_SWIGLU ? 2 : 1),
                   .Vp = s->Vp / tp};
}

/* Return bytes of a block: `remade` those that recompute computes again, if the policy asks for it;
 * `kept` everything else that backward reads. */
static size_t remade(const GptShape *s, const Local *l)
{
    size_t bytes = 2 * bytes_of(l->rows * l->C) + 2 * bytes_of(2 * l->rows); /* both norms */
    bytes += bytes_of(TOKENS * l->F); /* output of the activation */
    if (!s->qk_norm) return bytes;
    return bytes + bytes_of(TOKENS * (l->heads + l->kv_heads) * l->D) +
           bytes_of(2 * TOKENS * l->heads) + bytes_of(2 * TOKENS * l->kv_heads);
}

static size_t kept(const Local *l)
{
    return bytes_of(TOKENS * (l->heads + 2 * l->kv_heads) * l->D) +
           bytes_of(TOKENS * l->heads * l->D) + bytes_of(TOKENS * l->heads) + /* o, lse */
           bytes_of(l->rows * l->C) + /* the residual stream between the two halves */
           bytes_of(TOKENS * l->up);
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the bytes of a block's scratch: on several ranks the outputs of its two last products,
 * whose memory also holds a region's gathered input; and after them, in backward, the gradients of
 * one half. On one rank these products write to the residual stream. */
static size_t block_scratch(const GptShape *s, const Local *l, int tp)
{
    size_t mlp = bytes_of(TOKENS * l->up) + bytes_of(TOKENS * l->C);
    size_t attention = bytes_of(TOKENS * l->heads * l->D) + bytes_of(TOKENS * l->C) +
                       bytes_of(TOKENS * (l->heads + 2 * l->kv_heads) * l->D);
    if (s->activation == ACTIVATION_SWIGLU) mlp += bytes_of(TOKENS * l->F);
    return (tp > 1 ? 2 * bytes_of(TOKENS * l->C) : 0) + most(mlp, attention);
}

static size_t head_scratch(const GptShape *s, const Local *l, int tp, bool sp)
{
    int64_t chunk = s->head_chunk == 5 ? 4 : s->head_chunk; /* 12 rows in three equal chunks */
    size_t bytes = bytes_of(l->rows * l->C) + bytes_of(2 * l->rows) + bytes_of(TOKENS * l->C) +
                   bytes_of(chunk * l->Vp) + bytes_of(TOKENS);
    if (sp) bytes += bytes_of(TOKENS * l->C); /* the gathered rows of all ranks */
    return tp > 1 ? bytes + bytes_of(chunk) + bytes_of(2 * chunk) : bytes; /* maxima, sums */
}

static void check(const GptShape *whole, int tp, bool sp)
{
    Local l = local_of(whole, tp, sp);
    size_t again = remade(whole, &l), keeps = kept(&l), stream = bytes_of(l.rows * l.C);
    size_t L = (size_t)whole->L,
           grad = stream + (shape_has_residual_bias(whole) ? bytes_of(l.C) : 0);
    size_t head = head_scratch(whole, &l, tp, sp);
    for (RecomputePolicy p = RECOMPUTE_NONE; p <= RECOMPUTE_FULL; p++) {
        GptShape s = *whole;
        GptLayers layers;
        ParamTable table = {0};
        LayersPart part = LAYERS_WHOLE;
        s.recompute = p;
        part.size.tp = tp;
        part.sequence_parallel = sp;
        gpt_layers_build(&layers, &table, &s, &part);
        GptBytes is = gpt_bytes(&layers, NULL, BATCH, LENGTH, GPT_TRAIN);
        size_t saved = p == RECOMPUTE_FULL ? 0 : p == RECOMPUTE_SELECTIVE ? keeps : keeps + again;
        size_t shared = keeps + again - saved;
        size_t want = (L + 1) * stream + L * saved,
               scratch = grad + most(head, shared + block_scratch(whole, &l, tp));
        if (is.activations != want || is.scratch != scratch)
            fail_msg("tp %d%s, recompute %d: %zu and %zu bytes, by hand %zu and %zu", tp,
                     sp ? " sp" : "", (int)p, is.activations, is.scratch, want, scratch);
        gpt_layers_free(&layers);
        param_table_free(&table);
    }
}

static void test_memory_of_a_rank_equals_the_formulas_of_this_file(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 2 * 3 * 3; i++) {
        GptShape s = ranked_shape();
        s.head_chunk = i % 2 ? 5 : 12;
        s.qk_norm = i / 2 % 2;
        fixture_set_biases(&s, i % FIXTURE_BIASES);
        s.activation = i / 2 % 2 ? ACTIVATION_SWIGLU : ACTIVATION_GELU;
        s.G = i % 2 ? 1 : 12;
        s.D = i / 12 == 1 ? 20 : 4; /* wide heads: attention needs more scratch than the MLP */
        s.L = 1 + i / 12;
        for (int tp = 1; tp <= 4; tp++)
            for (int sp = 0; sp < 1 + (tp > 1); sp++)
                check(&s, tp, sp);
    }
}

/* Checks how many rows of logits the head computes at a time, on which its memory depends. The
 * chunks must have nearly equal lengths, instead of a short rest at the end. If head_chunk is a
 * multiple of 256 rows (a tile), the length of a chunk must be one, too, unless one chunk has all
 * rows. */
static void test_the_head_divides_rows_into_nearly_equal_chunks(void **state)
{
    (void)state;
    static const struct {
        int64_t most, rows, chunk;
    } cases[] = {
        {16384, 65536, 16384}, {16384, 40000, 13568}, /* 53 tiles, and 50.25 in the last chunk */
        {16384, 16385, 8448},  {16384, 1000, 1000},   {256, 560, 256},
        {300, 560, 280},       {0, 65536, 1311}, /* 128 MiB hold 1,334 rows */
        {0, 1000, 1000}};
    GptShape s = fixture_with_dtype(fixture_gpt2_shape(), BF16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        HeadActs acts;
        Arena arena = arena_measuring();
        s.head_chunk = cases[i].most;
        head_layout(&acts, &s, cases[i].rows, true, &arena);
        assert_int_equal(acts.chunk, cases[i].chunk);
        assert_int_equal(tensor_rows(acts.logits), cases[i].chunk);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_a_rank_equals_the_formulas_of_this_file),
        cmocka_unit_test(test_the_head_divides_rows_into_nearly_equal_chunks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
