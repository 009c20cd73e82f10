/* test_ops_sum.c -- tests op_sum, the sum over ranks: the addends are added in the given order and
 * rounded once, with the same bits on every device, between any two types, in place, and for every
 * number of sources. Also tests the bits of op_column_sum. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LONGEST = 5003, MOST = 1000 };

/* The addends in host memory, as doubles that are representable in `type`. */
typedef struct {
    DType type;
    int n;
    int64_t count;
    double *value; /* (n, count) */
} Addends;

/* Draws addends of both signs and of magnitudes from 1e-3 to 1e3, so that another order of addition
 * gives other bits. */
static Addends addends_make(DType type, int n, int64_t count)
{
    Addends a = {.type = type, .n = n, .count = count};
    a.value = must_alloc((size_t)(n * count) * sizeof(double));
    for (int64_t i = 0; i < n * count; i++) {
        double scale = i % 3 == 0 ? 1e3 : i % 3 == 1 ? 1 : 1e-3, cell;
        dtype_set(type, &cell, 0, scale * drawn_normal(31, i));
        a.value[i] = dtype_get(type, &cell, 0);
    }
    return a;
}

/* Returns element i of the sum, added in the order of the sources in the type that ops.h
 * prescribes, rounded to `to`. */
static double sum_in_order(const Addends *a, DType to, int64_t i)
{
    double wide = a->value[i], cell;
    float narrow = (float)wide;
    bool in_double = a->type == F64 || to == F64;
    for (int k = 1; k < a->n; k++) {
        wide += a->value[k * a->count + i];
        narrow += (float)a->value[k * a->count + i];
    }
    dtype_set(to, &cell, 0, in_double ? wide : (double)narrow);
    return dtype_get(to, &cell, 0);
}

/* Copies the addends to the device, into one buffer, which is returned; src[k] is addend k. Each
 * begins `offset` elements after a multiple of 64, as if it had memory of its own. */
static Tensor addends_on(Device *dev, const Addends *a, int64_t offset, Tensor *src)
{
    int64_t room = (offset + a->count + 63) / 64 * 64, size = (int64_t)dtype_size(a->type);
    double *host = must_calloc((size_t)(a->n * room), sizeof *host);
    for (int k = 0; k < a->n; k++)
        for (int64_t i = 0; i < a->count; i++)
            dtype_set(a->type, host, k * room + offset + i, a->value[k * a->count + i]);
    Tensor all = device_put(dev, tensor_1d(host, a->type, a->n * room));
    free(host);
    for (int k = 0; k < a->n; k++)
        src[k] = tensor_1d((char *)all.data + (k * room + offset) * size, a->type, a->count);
    return all;
}

/* Computes the sum on this device into a tensor of type `to` (target < 0) or into source `target`.
 * The other sources must not change. */
static void check_sum(TestDevice *d, const Addends *a, DType to, int target, int64_t offset)
{
    Device *dev = &d->device;
    Tensor src[MOST], dst;
    double *host = must_calloc((size_t)a->count, sizeof *host);
    Tensor all = addends_on(dev, a, offset, src);
    dst = target < 0 ? device_put(dev, tensor_1d(host, to, a->count)) : src[target];
    op_sum(dev, dst, src, a->n);
    for (int k = -1; k < a->n; k++) {
        Tensor here = tensor_1d(host, k < 0 ? to : a->type, a->count);
        if (k == target && k >= 0) continue;
        device_copy(dev, here, k < 0 ? dst : src[k]);
        device_synchronize(dev);
        for (int64_t i = 0; i < a->count; i++) {
            double expected = k < 0 ? sum_in_order(a, to, i) : a->value[k * a->count + i];
            double got = dtype_get(here.dtype, host, i);
            if (got != expected)
                fail_msg("%s: %d of %s to %s, target %d, element %lld of %s: %a, not %a", d->name,
                         a->n, dtype_name(a->type), dtype_name(to), target, (long long)i,
                         k < 0 ? "the sum" : "a source", got, expected);
        }
    }
    if (target < 0) device_drop(dev, dst);
    device_drop(dev, all);
    free(host);
}

