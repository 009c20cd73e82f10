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
#include "tests/support/model/exact_gradients.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { B = 2, T = 40, MICROS = 2, SHAPES = 4 };

/* Returns the shape of model i. In 16-bit types, heads of size 16 and 32 use the tensor cores;
 * heads of size 6 do not. */
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

/* On emulated devices the largest ratio of errors is 1.7 and most are near 1; a wrong gradient has
 * a ratio of 10 or more. */
static const double FACTOR = 3;

/* Compares the gradients of model i on both devices with the exact ones. With `sums`, attention on
 * CUDA computes the gradients of the biases of q, k and v. */
static void check_shape(int i, DType dtype, bool sums)
{
    Fixture exact, cpu, cuda;
    char name[64];
    GptShape s = fixture_with_dtype(shape_of(i), dtype), s64 = fixture_with_dtype(shape_of(i), F64);
    snprintf(name, sizeof name, "model %d in %s%s", i, dtype_name(dtype),
             sums ? ", biases in attention" : "");
    fixture_open_on(&cpu, "cpu", &s, B, T, MICROS, 1, 0);
    fixture_open_on(&cuda, "cuda", &s, B, T, MICROS, 1, 0);
    fixture_open_on(&exact, "cpu", &s64, B, T, MICROS, 1, 0);
    cuda.dev.attention_sums_biases = sums;
    gradients_copy_weights(&exact, &cpu);
    gradients_copy_weights(&cuda, &cpu);
    double want = fixture_backward(&exact), here = fixture_backward(&cpu),
           there = fixture_backward(&cuda);
    gradients_check_loss(there, here, want, dtype, name);
    gradients_check(&cuda, &cpu, &exact, FACTOR, dtype, name);
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
            check_shape(i, dtype, false);
    /* Model 0 has biases of q, k and v, and neither RoPE nor QK-norm. */
    check_shape(0, F32, true);
    check_shape(0, BF16, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_gradients_on_cuda_are_as_accurate_as_on_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
