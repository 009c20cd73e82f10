/* device_functions.h -- implements CUDA's intrinsics in C. Functions that CUDA rounds as IEEE
 * requires are exact here too. The fast ones (__expf, rsqrtf, __fdividef) are the exact functions
 * here, so their last digits differ from a GPU's. Must be compiled with -ffp-contract=off: only
 * explicit fused operations are fused. */
#ifndef TESTS_EMU_DEVICE_FUNCTIONS_H
#define TESTS_EMU_DEVICE_FUNCTIONS_H

#define EMU_FUNCTION(result, name, arguments, ...)                                                 \
    static inline result name arguments                                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- arithmetic, rounded to nearest even ----------------------------------------------------- */

EMU_FUNCTION(float, __fadd_rn, (float a, float b), return a + b;)
EMU_FUNCTION(float, __fsub_rn, (float a, float b), return a - b;)
EMU_FUNCTION(float, __fmul_rn, (float a, float b), return a * b;)
EMU_FUNCTION(float, __fdiv_rn, (float a, float b), return a / b;)
EMU_FUNCTION(float, __fmaf_rn, (float a, float b, float c), return fmaf(a, b, c);)
EMU_FUNCTION(float, __fsqrt_rn, (float a), return sqrtf(a);)
EMU_FUNCTION(float, __frcp_rn, (float a), return 1.0f / a;)
EMU_FUNCTION(float, __frsqrt_rn, (float a), return (float)(1.0 / sqrt((double)a));)
EMU_FUNCTION(double, __dadd_rn, (double a, double b), return a + b;)
EMU_FUNCTION(double, __dsub_rn, (double a, double b), return a - b;)
EMU_FUNCTION(double, __dmul_rn, (double a, double b), return a * b;)
EMU_FUNCTION(double, __ddiv_rn, (double a, double b), return a / b;)
EMU_FUNCTION(double, __dsqrt_rn, (double a), return sqrt(a);)
EMU_FUNCTION(double, __fma_rn, (double a, double b, double c), return fma(a, b, c);)

/* ---- functions ------------------------------------------------------------------------------- */

EMU_FUNCTION(float, rsqrtf, (float a), return (float)(1.0 / sqrt((double)a));)
EMU_FUNCTION(double, rsqrt, (double a), return 1.0 / sqrt(a);)
EMU_FUNCTION(float, __fdividef, (float a, float b), return a / b;)
EMU_FUNCTION(float, __saturatef, (float a), return a >= 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f;)

/* These are macros, because the C library declares functions of the same names. */
#define __expf  expf
#define __exp2f exp2f
#define __logf  logf
#define __log2f log2f
#define __sinf  sinf
#define __cosf  cosf
#define __powf  powf

/* ---- bits ------------------------------------------------------------------------------------ */

template <class To, class From> static inline To emu_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

EMU_FUNCTION(unsigned, __float_as_uint, (float x), return emu_bits<unsigned>(x);)
EMU_FUNCTION(int, __float_as_int, (float x), return emu_bits<int>(x);)
EMU_FUNCTION(float, __uint_as_float, (unsigned x), return emu_bits<float>(x);)
EMU_FUNCTION(float, __int_as_float, (int x), return emu_bits<float>(x);)
EMU_FUNCTION(long long, __double_as_longlong, (double x), return emu_bits<long long>(x);)
EMU_FUNCTION(double, __longlong_as_double, (long long x), return emu_bits<double>(x);)
EMU_FUNCTION(int, __clz, (int x), return x ? __builtin_clz((unsigned)x) : 32;)
EMU_FUNCTION(int, __clzll, (long long x), return x ? __builtin_clzll((unsigned long long)x) : 64;)
EMU_FUNCTION(int, __popc, (unsigned x), return __builtin_popcount(x);)
EMU_FUNCTION(int, __popcll, (unsigned long long x), return __builtin_popcountll(x);)
EMU_FUNCTION(int, __ffs, (int x), return __builtin_ffs(x);)
EMU_FUNCTION(unsigned, __umulhi, (unsigned a, unsigned b),
             return (unsigned)((unsigned long long)a * b >> 32);)
EMU_FUNCTION(int, __mulhi, (int a, int b), return (int)((long long)a * b >> 32);)
EMU_FUNCTION(unsigned long long, __umul64hi, (unsigned long long a, unsigned long long b),
             return (unsigned long long)((unsigned __int128)a * b >> 64);)
EMU_FUNCTION(unsigned, __funnelshift_l, (unsigned low, unsigned high, unsigned by),
             return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);)
EMU_FUNCTION(unsigned, __funnelshift_r, (unsigned low, unsigned high, unsigned by),
             return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));)
EMU_FUNCTION(int, __float2int_rn, (float x), return (int)nearbyintf(x);)
EMU_FUNCTION(int, __float2int_rd, (float x), return (int)floorf(x);)
EMU_FUNCTION(unsigned, __float2uint_rn, (float x), return (unsigned)nearbyintf(x);)
EMU_FUNCTION(float, __int2float_rn, (int x), return (float)x;)
EMU_FUNCTION(float, __uint2float_rn, (unsigned x), return (float)x;)
EMU_FUNCTION(float, __double2float_rn, (double x), return (float)x;)
EMU_FUNCTION(double, __int2double_rn, (int x), return (double)x;)
EMU_FUNCTION(double, __uint2double_rn, (unsigned x), return (double)x;)

/* ---- minimum and maximum --------------------------------------------------------------------- */

#define EMU_MIN_MAX(type)                                                                          \
    EMU_FUNCTION(type, min, (type a, type b), return b < a ? b : a;)                               \
    EMU_FUNCTION(type, max, (type a, type b), return a < b ? b : a;)
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
EMU_FUNCTION(float, min, (float a, float b), return fminf(a, b);)
EMU_FUNCTION(float, max, (float a, float b), return fmaxf(a, b);)
EMU_FUNCTION(double, min, (double a, double b), return fmin(a, b);)
EMU_FUNCTION(double, max, (double a, double b), return fmax(a, b);)

/* ---- memory ---------------------------------------------------------------------------------- */

#define EMU_LOAD(name) template <class T> EMU_FUNCTION(T, name, (const T *p), return *p;)
EMU_LOAD(__ldg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldlu)
#undef EMU_LOAD

#define EMU_STORE(name) template <class T> EMU_FUNCTION(void, name, (T * p, T x), *p = x;)
EMU_STORE(__stcs)
EMU_STORE(__stcg)
EMU_STORE(__stwb)
EMU_STORE(__stwt)
#undef EMU_STORE

#undef EMU_FUNCTION

#endif