/* Tests any two float types, few and many sources, and odd sizes and offsets. */
static void sums_are_added_in_order_and_rounded_once(void **state)
{
    (void)state;
    static const struct {
        int n;
        int64_t count, offset;
    } shape[] = {{1, 129, 0},
                 {2, LONGEST, 0},
                 {3, 1024, 3},
                 {5, 31, 1},
                 {SUM_SOURCES, 264, 0},
                 {SUM_SOURCES + 1, 1100, 0},
                 {2 * SUM_SOURCES, 77, 1},
                 {2 * SUM_SOURCES + 1, 19, 0},
                 {MOST, 23, 0}};
    for (DType from = F64; from <= F16; from++)
        for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) {
            Addends a = addends_make(from, shape[s].n, shape[s].count);
            for (int i = 0; i < devices.count; i++)
                for (DType to = F64; to <= F16; to++)
                    if (device_has_storage(&devices.item[i].device, from) &&
                        device_has_storage(&devices.item[i].device, to))
                        check_sum(&devices.item[i], &a, to, -1, shape[s].offset);
            free(a.value);
        }
}

/* Writes the sum to each of its sources in turn. */
static void a_sum_may_be_written_to_any_source(void **state)
{
    (void)state;
    for (DType type = F64; type <= F16; type++)
        for (int n = 1; n <= 4; n++) {
            Addends a = addends_make(type, n, 2051);
            for (int i = 0; i < devices.count; i++)
                for (int target = 0; target < n; target++)
                    if (device_has_storage(&devices.item[i].device, type))
                        check_sum(&devices.item[i], &a, type, target, 0);
            free(a.value);
        }
    static const int target[] = {0, 1, SUM_SOURCES - 1, SUM_SOURCES, SUM_SOURCES + 1, MOST / 2 - 1};
    for (DType type = F64; type <= F16; type++) {
        Addends a = addends_make(type, MOST / 2, 40);
        for (int i = 0; i < devices.count; i++)
            for (size_t t = 0; t < sizeof target / sizeof *target; t++)
                if (device_has_storage(&devices.item[i].device, type))
                    check_sum(&devices.item[i], &a, type, target[t], 0);
        free(a.value);
    }
}

/* Long tensors: the CPU writes them past the caches, and CUDA may need several pieces of its
 * scratch memory. The sources are a few numbers apart in one buffer. */
static void long_tensors_of_many_ranks_are_summed_in_order(void **state)
{
    (void)state;
    enum { N = 140003, RANKS = SUM_SOURCES + 3 };
    static float host[N + RANKS], got[N];
    Tensor src[RANKS], here = tensor_1d(host, F32, N + RANKS);
    for (int k = 0; k < N + RANKS; k++)
        host[k] = (float)(k % 3 == 0 ? 1e3 : 1e-3) * (float)drawn_normal(35, k);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        Tensor all = device_put(dev, here), dst = device_put(dev, tensor_1d(got, F32, N));
        for (int r = 0; r < RANKS; r++)
            src[r] = tensor_slice_rows(all, r, N);
        op_sum(dev, dst, src, RANKS);
        device_take(dev, tensor_1d(got, F32, N), dst);
        device_drop(dev, all);
        for (int k = 0; k < N; k++) {
            float want = host[k];
            for (int r = 1; r < RANKS; r++)
                want += host[k + r];
            if (got[k] != want)
                fail_msg("%s: sum %d is %a, not %a", devices.item[i].name, k, (double)got[k],
                         (double)want);
        }
    }
}

/* 1024 gradients of 1 add up to 1024; 256 plus 63 ones is 319, which rounds to 320 in bf16. A sum
 * in bf16 would stop growing at 256, one in f16 at 2048. */
static void bug_6_many_small_gradients_of_ranks_are_added_without_loss(void **state)
{
    (void)state;
    enum { N = 37, ONES = 1024, GROUPS = ONES / SUM_SOURCES };
    for (int i = 0; i < devices.count; i++)
        for (DType type = BF16; type <= F16; type++) {
            Device *dev = &devices.item[i].device;
            double large = type == BF16 ? 256 : 2048, host[N];
            Tensor one = device_put(dev, tensor_1d(memset(host, 0, sizeof host), type, N)),
                   big = one, sum = one, src[SUM_SOURCES], part[GROUPS],
                   got = tensor_1d(host, type, N);
            big = device_put(dev, got);
            sum = device_put(dev, got);
            op_fill(dev, one, 1);
            op_fill(dev, big, large);
            for (int k = 0; k < SUM_SOURCES; k++)
                src[k] = k ? one : big;
            op_sum(dev, sum, src, SUM_SOURCES);
            device_copy(dev, got, sum);
            device_synchronize(dev);
            for (int k = 0; k < N; k++)
                assert_true(dtype_get(type, host, k) == large + 64);
            src[0] = one;
            for (int k = 0; k < GROUPS; k++) {
                part[k] = device_put(dev, tensor_1d(memset(host, 0, sizeof host), F32, N));
                op_sum(dev, part[k], src, SUM_SOURCES);
            }
            op_sum(dev, sum, part, GROUPS);
            for (int k = 0; k < GROUPS; k++)
                device_drop(dev, part[k]);
            device_take(dev, got, sum);
            for (int k = 0; k < N; k++)
                assert_true(dtype_get(type, host, k) == ONES);
            device_drop(dev, one);
            device_drop(dev, big);
        }
}

