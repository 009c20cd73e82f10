/* test_ops_gelu.c -- tests the two fused gelus, one of the rounded product and one of the unrounded
 * sum, and the fused gelu' of the backward pass. The differences between them, and from other forms
 * of gelu, are smaller than the bounds of test_ops.c. So the operands here are chosen such that the
 * sums are exact.
 *
 * The epilogues of cuBLASLt may compute tanh by the GPU's tanh.approx, whose relative error is up
 * to 2^-11 (PTX ISA). Where they may be used, the bounds allow this. They are then wider than the
 * difference between the forms of gelu with tanh and with erf. But errors of tanh are not
 * correlated with that difference, so many results together show which form was computed (Form). */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/support.h"

#include <dlfcn.h>
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

static const double ROOT = 0.79788456080286535588; /* sqrt(2 / pi) */

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

/* Returns the relative error of tanh that is allowed. cuBLASLt may compute gelu and gelu' of 16-bit
 * results, unless rows of pre have a length that is no multiple of 8; our kernels compute the
 * others. */
static double tanh_error(const TestDevice *d, DType dtype, int64_t pre_cols)
{
    return d->cuda && dtype_size(dtype) == 2 && pre_cols % 8 == 0 ? 0x1p-11 : 0;
}

static double tanh_of(double x)
{
    return tanh(ROOT * (x + 0.044715 * x * x * x));
}

static double erf_gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

static double erf_gelu_slope(double x)
{
    return 0.5 * (1 + erf(x / sqrt(2))) + 0.5 * ROOT * x * exp(-0.5 * x * x);
}

/* Shows by a least-squares fit whether many results follow another form of gelu. It fits the errors
 * of the results to the differences of that form from the right one, each divided by the bound of
 * the error. The fitted factor, along / size, is about 0 for results of the right form and about 1
 * for those of the other. */
typedef struct {
    double along, size;
} Form;

/* Adds the error of the result at x to the fit. Only arguments of at most 2.5 in magnitude count.
 * For larger ones, tanh is so close to 1 that an approximate tanh is exactly 1, and then all errors
 * have the same sign. */
static void form_add(Form *form, double x, double error, double difference, double bound)
{
    if (fabs(x) > 2.5 || bound == 0) return;
    form->along += error * difference / (bound * bound);
    form->size += difference * difference / (bound * bound);
}

static bool form_is_right(const Form *form)
{
    return fabs(form->along) <= 0.5 * form->size;
}

/* Describes what is wrong with results; empty if nothing is. */
typedef struct {
    char text[512];
} Fault;

/* Checks that every y is the gelu of the sum, rounded once, and every pre the rounded sum. Returns
 * the number of elements for which gelu of the rounded sum would be wrong. */
static int check_elements(Fault *fault, Made m, bool with_bias, double tanh_error)
{
    DType dtype = m.y.dtype;
    double unit = dtype_info[dtype].roundoff, compute = dtype_info[dtype_compute(dtype)].roundoff;
    int64_t cols = tensor_cols(m.y);
    Form of_erf = {0}, of_rounded = {0};
    int other = 0;
    for (int64_t i = 0; i < tensor_count(m.y); i++) {
        double sum = fine(i / cols) + coarse(i % cols) + (with_bias ? bias_at(i % cols) : 0);
        double exact = oracle_gelu(sum), got = dtype_get(dtype, m.y.data, i);
        double rounding =
            unit * fabs(exact) + 16 * compute * fabs(sum) + (dtype == F16 ? 0x1p-25 : 0);
        double bound = rounding + 0.5 * fabs(sum * tanh_of(sum)) * tanh_error;
        if (!(fabs(got - exact) <= bound))
            snprintf(fault->text, sizeof fault->text, "gelu(%.9g) is %.9g, not %.9g", sum, got,
                     exact);
        double rounded = oracle_gelu(oracle_round(dtype, sum));
        other += fabs(oracle_round(dtype, rounded) - exact) > rounding;
        form_add(&of_erf, sum, got - exact, erf_gelu(sum) - exact, bound);
        form_add(&of_rounded, sum, got - exact, rounded - exact, bound);
        if (!tensor_present(m.pre)) continue;
        if (dtype_get(dtype, m.pre.data, i) != oracle_round(dtype, sum))
            snprintf(fault->text, sizeof fault->text, "pre of %.9g is %.9g", sum,
                     dtype_get(dtype, m.pre.data, i));
    }
    if (!form_is_right(&of_erf))
        snprintf(fault->text, sizeof fault->text, "gelu by erf: %.3g of it",
                 of_erf.along / of_erf.size);
    if (!form_is_right(&of_rounded))
        snprintf(fault->text, sizeof fault->text, "gelu of the rounded sum: %.3g of it",
                 of_rounded.along / of_rounded.size);
    return other;
}

static Fault sums_fault(TestDevice *d, DType dtype, int64_t outputs, bool with_bias, bool kept)
{
    Fault fault = {""};
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
    int other = check_elements(&fault, m, with_bias, tanh_error(d, dtype, kept ? outputs : 0));
    if (dtype_size(dtype) == 2 && other < 50)
        snprintf(fault.text, sizeof fault.text,
                 "gelu of the rounded sum would differ in %d elements only", other);
    made_free(m);
    free(x.data);
    free(w.data);
    free(bias.data);
    return fault;
}

