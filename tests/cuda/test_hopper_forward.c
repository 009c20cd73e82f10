/* test_hopper_forward.c -- compares attention forward for Hopper with the oracle, with the portable
 * kernel and with a second run, at head sizes 64 and 128, in bf16 and f16. Skipped unless the CUDA
 * device has compute capability 9.0 and the kernels are built.
 *
 * The kernel has four variants, one for each head size and type. Without HOPPER_SWEEP only a few
 * small calls run; with it, all calls run (`make hopper`). Most calls run with each variant, but
 * with only one if TEST_SAMPLE is set. */
#include "model/core/check.h"
#include "model/kernels/cuda/attention.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/framed_call.h"
#include "tests/support/device/hopper_needed.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Shape of a call. documents: see framed_call.h; 0 for calls without first keys. */
typedef struct {
    int64_t batch, tq, tk, heads, kv_heads, offset, documents;
} Shape;

/* Factors of the scores: with SCALE the attention weights have all sizes, with SMALL_SCALE they are
 * nearly equal. */
static const double SCALE = 0.35, SMALL_SCALE = 0.02;

static void run_hopper(Device *dev, const OpCase *c, const Tensor *t)
{
    hopper_attention_forward(dev, t[0], t[1], t[2], t[3], t[4], c->attention, t[5]);
}

static void run_portable(Device *dev, const OpCase *c, const Tensor *t)
{
    flash_attention_forward(dev, t[0], t[1], t[2], t[3], t[4], c->attention, t[5]);
}

static void check_call(const Shape *s, int64_t head_size, DType storage, double scale)
{
    OpCase c = {.op = OP_attention_forward,
                .batch = s->batch,
                .tq = s->tq,
                .tk = s->tk,
                .option = s->documents != 0,
                .attention = {.heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .head_size = head_size,
                              .causal_offset = s->offset,
                              .scale = scale}};
    FramedCall t;
    framed_call_make(&t, &c, storage, hopper_row_gap(&c), s->documents);
    framed_call_run(&t, run_hopper);
    framed_call_check(&t);
    framed_call_repeat(&t, run_hopper);
    framed_call_compare(&t, run_portable, "the portable kernel");
    framed_call_free(&t);
}

/* Calls each shape with each of the four variants of the kernel. With TEST_SAMPLE, calls shape i
 * only with variant i % 4. */
static void check_shapes(const Shape *shape, int n)
{
    bool all = getenv("TEST_SAMPLE") == NULL;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            if (all || k == i % 4)
                check_call(&shape[i], k % 2 ? 128 : 64, k / 2 ? F16 : BF16, SCALE);
}

#define CHECK_SHAPES(shapes) check_shapes(shapes, sizeof(shapes) / sizeof *(shapes))

/* Shapes that have little in common: one row; groups of heads; several tiles, whose last one holds
 * a single key, and which fill every stage of the ring more than once; documents that begin one key
 * after a tile; a warpgroup whose last query sees the first key of a tile, and one that sees none
 * of a tile; offsets past the last key; five tiles, read by warps whose queries all exist. */
static void test_outputs_of_small_shapes_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 1, 1, 1, 1, 0, 0},        {2, 67, 67, 2, 2, 0, 0}, {1, 261, 261, 2, 1, 0, FIRST_RANDOM},
        {1, 40, 560, 1, 1, 520, 385}, {2, 1, 70, 4, 1, 69, 0}, {1, 66, 641, 1, 1, 575, 0},
        {1, 100, 165, 4, 2, 65, 0},   {2, 9, 5, 2, 2, 9, 0},   {1, 150, 420, 1, 1, 270, 250},
        {1, 64, 640, 1, 1, 576, 0},
    };
    (void)state;
    hopper_needed();
    CHECK_SHAPES(shape);
}

/* Queries that see 1 to 8 keys, which are either all keys or the last ones of many. Each weight is
 * large, so its rounding has the largest effect. */
static void test_outputs_of_queries_that_see_few_keys_match_the_oracle(void **state)
{
    (void)state;
    hopper_needed();
    for (int64_t n = 1; n <= 8; n += getenv("TEST_SAMPLE") ? 3 : 1) {
        const Shape all = {1, 66, n, 1, 1, n - 1, 0}, last = {1, 66, 200, 1, 1, 199, 200 - n};
        check_call(&all, 64, n % 2 ? BF16 : F16, SMALL_SCALE);
        check_call(&all, 128, n % 2 ? F16 : BF16, SCALE);
        check_call(&last, 64, n % 2 ? F16 : BF16, SCALE);
        check_call(&last, 128, n % 2 ? BF16 : F16, SMALL_SCALE);
    }
}

