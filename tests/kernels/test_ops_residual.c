/* test_ops_residual.c -- tests whether op_linear_residual_forward rounds once or twice. The bounds
 * of test_ops.c allow both. Here the sums are exact, so the two can be told apart. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/oracle/oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const DType storages[] = {F64, F32, BF16, F16};

enum { ROWS = 40, COLS = 61, PAIR = 2 };

/* The terms of an element. Every storage type represents each of them exactly, and f32 represents
 * the sum of all exactly. Element (n, o) of the product is fine(n) + coarse(o). */
static double fine(int64_t n)
{
    return (double)n / 4096;
}

static double coarse(int64_t o)
{
    return (double)(o - 30) / 8;
}

static double bias_at(int64_t o)
{
    return (double)(o * 5 % 16 - 8) / 64;
}

/* Returns a residual that nearly cancels the product. The sum is small, so what the product loses
 * by rounding is large beside it. */
static double residual_at(int64_t n, int64_t o)
{
    return (double)(n % 4) / 8 - coarse(o);
}

/* Returns the correct y (n, o): rounded once or, if `twice`, with the product rounded before the
 * sum. */
static double exact(DType dtype, int64_t n, int64_t o, bool bias, bool twice)
{
    double product = fine(n) + coarse(o);
    if (twice) product = oracle_round(dtype, product);
    return oracle_round(dtype, product + residual_at(n, o) + (bias ? bias_at(o) : 0));
}

static Tensor host(DType dtype, int64_t rows, int64_t cols)
{
    return tensor_2d(must_calloc((size_t)(rows * cols), dtype_size(dtype)), dtype, rows, cols);
}

/* Returns y (ROWS, COLS) in host memory. */
static Tensor run(Device *dev, DType dtype, bool with_bias)
{
    Tensor x = host(dtype, ROWS, PAIR), w = host(dtype, COLS, PAIR), bias = host(dtype, 1, COLS);
    Tensor residual = host(dtype, ROWS, COLS), y = host(dtype, ROWS, COLS);
    for (int64_t n = 0; n < ROWS; n++) {
        dtype_set(dtype, x.data, PAIR * n, 1);
        dtype_set(dtype, x.data, PAIR * n + 1, fine(n));
        for (int64_t o = 0; o < COLS; o++)
            dtype_set(dtype, residual.data, n * COLS + o, residual_at(n, o));
    }
    for (int64_t o = 0; o < COLS; o++) {
        dtype_set(dtype, w.data, PAIR * o, coarse(o));
        dtype_set(dtype, w.data, PAIR * o + 1, 1);
        dtype_set(dtype, bias.data, o, bias_at(o));
    }
    Tensor near[] = {x, w, bias, residual}, far[4], out = device_put(dev, y);
    for (int i = 0; i < 4; i++)
        far[i] = device_put(dev, near[i]);
    op_linear_residual_forward(dev, out, far[0], far[1],
                               with_bias ? tensor_flat(far[2]) : NO_TENSOR, far[3]);
    device_take(dev, y, out);
    for (int i = 0; i < 4; i++) {
        device_drop(dev, far[i]);
        free(near[i].data);
    }
    return y;
}

/* The CPU rounds the product and then the sum, as the two separate ops do, so a model has the same
 * bits with this op as with those. CUDA rounds once, which is more exact. If its library refuses to
 * add the residual, it rounds like the CPU. All elements must be rounded in the same way. */
static void check_roundings(TestDevice *d, DType dtype, bool bias)
{
    Tensor y = run(&d->device, dtype, bias);
    int once = 0, twice = 0, differ = 0;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        double got = dtype_get(dtype, y.data, i);
        double one = exact(dtype, i / COLS, i % COLS, bias, false),
               two = exact(dtype, i / COLS, i % COLS, bias, true);
        once += got == one;
        twice += got == two;
        differ += one != two;
    }
    bool as_cpu = twice == ROWS * COLS, better = d->cuda && once == ROWS * COLS;
    if (!as_cpu && !better)
        fail_msg("%s, %s%s: of %d elements, %d are rounded once and %d twice", d->name,
                 dtype_name(dtype), bias ? ", bias" : "", ROWS * COLS, once, twice);
    if (dtype_size(dtype) == 2 && differ < 50)
        fail_msg("%s: one rounding and two differ in %d elements only", dtype_name(dtype), differ);
    free(y.data);
}

static void the_cpu_rounds_the_product_and_cuda_only_the_sum(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 4 * 2; i++) {
        TestDevice *d = &devices.item[i / 8];
        DType dtype = storages[i / 2 % 4];
        if (device_has_storage(&d->device, dtype)) check_roundings(d, dtype, i & 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_rounds_the_product_and_cuda_only_the_sum),
    };
    return cmocka_run_group_tests_name("residual after a product", tests, devices_setup,
                                       devices_teardown);
}
