/* loss.h -- helpers shared by loss.c (whole rows of logits) and loss_cut.c (rows whose columns are
 * split among ranks): the maximum of a row, and its exponentials with their sum. */
#ifndef MODEL_KERNELS_CPU_LOSS_H
#define MODEL_KERNELS_CPU_LOSS_H

#include "model/kernels/cpu/spans.h"
#include "model/kernels/vmath.h"

typedef __typeof__((Vector){0} > (Vector){0}) Mask; /* all ones or all zeros in each lane */

static inline Vector vector_max(Vector a, Vector b)
{
    Mask greater = a > b;
    return (Vector)((greater & (Mask)a) | (~greater & (Mask)b));
}

/* Returns the largest of n elements. It may miss a NaN, which then shows up in the sum of
 * exponentials. */
static inline real reals_max(const real *x, int64_t n)
{
    real most = x[0];
    int64_t i = 0;
    if (n >= 2 * LANES) {
        Vector m0 = vector_load(x), m1 = m0;
        for (; i + 2 * LANES <= n; i += 2 * LANES) {
            m0 = vector_max(vector_load(x + i), m0);
            m1 = vector_max(vector_load(x + i + LANES), m1);
        }
        m0 = vector_max(m0, m1);
        for (int lane = 0; lane < LANES; lane++)
            most = m0[lane] > most ? m0[lane] : most;
    }
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Sets e[i] = exp(x[i] - most) and returns the sum. e may be x. */
static inline real exponentials(real *e, const real *x, real most, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        e[i] = real_exp(x[i] - most);
    return reals_sum(e, n);
}

#endif
