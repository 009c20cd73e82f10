/* tensor.c -- implements tensor.h: shapes, slices and views. */
#include "model/core/tensor.h"

#include "model/core/check.h"

#include <stdio.h>

static Tensor dense(void *data, DType dtype, int ndim, const int64_t *dim)
{
    Tensor t = {
        .data = data, .dtype = dtype, .place = PLACE_HOST, .ndim = ndim, .ld = dim[ndim - 1]};
    for (int i = 0; i < ndim; i++) {
        CHECK(dim[i] >= 0, "dimension %d is %lld", i, (long long)dim[i]);
        t.dim[i] = dim[i];
    }
    return t;
}

Tensor tensor_1d(void *data, DType dtype, int64_t n)
{
    return dense(data, dtype, 1, (int64_t[]){n});
}

Tensor tensor_2d(void *data, DType dtype, int64_t rows, int64_t cols)
{
    return dense(data, dtype, 2, (int64_t[]){rows, cols});
}

Tensor tensor_3d(void *data, DType dtype, int64_t d0, int64_t d1, int64_t d2)
{
    return dense(data, dtype, 3, (int64_t[]){d0, d1, d2});
}

int64_t tensor_count(Tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.ndim; i++)
        n *= t.dim[i];
    return t.ndim ? n : 0;
}

int64_t tensor_rows(Tensor t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t.ndim; i++)
        n *= t.dim[i];
    return t.ndim ? n : 0;
}

int64_t tensor_cols(Tensor t)
{
    return t.ndim ? t.dim[t.ndim - 1] : 0;
}

size_t tensor_bytes(Tensor t)
{
    return (size_t)tensor_count(t) * dtype_size(t.dtype);
}

bool tensor_is_dense(Tensor t)
{
    return t.ld == tensor_cols(t) || tensor_rows(t) <= 1;
}

bool tensor_same_shape(Tensor a, Tensor b)
{
    if (a.ndim != b.ndim) return false;
    for (int i = 0; i < a.ndim; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

Tensor tensor_slice_rows(Tensor t, int64_t first, int64_t n)
{
    CHECK(t.ndim == 2 || t.ndim == 1, "rows of a tensor of %d dimensions", t.ndim);
    CHECK(first >= 0 && first + n <= t.dim[0], "%lld+%lld of %lld", (long long)first, (long long)n,
          (long long)t.dim[0]);
    if (t.ndim == 1) { /* its rows are single elements, and ld is its length */
        t.data = (char *)t.data + (size_t)first * dtype_size(t.dtype);
        t.dim[0] = t.ld = n;
        return t;
    }
    t.data = tensor_row(t, first);
    t.dim[0] = n;
    return t;
}

Tensor tensor_slice_cols(Tensor t, int64_t first, int64_t n)
{
    CHECK(t.ndim == 2, "columns of a tensor of %d dimensions", t.ndim);
    CHECK(first >= 0 && first + n <= t.dim[1], "%lld+%lld of %lld", (long long)first, (long long)n,
          (long long)t.dim[1]);
    t.data = (char *)t.data + (size_t)first * dtype_size(t.dtype);
    t.dim[1] = n;
    return t;
}

Tensor tensor_as_3d(Tensor t, int64_t d0, int64_t d1)
{
    CHECK(tensor_rows(t) == d0 * d1, "%lld rows are not %lld x %lld", (long long)tensor_rows(t),
          (long long)d0, (long long)d1);
    int64_t cols = tensor_cols(t);
    t.ndim = 3;
    t.dim[0] = d0;
    t.dim[1] = d1;
    t.dim[2] = cols;
    return t;
}

Tensor tensor_flat(Tensor t)
{
    CHECK(tensor_is_dense(t), "a strided tensor of %lld columns has no flat view",
          (long long)tensor_cols(t));
    Tensor f = tensor_1d(t.data, t.dtype, tensor_count(t));
    f.place = t.place;
    return f;
}

const char *tensor_describe(Tensor t, char *buf, size_t n)
{
    int k = snprintf(buf, n, "(");
    for (int i = 0; i < t.ndim && k >= 0 && (size_t)k < n; i++)
        k += snprintf(buf + k, n - (size_t)k, "%s%lld", i ? ", " : "", (long long)t.dim[i]);
    if (k >= 0 && (size_t)k < n) snprintf(buf + k, n - (size_t)k, ") %s", dtype_name(t.dtype));
    return buf;
}
