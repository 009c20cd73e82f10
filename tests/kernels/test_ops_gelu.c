/* test_ops_gelu.c -- tests the two fused gelus, one of the rounded product and one of the unrounded
 * sum, and the fused gelu' of the backward pass. The differences between them, and from other forms
 * of gelu, are smaller than the bounds of test_ops.c, so the sums are exact here. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const DType storages[] = {F64, F32, BF16, F16};

/* Row lengths that are multiples of 8, which cuBLASLt's epilogues require, and others; PAIR terms
 * per sum. */
enum { ROWS = 40, WIDE = 64, ODD = 61, PAIR = 2 };

static Tensor host(DType dtype, int64_t rows, int64_t cols)
{
    return tensor_2d(must_calloc((size_t)(rows * cols), dtype_size(dtype)), dtype, rows, cols);
}

/* Addends that every storage type represents exactly: sum (n, o) = fine n + coarse o + bias o,
 * which is exact in f32 in any order. */
static double fine(int64_t n)
{
    return (double)n / 4096;
}

static double coarse(int64_t o)
{
    return (double)(o - 40) / 8;
}

static double bias_at(int64_t o)
{
    return (double)(o * 5 % 16 - 8) / 8;
}

/* The outputs of one call, in host memory; pre has no data if it was not requested. */
typedef struct {
    Tensor y, pre;
} Made;

static void made_free(Made m)
{
    free(m.y.data);
    free(m.pre.data);
}

static Made run(Device *dev, Tensor x, Tensor w, Tensor bias, Epilogue epilogue, bool kept)
{
    Made m = {.y = host(x.dtype, tensor_rows(x), tensor_rows(w))};
    if (kept) m.pre = host(x.dtype, tensor_rows(x), tensor_rows(w));
    Tensor a = device_put(dev, x), b = device_put(dev, w), c = device_put(dev, bias);
    Tensor y = device_put(dev, m.y), pre = device_put(dev, m.pre);
    op_linear_forward(dev, y, a, b, c, epilogue, pre);
    device_take(dev, m.y, y);
    device_take(dev, m.pre, pre);
    device_drop(dev, a);
    device_drop(dev, b);
    device_drop(dev, c);
    return m;
}

/* Checks that every y is the gelu of the sum, rounded once, and every pre the rounded sum. Counts
 * the elements for which gelu of the rounded sum would be wrong. */
static int check_elements(const char *name, Made m, bool with_bias)
{
    DType dtype = m.y.dtype;
    double unit = dtype_info[dtype].roundoff, compute = dtype_info[dtype_compute(dtype)].roundoff;
    int64_t cols = tensor_cols(m.y);
    int other = 0;
    for (int64_t i = 0; i < tensor_count(m.y); i++) {
        double sum = fine(i / cols) + coarse(i % cols) + (with_bias ? bias_at(i % cols) : 0);
        double exact = oracle_gelu(sum), got = dtype_get(dtype, m.y.data, i);
        double bound = unit * fabs(exact) + 16 * compute * fabs(sum) + (dtype == F16 ? 0x1p-25 : 0);
        if (!(fabs(got - exact) <= bound))
            fail_msg("%s: gelu(%.9g) is %.9g, not %.9g", name, sum, got, exact);
        double rounded = oracle_round(dtype, oracle_gelu(oracle_round(dtype, sum)));
        other += fabs(rounded - exact) > bound;
        if (!tensor_present(m.pre)) continue;
        if (dtype_get(dtype, m.pre.data, i) != oracle_round(dtype, sum))
            fail_msg("%s: pre of %.9g is %.9g", name, sum, dtype_get(dtype, m.pre.data, i));
    }
    return other;
}

static void check_sums(TestDevice *d, DType dtype, int64_t outputs, bool with_bias, bool kept)
{
    char name[256];
    snprintf(name, sizeof name, "%s, %s, %lld columns%s%s", d->name, dtype_name(dtype),
             (long long)outputs, with_bias ? ", bias" : "", kept ? ", pre" : "");
    Tensor x = host(dtype, ROWS, PAIR), w = host(dtype, outputs, PAIR);
    Tensor bias = with_bias ? tensor_flat(host(dtype, 1, outputs)) : NO_TENSOR;
    for (int64_t n = 0; n < ROWS; n++) {
        dtype_set(dtype, x.data, PAIR * n, 1);
        dtype_set(dtype, x.data, PAIR * n + 1, fine(n));
    }
    for (int64_t o = 0; o < outputs; o++) {
        dtype_set(dtype, w.data, PAIR * o, coarse(o));
        dtype_set(dtype, w.data, PAIR * o + 1, 1);
        if (with_bias) dtype_set(dtype, bias.data, o, bias_at(o));
    }
    Made m = run(&d->device, x, w, bias, EPILOGUE_GELU_OF_SUM, kept);
    int other = check_elements(name, m, with_bias);
    if (dtype_size(dtype) == 2 && other < 50)
        fail_msg("%s: gelu of the rounded sum would differ in %d elements only", name, other);
    made_free(m);
    free(x.data);
    free(w.data);
    free(bias.data);
}

