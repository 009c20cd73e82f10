/* kernel_test.cuh -- what tests that are kernels share: the device or a skip, memory there and
 * back, drawn numbers. */
#ifndef TESTS_SUPPORT_DEVICE_KERNEL_TEST_CUH
#define TESTS_SUPPORT_DEVICE_KERNEL_TEST_CUH

#include "model/kernels/cuda/kernel.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

extern "C" {
#include <cmocka.h>
}

/* Skips the running test where no CUDA device is. */
static inline void need_gpu(void)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) return;
    printf("skipped: no CUDA device: %s\n", cudaGetErrorString(code));
    skip();
}

/* A copy of n elements in device memory, or room for them (NULL). */
template <class X> static inline X *on_device(const X *host, int n)
{
    X *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, (size_t)n * sizeof *p));
    if (host) CUDA_CHECK(cudaMemcpy(p, host, (size_t)n * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}

/* The elements at p, which it releases. */
template <class X> static inline void back(X *host, X *p, int n)
{
    CUDA_CHECK(cudaMemcpy(host, p, (size_t)n * sizeof *p, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(p));
}

/* A number in [0, 1) of no pattern. */
static inline double drawn(uint32_t i)
{
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return (i ^ i >> 16) * 0x1p-32;
}

#endif
