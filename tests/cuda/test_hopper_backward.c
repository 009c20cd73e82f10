/* test_hopper_backward.c -- compares attention backward for Hopper with the oracle, with the
 * portable kernels and with a second run, at head sizes 64 and 128, in bf16 and f16. Skipped unless
 * the CUDA device has compute capability 9.0 and the kernels are built.
 *
 * The kernels have four variants, one for each head size and type. Without HOPPER_SWEEP only a few
 * small calls run, most with one of the variants; with it, all calls run, most with each variant
 * (`make hopper`). */
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
    bool accumulate;
} Shape;

/* Factors of the scores: with SCALE the attention weights have all sizes, with SMALL_SCALE they are
 * nearly equal. */
static const double SCALE = 0.35, SMALL_SCALE = 0.02;

typedef void (*Backward)(Device *, const AttentionTensors *, bool, Attention);

static void run(Device *dev, const OpCase *c, const Tensor *t, Backward backward)
{
    AttentionTensors tensors = {t[0], t[1], t[2], t[3],  t[4],  t[5],  t[6],
                                t[7], t[8], t[9], t[10], t[11], t[12], c->accumulate_db};
    backward(dev, &tensors, c->accumulate, c->attention);
}

static void run_hopper(Device *dev, const OpCase *c, const Tensor *t)
{
    run(dev, c, t, hopper_attention_backward);
}

static void run_portable(Device *dev, const OpCase *c, const Tensor *t)
{
    run(dev, c, t, flash_attention_backward);
}

/* Checks that the gradients of keys that no query sees are exactly 0. */
static void check_unseen_keys(const FramedCall *t)
{
    enum { DK = 1, DV = 2 };
    Tensor dk = t->t[DK].here, dv = t->t[DV].here;
    int64_t rows = tensor_rows(dv), cols = tensor_cols(dv);
    for (int64_t r = 0; r < rows && !t->c.accumulate; r++) {
        if (rms_of(t->oracle.v[DV] + r * cols, cols) > 0) continue;
        for (int64_t i = 0; i < cols; i++)
            if (dtype_get(dv.dtype, dv.data, r * dv.ld + i) != 0 ||
                dtype_get(dk.dtype, dk.data, r * dk.ld + i) != 0)
                fail_msg("%s: no query sees key %lld, but column %lld of its gradients is not 0",
                         t->name, (long long)r, (long long)i);
    }
}

static void check_call(const Shape *s, int64_t head_size, DType storage, double scale)
{
    OpCase c = {.op = OP_attention_backward,
                .batch = s->batch,
                .tq = s->tq,
                .tk = s->tk,
                .option = s->documents != 0,
                .accumulate = s->accumulate,
                .accumulate_db = s->tq % 2,
                .bias = s->heads % 2 == 0 || s->accumulate,
                .attention = {.heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .head_size = head_size,
                              .causal_offset = s->offset,
                              .scale = scale}};
    FramedCall t;
    framed_call_make(&t, &c, storage, hopper_row_gap(&c), s->documents);
    framed_call_run(&t, run_hopper);
    framed_call_check(&t);
    check_unseen_keys(&t);
    framed_call_repeat(&t, run_hopper);
    framed_call_compare(&t, run_portable, "the portable kernels");
    framed_call_free(&t);
}

/* Calls each shape with each of the four variants of the kernels. Without HOPPER_SWEEP, calls shape
 * i only with variant (i + first) % 4. */
static void check_shapes(const Shape *shape, int n, int first)
{
    bool sweep = getenv("HOPPER_SWEEP") != NULL;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            if (sweep || k == (i + first) % 4)
                check_call(&shape[i], k % 2 ? 128 : 64, k / 2 ? F16 : BF16, SCALE);
}

#define CHECK_SHAPES(shapes, first) check_shapes(shapes, sizeof(shapes) / sizeof *(shapes), first)

/* Shapes that have little in common: one row, several tiles and blocks, groups of heads, documents,
 * queries at the end of a longer sequence of keys, gradients that are added to (accumulate). */
static void test_gradients_of_small_shapes_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 1, 1, 1, 1, 0, 0, false},
        {1, 261, 261, 2, 1, 0, FIRST_RANDOM, true},
        {2, 40, 140, 2, 1, 100, 0, false},
        {1, 150, 150, 1, 1, 0, 33, true},
        {1, 200, 200, 2, 1, 0, 0, true},
        {1, 130, 260, 1, 1, 130, 0, false},
        {1, 300, 300, 2, 2, 0, FIRST_RANDOM, false},
        {1, 129, 129, 3, 1, 0, 0, false},
    };
    (void)state;
    hopper_needed();
    CHECK_SHAPES(shape, 0);
}

/* Masks that hide a single key of a tile. With weights that are nearly equal, one key
 * too many or too few changes a sum by more than its bound. */