static void gelu_of_the_unrounded_sum_is_rounded_once(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 4 * 8; i++) {
        TestDevice *d = &devices.item[i / 32];
        DType dtype = storages[i / 8 % 4];
        if (!device_has_storage(&d->device, dtype)) continue;
        Fault fault = sums_fault(d, dtype, i & 1 ? WIDE : ODD, i & 2, i & 4);
        if (fault.text[0])
            fail_msg("%s, %s, %d columns%s%s: %s", d->name, dtype_name(dtype), i & 1 ? WIDE : ODD,
                     i & 2 ? ", bias" : "", i & 4 ? ", pre" : "", fault.text);
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
static void both_gelu_epilogues_give_the_same_bits_in_f32_and_f64(void **state)
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

/* Returns an argument of gelu'. All of them are values of the storage type, and together they cover
 * the range in which gelu' is curved. */
static double pre_at(DType dtype, int64_t n, int64_t i)
{
    return oracle_round(dtype, (double)((n * 67 + i * 29) % 1201 - 600) / 128);
}

/* Returns how much gelu'(x) changes with tanh t, relative to a change of t. */
static double slope_of_tanh(double x)
{
    double t = tanh_of(x);
    return 0.5 * fabs(t) * (1 + 2 * ROOT * fabs(x * t) * (1 + 3 * 0.044715 * x * x));
}

/* Checks that every dx is the sum, exact in f32, times gelu' of the tanh form, rounded once. Allows
 * for errors of f32 and the given error of tanh. A gelu' computed with erf is wrong by up to
 * 1e-3. */
static Fault slopes_fault(Tensor dx, Tensor pre, double tanh_error)
{
    Fault fault = {""};
    Form form = {0};
    DType dtype = dx.dtype;
    double unit = dtype_info[dtype].roundoff, compute = dtype_info[dtype_compute(dtype)].roundoff;
    int64_t cols = tensor_cols(dx);
    for (int64_t i = 0; i < tensor_count(dx); i++) {
        double sum = fine(i / cols) + coarse(i % cols), x = dtype_get(dtype, pre.data, i);
        double exact = sum * oracle_gelu_slope(x), got = dtype_get(dtype, dx.data, i);
        double bound = unit * fabs(exact) + 32 * compute * fabs(sum) +
                       (dtype == F16 ? 0x1p-25 : 0) + fabs(sum) * slope_of_tanh(x) * tanh_error;
        if (!(fabs(got - exact) <= bound))
            snprintf(fault.text, sizeof fault.text, "%.9g gelu'(%.9g) is %.9g, not %.9g", sum, x,
                     got, exact);
        form_add(&form, x, got - exact, sum * erf_gelu_slope(x) - exact, bound);
    }
    if (!form_is_right(&form))
        snprintf(fault.text, sizeof fault.text, "gelu' by erf: %.3g of it", form.along / form.size);
    return fault;
}

static Fault backward_fault(TestDevice *d, DType dtype, int64_t inputs)
{
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
    Fault fault = slopes_fault(dx, pre, tanh_error(d, dtype, inputs));
    Tensor far[] = {a, b, c}, near[] = {dy, w, pre, dx};
    for (int i = 0; i < 3; i++)
        device_drop(dev, far[i]);
    for (int i = 0; i < 4; i++)
        free(near[i].data);
    return fault;
}

static void gelu_backward_uses_the_derivative_of_the_tanh_form(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count * 4 * 2; i++) {
        TestDevice *d = &devices.item[i / 8];
        DType dtype = storages[i / 2 % 4];
        if (!device_has_storage(&d->device, dtype)) continue;
        Fault fault = backward_fault(d, dtype, i & 1 ? WIDE : ODD);
        if (fault.text[0])
            fail_msg("%s, %s, %d columns: %s", d->name, dtype_name(dtype), i & 1 ? WIDE : ODD,
                     fault.text);
    }
}

/* ---- the library's form ---------------------------------------------------------------------- */

/* An emulated cuBLASLt takes the place of the library and differs from it in one of three ways
 * (EMU_LT). A tanh that is wrong by 2^-11 must pass. A gelu of the rounded sum, and a gelu or gelu'
 * computed with erf, must be detected. */
static void a_library_may_approximate_tanh_but_not_use_another_form_of_gelu(void **state)
{
    (void)state;
    const char *before = getenv("EMU_LT");
    if (before || dlsym(RTLD_DEFAULT, "emu_count_products") == NULL) return;
    for (int i = 0; i < devices.count * 2; i++) {
        TestDevice *d = &devices.item[i / 2];
        DType dtype = i % 2 ? BF16 : F16;
        if (!d->cuda) continue;
        setenv("EMU_LT", "approximate", 1);
        assert_string_equal(sums_fault(d, dtype, WIDE, true, true).text, "");
        assert_string_equal(backward_fault(d, dtype, WIDE).text, "");
        setenv("EMU_LT", "rounded", 1);
        assert_string_not_equal(sums_fault(d, dtype, WIDE, true, true).text, "");
        setenv("EMU_LT", "erf", 1);
        assert_string_not_equal(sums_fault(d, dtype, WIDE, true, true).text, "");
        assert_string_not_equal(backward_fault(d, dtype, WIDE).text, "");
        unsetenv("EMU_LT");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_backward_uses_the_derivative_of_the_tanh_form),
        cmocka_unit_test(gelu_of_the_unrounded_sum_is_rounded_once),
        cmocka_unit_test(both_gelu_epilogues_give_the_same_bits_in_f32_and_f64),
        cmocka_unit_test(a_library_may_approximate_tanh_but_not_use_another_form_of_gelu),
    };
    return cmocka_run_group_tests_name("gelu after a product", tests, devices_setup,
                                       devices_teardown);
}
