/* gradcheck.c -- implements gradcheck.h: compares gradients with finite differences. */
#include "tests/support/model/gradcheck.h"

#include "model/core/check.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

Function *function_create(double (*loss)(const Function *), const void *options)
{
    Function *f = must_calloc(1, sizeof *f);
    f->loss = loss;
    f->options = options;
    f->weight = must_calloc(MOST, sizeof(double));
    for (int i = 0; i < 6; i++)
        f->scratch[i] = must_calloc(MOST, sizeof(double));
    for (int64_t i = 0; i < MOST; i++)
        f->weight[i] = drawn_normal(99, i);
    return f;
}

double *function_input(Function *f, const char *name, int64_t n)
{
    int k = f->count++;
    CHECK(k < INPUTS && n <= MOST, "input %d of %lld numbers", k, (long long)n);
    f->input[k].name = name;
    f->input[k].n = n;
    f->input[k].x = must_calloc((size_t)n, sizeof(double));
    f->input[k].dx = must_calloc((size_t)n, sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        f->input[k].x[i] = drawn_normal((uint64_t)k + 7, i);
        f->input[k].dx[i] = (double)NAN;
    }
    return f->input[k].x;
}

static void function_free(Function *f)
{
    for (int k = 0; k < f->count; k++) {
        free(f->input[k].x);
        free(f->input[k].dx);
    }
    for (int i = 0; i < 6; i++)
        free(f->scratch[i]);
    free(f->weight);
    free(f);
}

static double norm_of(const double *x, int64_t n)
{
    return rms_of(x, n) * sqrt((double)n);
}

/* Returns the loss at input + step * direction. */
static double loss_along(const Function *f, double *x, const double *direction, int64_t n,
                         double step)
{
    double *kept = must_alloc((size_t)n * sizeof *kept);
    memcpy(kept, x, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++)
        x[i] += step * direction[i];
    double loss = f->loss(f);
    memcpy(x, kept, (size_t)n * sizeof *kept);
    free(kept);
    return loss;
}

void function_check(Function *f, const char *name)
{
    const double h = 1e-3;
    for (int k = 0; k < f->count; k++) {
        int64_t n = f->input[k].n;
        double *x = f->input[k].x, *dx = f->input[k].dx, d[MOST], said = 0;
        for (int64_t i = 0; i < n; i++)
            d[i] = drawn_normal((uint64_t)k + 1007, i);
        double length = norm_of(d, n);
        for (int64_t i = 0; i < n; i++) {
            d[i] /= length;
            said += dx[i] * d[i];
        }
        double near = loss_along(f, x, d, n, h) - loss_along(f, x, d, n, -h);
        double far = loss_along(f, x, d, n, 2 * h) - loss_along(f, x, d, n, -2 * h);
        double seen = (8 * near - far) / (12 * h);
        double size = fmax(norm_of(dx, n), fabs(f->loss(f)));
        if (!(fabs(said - seen) <= 1e-9 * size))
            fail_msg("%s: d/d%s along a direction: backward %.15g, differences %.15g, size %.3g",
                     name, f->input[k].name, said, seen, size);
    }
    function_free(f);
}
