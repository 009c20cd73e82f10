/* probe.h -- shared by all probes: errors that name their source line, output lines `name = value
 * unit`, and times measured by CUDA events. A probe is a program that measures or tests one
 * property of a GPU; scripts/gpu_probe.sh builds and runs all probes and collects their lines in
 * one table. */
#ifndef TESTS_PROBE_PROBE_H
#define TESTS_PROBE_PROBE_H

#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exit codes of a probe other than 0: there is no usable GPU (EX_UNAVAILABLE), or a measurement
 * failed. */
enum { PROBE_NO_GPU = 69, PROBE_FAILED = 1 };

/* Ends the probe if a call of the CUDA runtime fails. */
#define CUDA_OK(call)                                                                              \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            exit(PROBE_FAILED);                                                                    \
        }                                                                                          \
    } while (0)

/* Prints one result: `name = value unit`. Names are lower case with dots; an empty unit is
 * omitted. */
static inline void probe_number(const char *name, double value, const char *unit)
{
    printf("%s = %.6g%s%s\n", name, value, *unit ? " " : "", unit);
    fflush(stdout);
}

/* Prints one result that is a text ("supported", a kernel's name). */
static inline void probe_word(const char *name, const char *value)
{
    printf("%s = %s\n", name, value);
    fflush(stdout);
}

/* Returns a formatted name, as printf would print it. It stays valid until eight more calls. */
static inline const char *probe_name(const char *format, ...)
{
    static char ring[8][160];
    static int next;
    char *text = ring[next++ % 8];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof ring[0], format, args);
    va_end(args);
    return text;
}

/* Ends the probe with the reason why there is no usable GPU. */
static inline void probe_end_unasked(const char *why)
{
    fprintf(stderr, "no GPU to ask: %s\n", why);
    exit(PROBE_NO_GPU);
}

/* Selects device 0 and returns its properties. Ends the probe with PROBE_NO_GPU and an error
 * message if there is no GPU, if the driver is too old for this runtime, or if the probes are not
 * compiled for this GPU's generation. */
static inline cudaDeviceProp probe_device(void)
{
    cudaDeviceProp device;
    int n = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver); /* 0 if no driver is installed */
    cudaRuntimeGetVersion(&runtime);
    if (code == cudaErrorInsufficientDriver && driver != 0)
        probe_end_unasked(probe_name("the driver is too old: it knows CUDA %d.%d, these probes are "
                                     "built with CUDA %d.%d",
                                     driver / 1000, driver % 100 / 10, runtime / 1000,
                                     runtime % 100 / 10));
    if (code == cudaErrorInsufficientDriver) probe_end_unasked("no NVIDIA driver is installed");
    if (code != cudaSuccess) probe_end_unasked(cudaGetErrorString(code));
    if (n == 0) probe_end_unasked("none is visible");
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9)
        probe_end_unasked(
            probe_name("these probes ask Hopper (sm_90: H100, H200), this is sm_%d%d, "
                       "%.80s",
                       device.major, device.minor, device.name));
    return device;
}

/* A bijection of 32-bit integers (lowbias32 from Wellons' "hash prospector"), used for random
 * data. */
static inline __host__ __device__ uint32_t probe_hash(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static inline int probe_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median time in seconds of one call of f(context, stream). Each of `rounds` rounds (at
 * most 64) times `calls` back-to-back calls with events on `stream`, after one untimed round. */
static inline double probe_seconds(void (*f)(void *, cudaStream_t), void *context,
                                   cudaStream_t stream, int calls, int rounds)
{
    double seconds[64];
    cudaEvent_t from, to;
    CUDA_OK(cudaEventCreate(&from));
    CUDA_OK(cudaEventCreate(&to));
    for (int r = -1; r < rounds; r++) {
        float ms = 0;
        CUDA_OK(cudaEventRecord(from, stream));
        for (int i = 0; i < calls; i++)
            f(context, stream);
        CUDA_OK(cudaEventRecord(to, stream));
        CUDA_OK(cudaEventSynchronize(to));
        CUDA_OK(cudaEventElapsedTime(&ms, from, to));
        if (r >= 0) seconds[r] = 1e-3 * (double)ms / calls;
    }
    CUDA_OK(cudaEventDestroy(from));
    CUDA_OK(cudaEventDestroy(to));
    qsort(seconds, (size_t)rounds, sizeof *seconds, probe_compare_doubles);
    return seconds[rounds / 2];
}

#endif
