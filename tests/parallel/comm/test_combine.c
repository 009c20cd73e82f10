/* test_combine.c -- tests the sums and maxima that the transports compute themselves, of up to 1000
 * ranks, on the host and on a CPU device: the same bits as a simple loop in the order of the
 * ranks. */
#include "model/core/check.h"
#include "parallel/comm/combine.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1000, N = 37 };
static const int sizes[] = {1, 2, 63, 64, 65, 128, 129, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* What rank r contributes: both signs, and magnitudes that make each rounding visible. */
static double contribution(DType type, int r, int i)
{
    double cell, x = drawn_normal(36, (int64_t)r * N + i) * (r % 3 == 0 ? 1e3 : 1);
    bool whole = type == I64 || type == I32;
    dtype_set(type, &cell, 0, whole ? rint(1e3 * x) : x);
    return dtype_get(type, &cell, 0);
}

/* Returns element i of the sum or maximum of the first `ranks`, in their order, in f64 (f64 and
 * whole numbers) or f32, rounded once. */
static double combined(DType type, int ranks, int i, ReduceOp op)
{
    double wide = contribution(type, 0, i), cell;
    float narrow = (float)wide;
    bool in_float = type == F32 || type == BF16 || type == F16;
    for (int r = 1; r < ranks; r++) {
        double x = contribution(type, r, i);
        wide = op == REDUCE_SUM ? wide + x : fmax(wide, x);
        narrow = op == REDUCE_SUM ? narrow + (float)x : fmaxf(narrow, (float)x);
    }
    dtype_set(type, &cell, 0, in_float ? (double)narrow : wide);
    return dtype_get(type, &cell, 0);
}

/* Combines `ranks` tensors into a tensor of its own (target < 0) or into that of rank `target`. */
static void check_combine(Device *on, DType type, int ranks, ReduceOp op, int target)
{
    Tensor src[MOST];
    char *memory = must_calloc((size_t)(ranks + 1) * N, dtype_size(type));
    for (int r = 0; r <= ranks; r++) {
        Tensor t = tensor_1d(memory + (size_t)r * N * dtype_size(type), type, N);
        for (int i = 0; r < ranks && i < N; i++)
            dtype_set(type, t.data, i, contribution(type, r, i));
        if (r < ranks) src[r] = t;
    }
    Tensor own = tensor_1d(memory + (size_t)ranks * N * dtype_size(type), type, N),
           dst = target < 0 ? own : src[target];
    comm_combine(on, dst, src, ranks, op);
    for (int i = 0; i < N; i++) {
        double got = dtype_get(type, dst.data, i), want = combined(type, ranks, i, op);
        if (got != want)
            fail_msg("%s of %d %s to %d, element %d: %a, not %a",
                     op == REDUCE_SUM ? "sum" : "maximum", ranks, dtype_name(type), target, i, got,
                     want);
    }
    free(memory);
}

static void check_type(Device *on, DType type)
{
    for (int s = 0; s < SIZES; s++)
        for (int op = 0; op < 2; op++) {
            int ranks = sizes[s];
            check_combine(on, type, ranks, op ? REDUCE_MAX : REDUCE_SUM, -1);
            check_combine(on, type, ranks, op ? REDUCE_MAX : REDUCE_SUM, 0);
            check_combine(on, type, ranks, op ? REDUCE_MAX : REDUCE_SUM, ranks - 1);
        }
}

static void test_tensors_of_many_ranks_are_reduced_in_rank_order_on_the_host(void **state)
{
    (void)state;
    static const DType types[] = {F64, F32, I64, I32};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        check_type(NULL, types[t]);
}

static void test_tensors_of_many_ranks_are_reduced_in_rank_order_on_a_device(void **state)
{
    (void)state;
    const DeviceOptions options = {.threads = 2, .local_ranks = 1};
    char err[256];
    Device dev;
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    for (DType type = F64; type <= F16; type++)
        check_type(&dev, type);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_of_many_ranks_are_reduced_in_rank_order_on_the_host),
        cmocka_unit_test(test_tensors_of_many_ranks_are_reduced_in_rank_order_on_a_device),
    };
    return cmocka_run_group_tests_name("sums of many ranks", tests, NULL, NULL);
}
