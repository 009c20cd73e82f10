/* test_ops_cuda_attention.c -- compares attention on CUDA with the CPU's at the borders of tiles:
 * keys that end one short of a tile, causal borders there for the first or last query of a warp,
 * and first keys around them. Comparisons in the kernels decide whether a tile needs a mask or can
 * be skipped, and only such shapes reveal an off-by-one error in them. Skipped if there is no CUDA
 * device or the program is built without CUDA. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* The number of keys in a tile, and of queries in a warp, is a multiple of this or half of it. */
enum { GRAIN = 32, QUERIES = 2 * GRAIN + 1 };

/* Shape of a call. Queries before `from` see keys from 0 on; the others see keys from `first` on,
 * but at least their last key. */
typedef struct {
    DType storage;
    int64_t head_size, keys, offset;
    int64_t from;
    int32_t first;
} Call;

enum { O, LSE, DQ, DK, DV, Q, K, V, DOUT, O_READ, LSE_READ, FIRST, OPERANDS };

static int32_t first_of(const Call *c, int64_t t)
{
    int64_t last = t + c->offset < c->keys - 1 ? t + c->offset : c->keys - 1;
    if (t < c->from) return 0;
    return (int32_t)(c->first < last ? c->first : last);
}

/* Sets element 0 of q and k so that each key's weight is e^(1/2) times its neighbour's, increasing
 * towards the border of the visible keys. One key too many or too few then changes the result by a
 * large part. */
static void keys_tilt(const Call *c, Tensor q, Tensor k)
{
    for (int64_t t = 0; t < QUERIES; t++)
        dtype_set(c->storage, tensor_row(q, t), 0, 8);
    for (int64_t s = 0; s < c->keys; s++)
        dtype_set(c->storage, tensor_row(k, s), 0, 0.5 * (double)(c->first ? -s : s));
}

static void operands_draw(const Call *c, Tensor *t, int32_t *first)
{
    for (int i = 0; i < OPERANDS; i++) {
        int64_t rows = i == K || i == V || i == DK || i == DV ? c->keys : QUERIES;
        bool sums = i == LSE || i == LSE_READ;
        if (i == FIRST) continue;
        t[i] = pair_drawn(sums ? F32 : c->storage, sums ? rows : rows * c->head_size,
                          60 + (uint64_t)i, 1, false);
        t[i] = sums ? tensor_3d(t[i].data, F32, 1, 1, rows)
                    : tensor_3d(t[i].data, c->storage, 1, rows, c->head_size);
    }
    keys_tilt(c, t[Q], t[K]);
    for (int64_t i = 0; i < QUERIES; i++)
        first[i] = first_of(c, i);
    t[FIRST] = c->first ? tensor_1d(first, I32, QUERIES) : NO_TENSOR;
}

static Attention attention_of(const Call *c)
{
    return (Attention){.heads = 1,
                       .kv_heads = 1,
                       .head_size = c->head_size,
                       .causal_offset = c->offset,
                       .scale = 0.125};
}

static void forward(Device *dev, const Call *c, const Tensor *t, Tensor o, Tensor lse)
{
    op_attention_forward(dev, o, lse, t[Q], t[K], t[V], attention_of(c), t[FIRST]);
}

static void backward(Device *dev, const Call *c, const Tensor *t)
{
    AttentionTensors tensors = {.dq = t[DQ],
                                .dk = t[DK],
                                .dv = t[DV],
                                .dout = t[DOUT],
                                .q = t[Q],
                                .k = t[K],
                                .v = t[V],
                                .o = t[O_READ],
                                .lse = t[LSE_READ],
                                .first_key = t[FIRST]};
    op_attention_backward(dev, &tensors, false, attention_of(c));
}

/* Checks that all elements are within `tolerance` of the largest. If `tilted`, skips element 0 of
 * each row, which is a small sum of large terms. */
static void check_close(const Call *c, const char *what, Tensor want, Tensor got, bool tilted,
                        double tolerance)
{
    double largest = 0;
    for (int64_t i = 0; i < tensor_count(want); i++)
        if (!tilted || i % tensor_cols(want) > 0)
            largest = fmax(largest, fabs(dtype_get(want.dtype, want.data, i)));
    for (int64_t i = 0; i < tensor_count(want); i++) {
        double a = dtype_get(want.dtype, want.data, i), b = dtype_get(got.dtype, got.data, i);
        if (tilted && i % tensor_cols(want) == 0) continue;
        if (fabs(a - b) <= tolerance * largest) continue;
        fail_msg("%s, %lld keys, offset %lld, a head of %lld, first key %d from query %lld: %s "
                 "element %lld is %g, not %g",
                 dtype_name(c->storage), (long long)c->keys, (long long)c->offset,
                 (long long)c->head_size, c->first, (long long)c->from, what, (long long)i, b, a);
    }
}

