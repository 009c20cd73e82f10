/* kernel_test.cuh -- helpers for tests that launch their own kernels: skipping without a GPU,
 * copying data to and from the device, and pseudo-random numbers. */
#ifndef TESTS_SUPPORT_DEVICE_KERNEL_TEST_CUH
#define TESTS_SUPPORT_DEVICE_KERNEL_TEST_CUH

#include "model/kernels/cuda/kernel.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

extern "C" {
#include <cmocka.h>
}

/* Skips the running test if there is no CUDA device. */
static inline void need_gpu(void)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) return;
    printf("skipped: no CUDA device: %s\n", cudaGetErrorString(code));
    skip();
}

/* Returns a copy of n elements in device memory, or uninitialized memory if host is NULL. */
template <class X> static inline X *on_device(const X *host, int n)
{
    X *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, (size_t)n * sizeof *p));
    if (host) CUDA_CHECK(cudaMemcpy(p, host, (size_t)n * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}

/* Copies the elements at p to the host and frees p. */
template <class X> static inline void back(X *host, X *p, int n)
{
    CUDA_CHECK(cudaMemcpy(host, p, (size_t)n * sizeof *p, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(p));
}

/* Returns a pseudo-random number in [0, 1). */
static inline double drawn(uint32_t i)
{
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return (i ^ i >> 16) * 0x1p-32;
}

#endif