/* The calls of checked_cases.c, lengths around the tiles of 128 keys and the blocks of 128 and 192
 * queries, more queries than keys, many heads. */
static void test_outputs_of_all_shapes_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 1, 1, 1, 1, 0, 0},
        {2, 17, 17, 3, 3, 0, 0},
        {1, 67, 67, 4, 2, 0, 0},
        {2, 131, 131, 2, 1, 0, FIRST_RANDOM},
        {1, 3, 20, 6, 3, 17, 0},
        {2, 1, 70, 4, 1, 69, 0},
        {2, 9, 5, 2, 2, 9, 0},
        {1, 5, 33, 2, 2, 4, 0},
        {1, 261, 261, 2, 1, 0, FIRST_RANDOM},
        {1, 65, 65, 2, 1, 0, 0},
        {1, 40, 140, 2, 1, 100, 0},
        {1, 33, 1100, 4, 2, 1067, 0},
        {1, 597, 597, 2, 1, 0, FIRST_RANDOM},
        {1, 63, 63, 1, 1, 0, 0},
        {1, 64, 64, 1, 1, 0, 0},
        {1, 127, 127, 1, 1, 0, 0},
        {2, 128, 128, 1, 1, 0, 0},
        {1, 129, 129, 1, 1, 0, 0},
        {1, 191, 191, 1, 1, 0, 0},
        {2, 192, 192, 1, 1, 0, 0},
        {1, 193, 193, 1, 1, 0, 0},
        {1, 256, 256, 1, 1, 0, 0},
        {1, 257, 257, 1, 1, 0, 0},
        {1, 383, 383, 1, 1, 0, 0},
        {1, 384, 384, 1, 1, 0, 0},
        {1, 385, 385, 1, 1, 0, 0},
        {1, 640, 640, 1, 1, 0, 0},
        {1, 1025, 1025, 1, 1, 0, 0},
        {1, 300, 70, 2, 2, 0, 0},
        {1, 70, 70, 12, 12, 0, 0},
        {1, 140, 140, 7, 1, 0, 0},
        {3, 33, 33, 9, 3, 0, FIRST_RANDOM},
    };
    (void)state;
    hopper_sweep_needed();
    CHECK_SHAPES(shape);
}

/* The causal border, after which a query sees no keys, is one key before, at or one key after the
 * border of a tile, for the first queries of each warpgroup. Keys also end near the borders of
 * tiles. */
static void test_outputs_with_causal_borders_near_tile_borders_match_the_oracle(void **state)
{
    static const int64_t offset[] = {0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 193, 255};
    static const int64_t queries[] = {66, 129, 195}, keys[] = {127, 128, 129, 257};
    (void)state;
    hopper_sweep_needed();
    for (int o = 0; o < 14; o++)
        for (int k = 0; k < 4; k++) {
            Shape shape = {1, queries[(o + k) % 3], keys[k], 1, 1, offset[o], 0};
            check_shapes(&shape, 1);
        }
}

/* Documents that begin one token before, at and one token after the borders of tiles and of the
 * queries of a warp. */
static void test_outputs_with_documents_that_begin_near_tile_borders_match_the_oracle(void **state)
{
    static const int64_t first[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 192, 255, 300};
    (void)state;
    hopper_sweep_needed();
    for (int f = 0; f < 14; f++) {
        Shape shape[] = {{1, 330, 330, 1, 1, 0, first[f]}, {2, 130, 390, 1, 1, 260, first[f]}};
        CHECK_SHAPES(shape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_of_small_shapes_match_the_oracle),
        cmocka_unit_test(test_outputs_of_queries_that_see_few_keys_match_the_oracle),
        cmocka_unit_test(test_outputs_of_all_shapes_match_the_oracle),
        cmocka_unit_test(test_outputs_with_causal_borders_near_tile_borders_match_the_oracle),
        cmocka_unit_test(test_outputs_with_documents_that_begin_near_tile_borders_match_the_oracle),
    };
    return cmocka_run_group_tests_name("attention forward for hopper", tests, pair_setup,
                                       pair_teardown);
}