/* Returns the sum of the 16-bit gradients of n ranks. The gradient is `a` on the first half of the
 * ranks, `b` on the others. */
static double sum_of_halves(Device *dev, DType type, int n, double a, double b)
{
    double cell = 0;
    Tensor here = tensor_1d(&cell, type, 1), src[SUM_SOURCES], dst = device_put(dev, here);
    for (int k = 0; k < n; k++) {
        dtype_set(type, &cell, 0, k < n / 2 ? a : b);
        src[k] = device_put(dev, here);
    }
    op_sum(dev, dst, src, n);
    device_take(dev, here, dst);
    for (int k = 0; k < n; k++)
        device_drop(dev, src[k]);
    return dtype_get(type, &cell, 0);
}

/* Nothing is divided before the sum, so 1e-6 does not underflow in f16, whose smallest number is
 * 6e-8. A partial sum of 1.6e5, beyond f16's 65504, is not stored in f16. */
static void bug_40_partial_sums_neither_underflow_nor_overflow(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (DType type = BF16; type <= F16; type++) {
            Device *dev = &devices.item[i].device;
            double small, large;
            dtype_set(type, &small, 0, 1e-6);
            dtype_set(type, &large, 0, 1e4);
            small = dtype_get(type, &small, 0);
            large = dtype_get(type, &large, 0);
            assert_true(sum_of_halves(dev, type, 64, 1e-6, 1e-6) == 64 * small);
            assert_true(sum_of_halves(dev, type, 32, 1e4, -1e4) == 0);
            assert_true(sum_of_halves(dev, type, 4, 1e4, 1e4) == 4 * large);
            double both = sum_of_halves(dev, type, 2, 1e4, 1e-6);
            assert_true(both == large);
        }
}

/* A bias gradient that is made from the sums of op_column_sum has the same bits as one for which
 * op_linear_backward_weight computes the sums itself. */
static void column_sums_have_the_same_bits_as_a_bias_gradient(void **state)
{
    (void)state;
    enum { ROWS = 777, COLS = 305, INPUTS = 3 };
    static double host[ROWS * COLS];
    for (int i = 0; i < devices.count; i++)
        for (DType type = F64; type <= F16; type++) {
            Device *dev = &devices.item[i].device;
            DType compute = dtype_compute(type);
            double sum[2][COLS], first = NAN;
            if (!device_has_storage(dev, type)) continue;
            for (int64_t k = 0; k < ROWS * COLS; k++)
                dtype_set(type, host, k, drawn_normal(33, k));
            Tensor dy = device_put(dev, tensor_2d(host, type, ROWS, COLS)),
                   x = device_put(dev, tensor_2d(host, type, ROWS, INPUTS)),
                   dw = device_put(dev, tensor_2d(host, type, COLS, INPUTS)), db[2],
                   columns = device_put(dev, tensor_1d(host, compute, COLS));
            for (int k = 0; k < 2; k++)
                db[k] = device_put(dev, tensor_1d(host, compute, COLS));
            op_column_sum(dev, columns, dy);
            op_linear_backward_weight(dev, dw, db[0], dy, x, columns, false);
            op_linear_backward_weight(dev, dw, db[1], dy, x, NO_TENSOR, false);
            for (int k = 0; k < 2; k++)
                device_take(dev, tensor_1d(sum[k], compute, COLS), db[k]);
            first = dtype_get(compute, sum[0], 0);
            assert_memory_equal(sum[0], sum[1], COLS * dtype_size(compute));
            assert_true(first != 0);
            device_drop(dev, dy);
            device_drop(dev, x);
            device_drop(dev, dw);
            device_drop(dev, columns);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_added_in_order_and_rounded_once),
        cmocka_unit_test(a_sum_may_be_written_to_any_source),
        cmocka_unit_test(long_tensors_of_many_ranks_are_summed_in_order),
        cmocka_unit_test(column_sums_have_the_same_bits_as_a_bias_gradient),
        cmocka_unit_test(bug_6_many_small_gradients_of_ranks_are_added_without_loss),
        cmocka_unit_test(bug_40_partial_sums_neither_underflow_nor_overflow),
    };
    return cmocka_run_group_tests_name("sums of many tensors", tests, devices_setup,
                                       devices_teardown);
}
