/* memory_source.c -- a WeightSource in memory. See memory_source.h. */
#include "tests/support/model/memory_source.h"

#include "model/core/check.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

typedef struct {
    WeightSource source; /* must come first */
    void **data;
    int failing;
} MemorySource;

static bool read_rows(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                      char *err, size_t n)
{
    const MemorySource *m = (const MemorySource *)source;
    const SourceTensor *t = &source->tensor[index];
    size_t row = (size_t)source_row_bytes(t);
    CHECK(first >= 0 && rows >= 0 && first + rows <= t->dim[0], "%s: rows from %lld", t->name,
          (long long)first);
    if (index == m->failing) return error_set(err, n, "tensor %s cannot be read", t->name);
    memcpy(out, (const char *)m->data[index] + (size_t)first * row, (size_t)rows * row);
    return true;
}

static void close_source(WeightSource *source)
{
    MemorySource *m = (MemorySource *)source;
    for (int i = 0; i < source->n_tensors; i++)
        free(m->data[i]);
    free(m->data);
    free(source->tensor);
    free(m);
}

WeightSource *memory_source_new(void)
{
    MemorySource *m = must_calloc(1, sizeof *m);
    *m = (MemorySource){.source = {.read = read_rows, .close = close_source}, .failing = -1};
    return &m->source;
}

void *memory_source_add(WeightSource *source, const char *name, DType dtype, int64_t rows,
                        int64_t cols, uint64_t seed)
{
    MemorySource *m = (MemorySource *)source;
    int i = source->n_tensors++;
    int64_t count = rows * (cols ? cols : 1);
    source->tensor = must_realloc(source->tensor, (size_t)(i + 1) * sizeof *source->tensor);
    m->data = must_realloc(m->data, (size_t)(i + 1) * sizeof *m->data);
    source->tensor[i] =
        (SourceTensor){.dtype = dtype, .ndim = cols ? 2 : 1, .dim = {rows, cols ? cols : 1}};
    snprintf(source->tensor[i].name, sizeof source->tensor[i].name, "%s", name);
    m->data[i] = must_alloc((size_t)count * dtype_size(dtype));
    for (int64_t e = 0; e < count; e++)
        dtype_set(dtype, m->data[i], e, drawn_normal(seed + (uint64_t)i, e));
    return m->data[i];
}

const void *memory_source_data(const WeightSource *source, const char *name)
{
    int i = weight_source_find(source, name);
    if (i < 0) fail_msg("there is no tensor %s", name);
    return ((const MemorySource *)source)->data[i];
}

void memory_source_fail(WeightSource *source, int index)
{
    ((MemorySource *)source)->failing = index;
}

void *source_take(WeightSource *source, const char *name, uint64_t seed)
{
    char err[1024];
    int i = weight_source_find(source, name);
    if (i < 0) fail_msg("there is no tensor %s", name);
    const SourceTensor *t = &source->tensor[i];
    size_t row = (size_t)source_row_bytes(t);
    char *out = must_alloc((size_t)t->dim[0] * row + 1);
    for (int64_t at = 0, draw = 0; at < t->dim[0]; draw++) {
        int64_t rows = 1 + (int64_t)(drawn(seed, (uint64_t)draw) % (uint64_t)(t->dim[0] - at));
        if (!source->read(source, i, at, rows, out + (size_t)at * row, err, sizeof err))
            fail_msg("%s", err);
        at += rows;
    }
    return out;
}
