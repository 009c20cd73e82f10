/* cuda_pair.c -- opens a CPU and a CUDA device and compares tensors from both. */
#include "tests/support/device/cuda_pair.h"

#include "model/core/check.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

Device pair_cpu, pair_cuda;
static bool cuda_is_there;
static char cuda_error[256];

int pair_setup(void **state)
{
    DeviceOptions options = {.threads = 2, .local_ranks = 1};
    char err[256];
    (void)state;
    if (!device_open(&pair_cpu, "cpu", &options, err, sizeof err)) return -1;
    cuda_is_there = device_open(&pair_cuda, "cuda", &options, cuda_error, sizeof cuda_error);
    return 0;
}

int pair_teardown(void **state)
{
    (void)state;
    device_close(&pair_cpu);
    device_close(&pair_cuda);
    return 0;
}

void pair_needed(void)
{
    if (!cuda_is_there) skip_because("cuda: %s", cuda_error);
}

Tensor pair_drawn(DType dtype, int64_t n, uint64_t stream, double spread, bool positive)
{
    Tensor t = tensor_1d(must_alloc((size_t)n * dtype_size(dtype) + 1), dtype, n);
    for (int64_t i = 0; i < n; i++) {
        double x = spread * drawn_normal(stream, i);
        dtype_set(dtype, t.data, i, positive ? fabs(x) : x);
    }
    return t;
}

Tensor pair_copy(Tensor t)
{
    if (!tensor_present(t)) return t;
    void *data = must_alloc(tensor_bytes(t) + 1);
    memcpy(data, t.data, tensor_bytes(t));
    t.data = data;
    return t;
}

void pair_same_bits(Tensor expected, Tensor found, const char *what)
{
    size_t size = dtype_size(expected.dtype);
    for (int64_t i = 0; tensor_present(expected) && i < tensor_count(expected); i++) {
        const char *a = (char *)expected.data + (size_t)i * size,
                   *b = (char *)found.data + (size_t)i * size;
        if (memcmp(a, b, size) != 0)
            fail_msg("%s: element %lld is %a, not %a", what, (long long)i,
                     dtype_get(found.dtype, found.data, i),
                     dtype_get(expected.dtype, expected.data, i));
    }
}
