/* test_model_cuda.c -- loss and gradients of whole models on the CUDA device beside the CPU's, in
 * every storage type it has.
 *
 * The measure is the exact gradient: the same weights (those of the storage type) in f64 on the
 * CPU. A 16-bit gradient is off by a percent or so from rounded activations on either device; what
 * is asked is that CUDA's is not off by more than the CPU's, parameter by parameter. The two round
 * at the same places but for softmax's weights and their gradients, which the tensor-core kernels
 * round before products; and where one sums in another order, another rounding follows. Skipped
 * where no CUDA device is. */
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

/* Heads of 16 and 32 go through the tensor cores in 16 bits, heads of 6 do not. */
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

/* The length of the difference of parameter p's gradient from the exact one, and of that one. */
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

/* The root mean square of all exact gradients. */
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

/* Each of CUDA's gradients is at most FACTOR times as far from the exact one as the CPU's.
 * (Emulated the largest such factor is 1.7, most are near 1; a wrong gradient has 10 and more.)
 * Where the exact gradient is zero in theory (a key's bias without RoPE), less than NOTHING of the
 * rms of all, either is noise of its own; CUDA's may be that NOTHING, or a rounding of that rms. */
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

/* The loss is a mean over all targets, whose own errors are about a rounding of storage each. */
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

static void test_gradients(void **state)
{
    (void)state;
    cuda_needed();
    for (int i = 0; i < SHAPES; i++)
        for (DType dtype = F32; dtype <= F16; dtype++)
            check_shape(i, dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
