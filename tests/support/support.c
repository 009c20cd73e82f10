/* support.c -- random numbers, guarded buffers, skips and comparisons for all tests. */
#include "tests/support/support.h"

#include "model/core/check.h"
#include "model/core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BAND = 96, PATTERN = 0xA5 };

void skip_because(const char *fmt, ...)
{
    char why[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    print_message("skipped: %s\n", why);
    skip();
    abort(); /* never reached: skip does not return */
}

void cuda_needed(void)
{
    Device device;
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    if (!device_open(&device, "cuda", &options, err, sizeof err)) skip_because("cuda: %s", err);
    device_close(&device);
}

int cuda_devices(void)
{
    const Backend *cuda = device_choice("cuda");
    return cuda != NULL ? cuda->count() : 0;
}

void cuda_devices_needed(int least)
{
    int n = cuda_devices();
    if (n < least) skip_because("cuda: %d device%s, and it takes %d", n, n == 1 ? "" : "s", least);
}

double drawn_uniform(uint64_t stream, int64_t i)
{
    return rng_uniform(20240607, stream, (uint64_t)i);
}

double drawn_normal(uint64_t stream, int64_t i)
{
    double u = 1 - drawn_uniform(stream, 2 * i), v = drawn_uniform(stream, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

Guarded guarded_create(DType dtype, int ndim, const int64_t *dim, int64_t gap)
{
    Guarded g = {.tensor = {.dtype = dtype, .ndim = ndim}};
    for (int i = 0; i < ndim; i++)
        g.tensor.dim[i] = dim[i];
    g.tensor.ld = dim[ndim - 1] + gap;
    size_t size = dtype_size(dtype), before = BAND + (gap ? size : 0);
    size_t body = (size_t)(tensor_rows(g.tensor) * g.tensor.ld) * size;
    g.bytes = before + body + BAND;
    g.block = must_alloc(g.bytes);
    g.image = must_alloc(g.bytes);
    memset(g.block, PATTERN, g.bytes);
    g.tensor.data = g.block + before;
    for (int64_t i = 0; i < tensor_count(g.tensor); i++)
        guarded_set(&g, i, 0);
    guarded_arm(&g);
    return g;
}

void guarded_free(Guarded *g)
{
    free(g->block);
    free(g->image);
    *g = (Guarded){0};
}

static int64_t element(Tensor t, int64_t i)
{
    int64_t cols = tensor_cols(t);
    return i / cols * t.ld + i % cols;
}

void guarded_set(Guarded *g, int64_t i, double x)
{
    dtype_set(g->tensor.dtype, g->tensor.data, element(g->tensor, i), x);
}

void guarded_arm(Guarded *g)
{
    memcpy(g->image, g->block, g->bytes);
}

void guarded_restore(Guarded *g)
{
    memcpy(g->block, g->image, g->bytes);
}

static Tensor bytes_of(unsigned char *block, size_t bytes)
{
    return tensor_1d(block, U8, (int64_t)bytes);
}

void guarded_upload(Guarded *g, Device *dev)
{
    if (g->on_device == NULL) g->on_device = device_alloc(dev, g->bytes, "a guarded block");
    device_copy(dev, bytes_of(g->on_device, g->bytes), bytes_of(g->block, g->bytes));
}

void guarded_download(Guarded *g, Device *dev)
{
    device_copy(dev, bytes_of(g->block, g->bytes), bytes_of(g->on_device, g->bytes));
    device_synchronize(dev);
}

Tensor guarded_twin(const Guarded *g)
{
    Tensor t = g->tensor;
    t.data = g->on_device + ((unsigned char *)t.data - g->block);
    return t;
}

void guarded_release(Guarded *g, Device *dev)
{
    device_release(dev, g->on_device, g->bytes);
    g->on_device = NULL;
}

bool guarded_bands_intact(const Guarded *g)
{
    Tensor t = g->tensor;
    size_t at = 0, row_bytes = (size_t)tensor_cols(t) * dtype_size(t.dtype);
    for (int64_t row = 0; row < tensor_rows(t); row++) {
        size_t start = (size_t)((unsigned char *)tensor_row(t, row) - g->block);
        if (memcmp(g->block + at, g->image + at, start - at) != 0) return false;
        at = start + row_bytes;
    }
    return memcmp(g->block + at, g->image + at, g->bytes - at) == 0;
}

bool guarded_intact(const Guarded *g)
{
    return memcmp(g->block, g->image, g->bytes) == 0;
}

double rms_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return n ? sqrt(sum / (double)n) : 0;
}

bool tensor_close(Tensor t, const double *exact, double tolerance, double magnitude, char *err,
                  size_t n)
{
    int64_t count = tensor_count(t);
    double scale = fmax(rms_of(exact, count), magnitude);
    for (int64_t i = 0; i < count; i++) {
        double got = dtype_get(t.dtype, t.data, element(t, i));
        double bound = tolerance * fmax(scale, fabs(exact[i]));
        if (fabs(got - exact[i]) <= bound || got == exact[i]) continue;
        char shape[96];
        return error_set(err, n, "%s element %lld: %.17g, exact %.17g, off by %.3g, bound %.3g",
                         tensor_describe(t, shape, sizeof shape), (long long)i, got, exact[i],
                         fabs(got - exact[i]), bound);
    }
    return true;
}
