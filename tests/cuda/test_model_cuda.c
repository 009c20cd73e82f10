/* test_model_cuda.c -- compares the loss and the gradients of whole models on the CUDA device with
 * the CPU's, in every storage type that CUDA supports. Skipped if there is no CUDA device.
 *
 * The reference is the exact gradient: the same weights, as rounded to the storage type, in f64 on
 * the CPU. On either device, rounded activations make a 16-bit gradient inexact by about a percent.
 * The test requires that CUDA's error is not much larger than the CPU's for any parameter. Both
 * devices round at the same places, except that the tensor-core kernels also round the softmax
 * weights and their gradients before products. A different order of summation also leads to
 * different roundings. */
#include "model/core/check.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 2, T = 40, MICROS = 2, SHAPES = 4 };

/* In 16-bit types, heads of size 16 and 32 use the tensor cores; heads of size 6 do not. */
static GptShape shape_of(int i)
{
    GptShape s = i == 0 || i == 3 ? fixture_shape()
                 : i == 1         ? fixture_llama_shape()
                                  : fixture_mqa_shape();
    s.P = T;
    if (i == 3) return s;
    s.D = i == 1 ? 32 : 16;
    s.C = s.H * s.D;
    s.F = 136;
    return s;
}

static void copy_weights(Fixture *to, Fixture *from)
{
    for (int p = 0; p < to->table.n_params; p++) {
        Tensor x = fixture_fetch(from, fixture_weight(from, p));
        Tensor w = fixture_fetch(to, fixture_weight(to, p));
        for (int64_t i = 0; i < tensor_count(x); i++)
            dtype_set(w.dtype, w.data, i, dtype_get(x.dtype, x.data, i));
        fixture_store(to, fixture_weight(to, p), w);
        free(w.data);
        free(x.data);
    }
}

/* Returns the norm of the difference between parameter p's gradient and the exact one, and sets
 * *size to the norm of the exact one. */
static double distance(Fixture *f, Fixture *exact, int p, double *size)
{
    Tensor g = fixture_fetch(f, fixture_grad(f, p)), e = fixture_grad(exact, p);
    double sum = 0, own = 0;
    for (int64_t i = 0; i < tensor_count(g); i++) {
        double x = dtype_get(e.dtype, e.data, i), d = dtype_get(g.dtype, g.data, i) - x;
        sum += d * d;
        own += x * x;
    }
    free(g.data);
    *size = sqrt(own);
    return sqrt(sum);
}

/* Returns the root mean square of all elements of the exact gradients. */
static double global_rms(Fixture *exact)
{
    double sum = 0, count = 0;
    for (int p = 0; p < exact->table.n_params; p++) {
        Tensor e = fixture_grad(exact, p);
        for (int64_t i = 0; i < tensor_count(e); i++)
            sum += dtype_get(e.dtype, e.data, i) * dtype_get(e.dtype, e.data, i);
        count += (double)tensor_count(e);
    }
    return sqrt(sum / count);
}

/* Checks that the error of each CUDA gradient is at most FACTOR times the CPU's error. (On emulated
 * devices the largest ratio is 1.7 and most are near 1; a wrong gradient has a ratio of 10 or
 * more.)
 *
 * Some exact gradients are zero in theory, such as that of a key's bias without RoPE. There both
 * devices compute only noise. If the exact gradient is smaller than NOTHING times the rms of all
 * gradients, CUDA's error may be up to that rms times NOTHING or times one rounding, whichever is
 * larger. */
static void check_gradients(Fixture *cuda, Fixture *cpu, Fixture *exact, DType dtype,
                            const char *name)
{
    const double FACTOR = 3, NOTHING = 1e-6;
    double all = global_rms(exact), least = fmax(NOTHING, dtype_info[dtype].roundoff);
    for (int p = 0; p < cpu->table.n_params; p++) {
        double size, here = distance(cpu, exact, p, &size), there = distance(cuda, exact, p, &size);
        double root = sqrt((double)tensor_count(fixture_grad(exact, p)));
        double floor = size < NOTHING * all * root ? least * all * root : 0;
        if (!(there <= fmax(FACTOR * here, floor)))
            fail_msg("%s: the gradient of %s, %.4g long, is off by %.4g on CUDA and by %.4g on the "
                     "CPU",
                     name, cpu->table.param[p].name, size, there, here);
    }
}

/* Checks that both losses are within one rounding of the exact loss. The loss is a mean over all
 * targets, each with an error of about one rounding of storage. */
static void check_loss(double there, double here, double want, DType dtype, const char *name)
{
    double bound = dtype_info[dtype].roundoff * want;
    if (!(fabs(there - want) <= bound) || !(fabs(here - want) <= bound))
        fail_msg("%s: the loss is %.9g on CUDA, %.9g on the CPU, exactly %.9g", name, there, here,
                 want);
}

static void check_shape(int i, DType dtype)
{
    Fixture exact, cpu, cuda;
    char name[64];
    GptShape s = fixture_with_dtype(shape_of(i), dtype), s64 = fixture_with_dtype(shape_of(i), F64);
    snprintf(name, sizeof name, "model %d in %s", i, dtype_name(dtype));
    fixture_open_on(&cpu, "cpu", &s, B, T, MICROS, 1, 0);
    fixture_open_on(&cuda, "cuda", &s, B, T, MICROS, 1, 0);
    fixture_open_on(&exact, "cpu", &s64, B, T, MICROS, 1, 0);
    copy_weights(&exact, &cpu);
    copy_weights(&cuda, &cpu);
    double want = fixture_backward(&exact), here = fixture_backward(&cpu),
           there = fixture_backward(&cuda);
    check_loss(there, here, want, dtype, name);
    check_gradients(&cuda, &cpu, &exact, dtype, name);
    fixture_close(&exact);
    fixture_close(&cuda);
    fixture_close(&cpu);
}

static void test_model_gradients_on_cuda_are_as_accurate_as_on_the_cpu(void **state)
{
    (void)state;
    cuda_needed();
    for (int i = 0; i < SHAPES; i++)
        for (DType dtype = F32; dtype <= F16; dtype++)
            check_shape(i, dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_gradients_on_cuda_are_as_accurate_as_on_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