static void test_gradients_with_masks_that_hide_a_single_key_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        /* The first query of a tile sees all keys of a warpgroup but the last. */
        {1, 66, 200, 1, 1, 62, 0, false},
        {1, 130, 330, 1, 1, 126, 0, false},
        /* All queries see all keys of a warpgroup but the first. */
        {1, 50, 250, 1, 1, 200, 129, false},
        {1, 30, 190, 1, 1, 150, 65, false},
        /* Only the last query of a warpgroup or tile sees a key of the next tile, and only one. */
        {1, 64, 200, 1, 1, 65, 0, false},
        /* Half of the queries see all keys of a tile but the first. */
        {1, 66, 200, 1, 1, 133, FIRST_ODD, false},
    };
    (void)state;
    hopper_needed();
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        check_call(&shape[i], 64, BF16, SMALL_SCALE);
        check_call(&shape[i], 128, F16, SMALL_SCALE);
    }
}

/* Queries that see 1 to 8 keys, which are either all keys or the last ones of many. Each weight is
 * large, so its rounding has the largest effect. The errors are those of the portable kernels. In
 * the check, the rows of keys that no query sees do not count in the rms; if they did, the errors
 * of both kinds of kernels would exceed the bound of dv. */
static void test_gradients_of_queries_that_see_few_keys_match_the_oracle(void **state)
{
    (void)state;
    hopper_needed();
    for (int64_t n = 1; n <= 8; n += getenv("TEST_SAMPLE") ? 3 : 1) {
        const Shape all = {1, 66, n, 1, 1, n - 1, 0, false};
        const Shape last = {1, 66, 200, 1, 1, 199, 200 - n, false};
        check_call(&all, 64, n % 2 ? BF16 : F16, SMALL_SCALE);
        check_call(&all, 128, n % 2 ? F16 : BF16, SCALE);
        check_call(&last, 64, n % 2 ? F16 : BF16, SCALE);
        check_call(&last, 128, n % 2 ? BF16 : F16, SMALL_SCALE);
    }
}

/* The shapes of the attention cases in checked_cases.c. */
static void test_gradients_of_the_shapes_in_checked_cases_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 1, 1, 1, 1, 0, 0, false},
        {2, 17, 17, 3, 3, 0, 0, true},
        {1, 67, 67, 4, 2, 0, 0, false},
        {2, 131, 131, 2, 1, 0, FIRST_RANDOM, true},
        {1, 3, 20, 6, 3, 17, 0, false},
        {1, 5, 33, 2, 2, 4, 0, false},
        {2, 9, 5, 2, 2, 9, 0, false},
        {1, 261, 261, 2, 1, 0, 0, false},
        {1, 65, 65, 2, 1, 0, 0, false},
        {1, 131, 131, 2, 1, 0, FIRST_RANDOM, false},
        {1, 40, 140, 2, 1, 100, 0, false},
        {2, 1, 70, 4, 1, 69, 0, true},
        {2, 67, 67, 2, 2, 0, 0, false},
        {1, 67, 67, 1, 1, 0, 0, false},
        {1, 67, 67, 2, 1, 0, 0, false},
        {1, 33, 1100, 4, 2, 1067, 0, false},
        {1, 597, 597, 2, 1, 0, FIRST_RANDOM, false},
    };
    (void)state;
    hopper_sweep_needed();
    CHECK_SHAPES(shape, 0);
}

/* Lengths around the borders of warpgroups, tiles and blocks. */
static void test_gradients_of_lengths_near_tile_borders_match_the_oracle(void **state)
{
    static const int64_t length[] = {63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257};
    (void)state;
    hopper_sweep_needed();
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        Shape shape = {1, length[i], length[i], 1, 1, 0, 0, i % 2};
        check_shapes(&shape, 1, 0);
    }
}

/* More keys than queries, or fewer. The causal offset puts the queries at the end or at the
 * beginning of the keys, or is near the size of a tile. */
static void test_gradients_of_unequal_query_and_key_lengths_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 129, 300, 1, 1, 171, 0, false}, {1, 64, 200, 2, 1, 63, 0, false},
        {1, 130, 257, 1, 1, 127, 0, true},  {1, 130, 260, 1, 1, 129, 50, false},
        {1, 300, 70, 2, 2, 0, 0, false},    {1, 200, 129, 1, 1, 1, 0, true},
        {1, 1, 400, 4, 1, 399, 0, false},   {1, 150, 420, 1, 1, 270, 250, false},
    };
    (void)state;
    hopper_sweep_needed();
    CHECK_SHAPES(shape, 0);
}

/* A first key of its own for every query, and documents that end inside tiles and at their
 * borders. */