static void gelu_of_the_sum_is_rounded_once(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 4 * 8; i++) {
        TestDevice *d = &devices.item[i / 32];
        DType dtype = storages[i / 8 % 4];
        if (device_has_storage(&d->device, dtype))
            check_sums(d, dtype, i & 1 ? WIDE : ODD, i & 2, i & 4);
    }
}

static Tensor drawn(DType dtype, int64_t rows, int64_t cols, uint64_t stream)
{
    Tensor t = host(dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        dtype_set(dtype, t.data, i, drawn_normal(stream, i));
    return t;
}

/* If storage has the compute type, nothing is rounded before gelu, so both give the same bits. */
static void the_two_gelus_are_one_in_f32_and_f64(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 2 * 4; i++) {
        TestDevice *d = &devices.item[i / 8];
        DType dtype = storages[i / 4 % 2];
        if (!device_has_storage(&d->device, dtype)) continue;
        int64_t outputs = i & 1 ? WIDE : ODD;
        Tensor x = drawn(dtype, ROWS, 37, 1), w = drawn(dtype, outputs, 37, 2);
        Tensor bias = drawn(dtype, 1, outputs, 3);
        Made a = run(&d->device, x, w, tensor_flat(bias), EPILOGUE_GELU, i & 2),
             b = run(&d->device, x, w, tensor_flat(bias), EPILOGUE_GELU_OF_SUM, i & 2);
        assert_memory_equal(a.y.data, b.y.data, tensor_bytes(a.y));
        if (i & 2) assert_memory_equal(a.pre.data, b.pre.data, tensor_bytes(a.pre));
        made_free(a);
        made_free(b);
        free(x.data);
        free(w.data);
        free(bias.data);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The arguments of gelu': values of the storage type over the range in which it is curved. */
static double pre_at(DType dtype, int64_t n, int64_t i)
{
    return oracle_round(dtype, (double)((n * 67 + i * 29) % 1201 - 600) / 128);
}

/* Every dx is the sum, exact in f32, times gelu' of the tanh form, rounded once; only rounding
 * errors of f32 are allowed. A gelu' computed with erf is wrong by up to 1e-3, one with the
 * hardware's approximate tanh by 2^-11. Then some elements round differently in 16 bits, and all
 * differ in f32. */
static void check_slopes(const char *name, Tensor dx, Tensor pre)
{
    DType dtype = dx.dtype;
    double unit = dtype_info[dtype].roundoff, compute = dtype_info[dtype_compute(dtype)].roundoff;
    int64_t cols = tensor_cols(dx);
    for (int64_t i = 0; i < tensor_count(dx); i++) {
        double sum = fine(i / cols) + coarse(i % cols), x = dtype_get(dtype, pre.data, i);
        double exact = sum * oracle_gelu_slope(x), got = dtype_get(dtype, dx.data, i);
        double bound = unit * fabs(exact) + 32 * compute * fabs(sum) + (dtype == F16 ? 0x1p-25 : 0);
        if (!(fabs(got - exact) <= bound))
            fail_msg("%s: %.9g gelu'(%.9g) is %.9g, not %.9g", name, sum, x, got, exact);
    }
}

static void check_backward(TestDevice *d, DType dtype, int64_t inputs)
{
    char name[256];
    snprintf(name, sizeof name, "%s, %s, %lld columns", d->name, dtype_name(dtype),
             (long long)inputs);
    Tensor dy = host(dtype, ROWS, PAIR), w = host(dtype, PAIR, inputs);
    Tensor pre = host(dtype, ROWS, inputs), dx = host(dtype, ROWS, inputs);
    for (int64_t n = 0; n < ROWS; n++) {
        dtype_set(dtype, dy.data, PAIR * n, 1);
        dtype_set(dtype, dy.data, PAIR * n + 1, fine(n));
        for (int64_t i = 0; i < inputs; i++)
            dtype_set(dtype, pre.data, n * inputs + i, pre_at(dtype, n, i));
    }
    for (int64_t i = 0; i < inputs; i++) {
        dtype_set(dtype, w.data, i, coarse(i));
        dtype_set(dtype, w.data, inputs + i, 1);
    }
    Device *dev = &d->device;
    Tensor a = device_put(dev, dy), b = device_put(dev, w), c = device_put(dev, pre);
    Tensor out = device_put(dev, dx);
    op_linear_backward_input(dev, out, a, b, EPILOGUE_GELU, c, false);
    device_take(dev, dx, out);
    check_slopes(name, dx, pre);
    Tensor far[] = {a, b, c}, near[] = {dy, w, pre, dx};
    for (int i = 0; i < 3; i++)
        device_drop(dev, far[i]);
    for (int i = 0; i < 4; i++)
        free(near[i].data);
}

static void gelu_backward_uses_the_derivative_of_the_tanh_form(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 4 * 2; i++) {
        TestDevice *d = &devices.item[i / 8];
        DType dtype = storages[i / 2 % 4];
        if (device_has_storage(&d->device, dtype)) check_backward(d, dtype, i & 1 ? WIDE : ODD);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_backward_uses_the_derivative_of_the_tanh_form),
        cmocka_unit_test(gelu_of_the_sum_is_rounded_once),
        cmocka_unit_test(the_two_gelus_are_one_in_f32_and_f64),
    };
    return cmocka_run_group_tests_name("gelu after a product", tests, devices_setup,
                                       devices_teardown);
}
