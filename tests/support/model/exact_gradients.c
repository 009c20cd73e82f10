/* exact_gradients.c -- compares gradients of whole models with exact ones. See exact_gradients.h.
 */
#include "tests/support/model/exact_gradients.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

void gradients_copy_weights(Fixture *to, Fixture *from)
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

/* Some exact gradients are zero in theory, such as that of a key's bias without RoPE. There both
 * devices compute only noise. If the exact gradient is smaller than NOTHING times the rms of all
 * gradients, CUDA's error may be up to that rms times NOTHING or times one rounding, whichever is
 * larger. */
void gradients_check(Fixture *cuda, Fixture *cpu, Fixture *exact, double factor, DType dtype,
                     const char *name)
{
    const double NOTHING = 1e-6;
    double all = global_rms(exact), least = fmax(NOTHING, dtype_info[dtype].roundoff);
    for (int p = 0; p < cpu->table.n_params; p++) {
        double size, here = distance(cpu, exact, p, &size), there = distance(cuda, exact, p, &size);
        double root = sqrt((double)tensor_count(fixture_grad(exact, p)));
        double floor = size < NOTHING * all * root ? least * all * root : 0;
        if (!(there <= fmax(factor * here, floor)))
            fail_msg("%s: the gradient of %s, %.4g long, is off by %.4g on CUDA and by %.4g on the "
                     "CPU",
                     name, cpu->table.param[p].name, size, there, here);
    }
}

/* Checks that both losses are within one rounding of the exact loss. The loss is a mean over all
 * targets, each with an error of about one rounding of storage. */
void gradients_check_loss(double there, double here, double want, DType dtype, const char *name)
{
    double bound = dtype_info[dtype].roundoff * want;
    if (!(fabs(there - want) <= bound) || !(fabs(here - want) <= bound))
        fail_msg("%s: the loss is %.9g on CUDA, %.9g on the CPU, exactly %.9g", name, there, here,
                 want);
}
