/* offenders.cu -- kernels with one fault each, which scripts/sass_report.sh --offenders must find.
 * They are compiled as if this file were elementwise.cu. Nothing runs them. */
#include <stdint.h>

/* Has no fault: stores a pack of four floats with one instruction. */
template <int N> __global__ void sound_kernel(float4 *y, const float4 *x)
{
    y[threadIdx.x] = x[threadIdx.x * N];
}

/* Spills registers: it keeps 80 values with only 64 registers per thread. */
__global__ void __launch_bounds__(1024, 1) spilling_kernel(float *y, const volatile float *x)
{
    float value[160];
#pragma unroll
    for (int i = 0; i < 160; i++)
        value[i] = x[i * 1024 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 160; i++)
        y[i * 1024 + threadIdx.x] = value[i] * value[159 - i];
}

/* Stores a pack of four floats with four instructions. */
template <int N> __global__ void splitting_kernel(volatile float *y, const float4 *x)
{
    float4 v = x[threadIdx.x];
    y[N * threadIdx.x] = v.x;
    y[N * threadIdx.x + 1] = v.y;
    y[N * threadIdx.x + 2] = v.z;
    y[N * threadIdx.x + 3] = v.w;
}

/* Stores some packs with one instruction, but others with four. */
template <int N>
__global__ void partly_splitting_kernel(float4 *y, volatile float *z, const float4 *x)
{
    float4 v = x[threadIdx.x];
    if (v.x < 0) {
        y[threadIdx.x * N] = make_float4(0, 0, 0, 0);
    } else {
        z[N * threadIdx.x] = v.x;
        z[N * threadIdx.x + 1] = v.y;
        z[N * threadIdx.x + 2] = v.z;
        z[N * threadIdx.x + 3] = v.w;
    }
}

/* Divides exactly, for which the compiler calls a function. */
__global__ void dividing_kernel(float *y, const float *x)
{
    y[threadIdx.x] = 1 / x[threadIdx.x];
}

/* Multiplies 64-bit numbers for the address of each copy. */
__global__ void multiplying_kernel(char *y, const char *x, int64_t ld, int n)
{
    extern __shared__ char tile[];
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (unsigned)__cvta_generic_to_shared(tile + 16 * i)),
                     "l"(x + (i / 7) * ld));
    asm volatile("cp.async.wait_all;");
    y[threadIdx.x] = tile[threadIdx.x];
}

/* Converts an integer for each copy. */
__global__ void converting_kernel(char *y, const char *x, float step, int n)
{
    extern __shared__ char tile[];
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (unsigned)__cvta_generic_to_shared(tile + 16 * i)),
                     "l"(x + 16 * (unsigned)(step * (float)i)));
    asm volatile("cp.async.wait_all;");
    y[threadIdx.x] = tile[threadIdx.x];
}

/* Uses the sums of an asynchronous product before it has waited for them, so the compiler makes
 * products wait for each other. */
__global__ void impatient_kernel(float *y, uint64_t a, uint64_t b)
{
    float d[4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        asm volatile("{ wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, "
                     "%5, 1, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(a), "l"(b));
        d[0] += (float)i;
    }
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
    y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

/* Computes exponentials that no product hides. They are written between the start of a product and
 * the wait for it, but nothing keeps them there: the compiler moves the wait to the start of the
 * loop's basic block. */
__global__ void lonely_kernel(float *y, uint64_t a, uint64_t b, int n)
{
    float d[4] = {}, e[16];
    for (int i = 0; i < 16; i++)
        e[i] = y[i * 128 + threadIdx.x];
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, "
                     "%5, 1, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(a + k), "l"(b + k));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 16; i++)
            asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(e[i]));
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int i = 0; i < 16; i++)
        y[i * 128 + threadIdx.x] = e[i] + d[i % 4];
}

/* Has no fault: after setmaxnreg, warps need no more registers than it gives. ptxas never exceeds
 * these numbers, so sass_report.sh plants the fault: it changes the disassembly as if setmaxnreg
 * gave fewer registers. */
__global__ void __launch_bounds__(256, 1) sharing_kernel(float *y, const volatile float *x)
{
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        float value[12];
#pragma unroll
        for (int i = 0; i < 12; i++)
            value[i] = x[i * 256 + threadIdx.x];
#pragma unroll
        for (int i = 0; i < 12; i++)
            y[i * 256 + threadIdx.x] = value[i] * value[11 - i];
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
        y[threadIdx.x] = x[threadIdx.x];
    }
}

/* Has the name of a kernel of which eight blocks must be resident on a multiprocessor at once, but
 * takes too many registers for that. */
struct __nv_bfloat16; /* only its name matters here */
enum ActivationKind { ACTIVATION_GELU };
template <class T, int N, ActivationKind KIND>
__global__ void __launch_bounds__(256, 1)
    activation_forward_kernel(float4 *y, const volatile float *x)
{
    float value[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        value[i] = x[i * 256 + threadIdx.x];
    float4 sum = {};
#pragma unroll
    for (int i = 0; i < 64; i++) {
        sum.x += value[i] * value[63 - i];
        sum.y += value[i] * value[i ^ 1];
    }
    y[threadIdx.x] = sum;
}

template __global__ void sound_kernel<4>(float4 *, const float4 *);
template __global__ void splitting_kernel<4>(volatile float *, const float4 *);
template __global__ void partly_splitting_kernel<4>(float4 *, volatile float *, const float4 *);
template __global__ void
activation_forward_kernel<__nv_bfloat16, 8, ACTIVATION_GELU>(float4 *, const volatile float *);
