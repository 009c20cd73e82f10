/* activation.cuh -- contains the activation functions and their derivatives, for one element.
 *
 * The formulas are those of model/kernels/cpu/gelu.h, with one exponential and one division each. T
 * is the storage type of the result. If it has 16 bits, the exponential and the division are one
 * approximate instruction each, because an exact division takes more than ten. Together the two err
 * by less than 2^-20, while rounding to bf16 errs by up to 2^-8 and rounding to f16 by up to 2^-11.
 * So at most the rounding of results close to a tie changes. In f32 the division is exact. */
#ifndef MODEL_KERNELS_CUDA_ACTIVATION_CUH
#define MODEL_KERNELS_CUDA_ACTIVATION_CUH

#include "model/kernels/cuda/kernel.cuh"

/* Coefficients of 2u in GELU's tanh form 0.5 x (1 + tanh u): 2u = 2 sqrt(2 / pi) (x + 0.044715
 * x^3). */
#define GELU_LINEAR 1.5957691216057307
#define GELU_CUBIC  0.07135481627260025

template <class T> static __device__ __forceinline__ float power_of_2(float x)
{
    return sizeof(T) == sizeof(float) ? exp2f(x) : exp2_approx(x);
}

template <class T> static __device__ __forceinline__ float reciprocal(float x)
{
    return sizeof(T) == sizeof(float) ? 1 / x : reciprocal_approx(x);
}

/* Returns 1 / (1 + 2^-v), the logistic function of v ln 2. For 16-bit results the error is at most
 * 5 * 2^-23 times the result, except that the result is 0 for v < -126. */
template <class T> static __device__ __forceinline__ float logistic(float v)
{
    return reciprocal<T>(1 + power_of_2<T>(-v));
}

/* Let e = 2^-v and s = 1 / (1 + e), where v depends on x. Returns the derivative of x s with
 * respect to x; u is x dv/dx divided by log2(e). e is limited to 1e34: if e were infinite, s would
 * be 0 and e s NaN. */
template <class T> static __device__ __forceinline__ float gated_derivative(float v, float u)
{
    float e = power_of_2<T>(-v);
    e = e > 1e34f ? 1e34f : e;
    float s = reciprocal<T>(1 + e); /* note that 1 - s = e s */
    /* s (1 - s) would lose digits when s is close to 1; e s does not. */
    return s + s * (e * s) * u;
}

template <class T> static __device__ __forceinline__ float silu(float x)
{
    return x * logistic<T>((float)LOG2_E * x);
}

template <class T> static __device__ __forceinline__ float silu_derivative(float x)
{
    return gated_derivative<T>((float)LOG2_E * x, x);
}

/* Returns 2u log2(e) / x, given x2 = x^2. Here u is the argument of tanh in GELU's tanh form
 * (above). */
static __device__ __forceinline__ float gelu_gate(float x2)
{
    return (float)(LOG2_E * GELU_LINEAR) + (float)(LOG2_E * GELU_CUBIC) * x2;
}

/* Returns f(x) for GELU or squared ReLU. */
template <class T, ActivationKind KIND> static __device__ __forceinline__ float activate(float x)
{
    if (KIND == ACTIVATION_GELU) return x * logistic<T>(x * gelu_gate(x * x));
    float r = x < 0 ? 0 : x; /* a NaN stays a NaN */
    return r * r;
}

/* Returns f'(x) for GELU or squared ReLU. */
template <class T, ActivationKind KIND> static __device__ __forceinline__ float derivative(float x)
{
    if (KIND == ACTIVATION_RELU2) return 2 * (x < 0 ? 0 : x);
    float x2 = x * x;
    return gated_derivative<T>(x * gelu_gate(x2),
                               x * ((float)GELU_LINEAR + (float)(3 * GELU_CUBIC) * x2));
}

#endif
