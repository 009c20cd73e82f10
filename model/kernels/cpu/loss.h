/* loss.h -- what the losses of whole and of cut rows of logits share: the largest element, and the
 * exponentials with their sum. */
#ifndef MODEL_KERNELS_CPU_LOSS_H
#define MODEL_KERNELS_CPU_LOSS_H

#include "model/kernels/cpu/spans.h"
#include "model/kernels/vmath.h"

typedef __typeof__((Vector){0} > (Vector){0}) Mask; /* per lane all ones or zero */

static inline Vector vector_max(Vector a, Vector b)
{
    Mask greater = a > b;
    return (Vector)((greater & (Mask)a) | (~greater & (Mask)b));
}

/* Largest of n elements; a NaN may go unseen here, the sum of exponentials finds it. */
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

/* Sum of e[i] = exp(x[i] - most). e may be x. */
static inline real exponentials(real *e, const real *x, real most, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        e[i] = real_exp(x[i] - most);
    return reals_sum(e, n);
}

#endif