static void test_gradients_with_first_keys_of_documents_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {2, 300, 300, 2, 2, 0, FIRST_RANDOM, false},
        {1, 300, 300, 2, 1, 0, 1, false},
        {1, 300, 300, 2, 1, 0, 37, true},
        {1, 384, 384, 1, 1, 0, 64, false},
        {1, 384, 384, 1, 1, 0, 128, false},
        {1, 385, 385, 1, 1, 0, 127, false},
        {1, 390, 390, 1, 1, 0, 129, true},
        {2, 140, 280, 3, 1, 140, 90, false},
    };
    (void)state;
    hopper_sweep_needed();
    CHECK_SHAPES(shape, 0);
}

/* The causal border, after which a query sees no keys, is one key before, at or one key after the
 * border of a tile, for the first queries of each warpgroup. Keys also end near the borders of
 * tiles. */
static void test_gradients_with_causal_borders_near_tile_borders_match_the_oracle(void **state)
{
    static const int64_t offset[] = {0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 193, 255};
    static const int64_t queries[] = {66, 129, 195}, keys[] = {127, 128, 129, 257};
    (void)state;
    hopper_sweep_needed();
    for (int o = 0; o < 14; o++)
        for (int k = 0; k < 4; k++) {
            Shape shape = {1, queries[(o + k) % 3], keys[k], 1, 1, offset[o], 0, false};
            check_call(&shape, k % 2 ? 128 : 64, o % 2 ? F16 : BF16, SMALL_SCALE);
        }
}

/* Documents that begin one token before, at and one token after the borders of tiles and of the
 * queries of a warp. */
static void
test_gradients_with_documents_that_begin_near_tile_borders_match_the_oracle(void **state)
{
    static const int64_t first[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 192, 255, 300};
    (void)state;
    hopper_sweep_needed();
    for (int f = 0; f < 14; f++) {
        const Shape all = {1, 330, 330, 1, 1, 0, first[f], false},
                    last = {2, 130, 390, 1, 1, 260, first[f], false};
        check_call(&all, f % 2 ? 128 : 64, f % 4 < 2 ? F16 : BF16, SMALL_SCALE);
        check_call(&last, f % 2 ? 64 : 128, f % 4 < 2 ? F16 : BF16, SMALL_SCALE);
    }
}

/* Many heads, one kv head for all of them, groups of odd size, and many tiles of one head. */
static void test_gradients_with_many_heads_and_odd_groups_match_the_oracle(void **state)
{
    static const Shape shape[] = {
        {1, 70, 70, 12, 12, 0, 0, false}, {1, 140, 140, 7, 1, 0, 0, false},
        {2, 90, 90, 6, 2, 0, 0, true},    {3, 33, 33, 9, 3, 0, FIRST_RANDOM, false},
        {1, 640, 640, 1, 1, 0, 0, false},
    };
    (void)state;
    hopper_sweep_needed();
    CHECK_SHAPES(shape, 0);
}

/* Scratch memory that holds the delta of one pair of batch row and kv head at a time, with and
 * without room for the sums of the biases' gradients. */
static void test_gradients_with_little_scratch_memory_match_the_oracle(void **state)
{
    static const Shape shape = {2, 131, 131, 4, 2, 0, 0, false};
    enum { DELTA = 2 * 131, SUMS = 2 * 3 * (4 + 2 * 2) * 64 };
    (void)state;
    hopper_needed();
    CudaDevice *cuda = pair_cuda.impl;
    size_t bytes = cuda->workspace_bytes;
    cuda->workspace_bytes = (DELTA + SUMS) * sizeof(float);
    check_call(&shape, 64, BF16, SCALE);
    cuda->workspace_bytes = (DELTA + SUMS - 1) * sizeof(float);
    check_call(&shape, 64, BF16, SCALE);
    cuda->workspace_bytes = bytes;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_small_shapes_match_the_oracle),
        cmocka_unit_test(test_gradients_with_masks_that_hide_a_single_key_match_the_oracle),
        cmocka_unit_test(test_gradients_of_queries_that_see_few_keys_match_the_oracle),
        cmocka_unit_test(test_gradients_with_little_scratch_memory_match_the_oracle),
        cmocka_unit_test(test_gradients_of_the_shapes_in_checked_cases_match_the_oracle),
        cmocka_unit_test(test_gradients_of_lengths_near_tile_borders_match_the_oracle),
        cmocka_unit_test(test_gradients_of_unequal_query_and_key_lengths_match_the_oracle),
        cmocka_unit_test(test_gradients_with_first_keys_of_documents_match_the_oracle),
        cmocka_unit_test(test_gradients_with_causal_borders_near_tile_borders_match_the_oracle),
        cmocka_unit_test(
            test_gradients_with_documents_that_begin_near_tile_borders_match_the_oracle),
        cmocka_unit_test(test_gradients_with_many_heads_and_odd_groups_match_the_oracle),
    };
    return cmocka_run_group_tests_name("attention backward for hopper", tests, pair_setup,
                                       pair_teardown);
}