/* Runs forward and backward on both devices; backward reads the CPU's o and lse on both. */
static void check_call(Call c)
{
    static const char *const name[] = {"o", "lse", "dq", "dk", "dv"};
    int32_t first[QUERIES];
    Tensor here[OPERANDS], back[OPERANDS], there[OPERANDS];
    operands_draw(&c, here, first);
    forward(&pair_cpu, &c, here, here[O_READ], here[LSE_READ]);
    for (int i = 0; i < OPERANDS; i++) {
        back[i] = pair_copy(here[i]);
        there[i] = device_put(&pair_cuda, here[i]);
    }
    forward(&pair_cpu, &c, here, here[O], here[LSE]);
    forward(&pair_cuda, &c, there, there[O], there[LSE]);
    backward(&pair_cpu, &c, here);
    backward(&pair_cuda, &c, there);
    for (int i = 0; i < OPERANDS; i++) {
        device_take(&pair_cuda, back[i], there[i]);
        double tolerance = i == LSE ? 1e-5 : 8 * dtype_info[c.storage].roundoff;
        if (i <= DV) check_close(&c, name[i], here[i], back[i], i == DQ || i == DK, tolerance);
        free(back[i].data);
        if (i != FIRST) free(here[i].data);
    }
}

/* Returns true if the next call with this head size and type should run. With TEST_SAMPLE every
 * second call of each combination runs; different sizes start with the first or the second, so that
 * together they cover all borders. */
static bool worth_making(int calls[3][2], int size, DType storage)
{
    return (size + calls[size][storage == F16]++) % 2 == 0 || devices_calls() > 1;
}

/* Head sizes whose kernels have tiles of 64 keys and 32 queries per warp, of 32 and 32, and of 32
 * and 16. */
static const int64_t head_size[] = {64, 128, 192};

/* Keys end one short of a tile, and causal borders are one before, at and one after the end of a
 * tile. */
static void test_attention_is_right_when_keys_end_at_a_tile_border(void **state)
{
    static const int64_t keys[] = {2 * GRAIN - 1, 3 * GRAIN - 1};
    static const int64_t offset[] = {GRAIN - 2, 2 * GRAIN - 2, GRAIN + 1, GRAIN / 2 - 2, 0};
    int calls[3][2] = {0};
    (void)state;
    pair_needed();
    for (int h = 0; h < 3; h++)
        for (int k = 0; k < 2; k++)
            for (int o = 0; o < 5; o++) {
                DType storage = (k + o) % 2 ? F16 : BF16;
                if (worth_making(calls, h, storage))
                    check_call((Call){.storage = storage,
                                      .head_size = head_size[h],
                                      .keys = keys[k],
                                      .offset = offset[o]});
            }
}

/* First keys are one before, at and one after the start of a tile, for all queries or from the last
 * query of a warp on. */
static void test_attention_is_right_when_keys_begin_at_a_tile_border(void **state)
{
    static const int32_t first[] = {1, GRAIN - 1, GRAIN, GRAIN + 1, 2 * GRAIN - 1};
    static const int64_t from[] = {0, GRAIN - 1};
    int calls[3][2] = {0};
    (void)state;
    pair_needed();
    for (int h = 0; h < 3; h++)
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 2; k++) {
                DType storage = (i + k) % 2 ? BF16 : F16;
                if (worth_making(calls, h, storage))
                    check_call((Call){.storage = storage,
                                      .head_size = head_size[h],
                                      .keys = 3 * GRAIN - 1,
                                      .offset = GRAIN - 2,
                                      .from = from[k],
                                      .first = first[i]});
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_is_right_when_keys_end_at_a_tile_border),
        cmocka_unit_test(test_attention_is_right_when_keys_begin_at_a_tile_border),
    };
    return cmocka_run_group_tests_name("attention on cuda", tests, pair_setup, pair_teardown);
}
