/* gelu.h -- GELU in its tanh form and its derivative, for the activation ops and for the epilogues
 * of matrix multiplications.
 *
 * Fused and unfused ops use the same code, so they give the same bits. (All files that include this
 * header must be compiled without contraction of products and sums to fused multiply-adds.) The
 * factor 0.5 (1 + tanh u) of GELU is the logistic function of 2u: one exponential, one division,
 * and no cancellation where the result is small. The compiler can vectorise it. */
#ifndef MODEL_KERNELS_CPU_GELU_H
#define MODEL_KERNELS_CPU_GELU_H

#include "model/kernels/cpu/cpu.h"
#include "model/kernels/vmath.h"

/* Returns e = exp(-x), but at most 1e34 (double: 1e300). With s = 1 / (1 + e), the derivatives
 * below compute e s; if e were infinite, s would be 0 and e s NaN. */
static inline real exp_of_minus(real x)
{
    const real most = sizeof(real) == sizeof(float) ? (real)1e34 : (real)1e300;
    real e = real_exp(-x);
    return e > most ? most : e;
}

/* Coefficients of 2u, the tanh form's argument doubled: 2 sqrt(2 / pi) (x + 0.044715 x^3). */
#define GELU_LINEAR ((real)1.5957691216057307)
#define GELU_CUBIC  ((real)0.07135481627260025)

static inline real gelu(real x)
{
    return x / ((real)1 + real_exp(-x * (GELU_LINEAR + GELU_CUBIC * (x * x))));
}

static inline real gelu_derivative(real x)
{
    real x2 = x * x;
    real e = exp_of_minus(x * (GELU_LINEAR + GELU_CUBIC * x2));
    real s = (real)1 / ((real)1 + e); /* 1 - s = e s */
    return s + s * (e * s) * (x * (GELU_LINEAR + (real)3 * GELU_CUBIC * x2));
}

static inline real silu(real x)
{
    return x / ((real)1 + real_exp(-x));
}

static inline real silu_derivative(real x)
{
    real e = exp_of_minus(x);
    real s = (real)1 / ((real)1 + e);
    return s + s * (e * s) * x;
}

#endif
