/* test_ops_slices.c -- tests linear layers whose outputs are columns of one buffer, like q and k|v
 * with separate weights. The matrix multiplication of each part reads and writes only its columns,
 * and all parts together equal the multiplication with the stacked weights, forward and backward,
 * on every device. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PARTS = 2 };

/* x (n, inputs), y (n, sum of widths + rest); no part uses the rest. */
typedef struct {
    int64_t n, inputs, width[PARTS], rest;
} Shape;

/* Widths that are multiples of 16 bytes, and others. */
static const Shape shapes[] = {
    {24, 64, {64, 128}, 0}, {33, 40, {16, 24}, 8}, {19, 17, {5, 9}, 3}, {1, 8, {8, 16}, 0}};

typedef struct {
    TestDevice *d;
    DType storage;
    const Shape *shape;
} Here;

static int64_t outputs_of(const Shape *s)
{
    return s->width[0] + s->width[1];
}

/* Returns (rows, cols) random numbers on the device. */
static Tensor drawn(const Here *h, uint64_t stream, int64_t rows, int64_t cols)
{
    void *host = must_alloc((size_t)(rows * cols) * sizeof(double));
    for (int64_t i = 0; i < rows * cols; i++)
        dtype_set(h->storage, host, i, drawn_normal(stream, i));
    Tensor far = device_put(&h->d->device, tensor_2d(host, h->storage, rows, cols));
    free(host);
    return far;
}

static Tensor columns_of(Tensor t, int64_t first, int64_t cols)
{
    Tensor part = tensor_2d((char *)t.data + first * (int64_t)dtype_size(t.dtype), t.dtype,
                            tensor_rows(t), cols);
    part.ld = t.ld;
    return part;
}

static double *values_of(const Here *h, Tensor far)
{
    int64_t n = tensor_count(far);
    void *host = must_alloc(tensor_bytes(far));
    double *values = must_alloc((size_t)n * sizeof *values);
    device_take(&h->d->device, tensor_1d(host, far.dtype, n), tensor_flat(far));
    for (int64_t i = 0; i < n; i++)
        values[i] = dtype_get(far.dtype, host, i);
    free(host);
    return values;
}

/* Compares two tensors, whose elements are sums of `terms` products of normal numbers, rounded
 * `roundings` times. Releases both tensors. */
static void expect_alike(const Here *h, const char *what, Tensor got, Tensor want, int64_t terms,
                         int roundings)
{
    int64_t n = tensor_count(got);
    double unit = dtype_info[dtype_compute(h->storage)].roundoff,
           bound = sqrt((double)terms) * 4 *
                   (roundings * dtype_info[h->storage].roundoff + unit * sqrt((double)terms));
    double *a = values_of(h, got), *b = values_of(h, want);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= bound))
            fail_msg("%s, %s, %lld x %lld: %s %lld is %.9g, not %.9g, off by %.3g, bound %.3g",
                     h->d->name, dtype_name(h->storage), (long long)h->shape->n,
                     (long long)h->shape->inputs, what, (long long)i, a[i], b[i], fabs(a[i] - b[i]),
                     bound);
    free(a);
    free(b);
}

static void check_forward(const Here *h, bool with_bias)
{
    const Shape *s = h->shape;
    Device *dev = &h->d->device;
    int64_t all = outputs_of(s), first = 0;
    Tensor x = drawn(h, 1, s->n, s->inputs), w = drawn(h, 2, all, s->inputs),
           b = drawn(h, 3, 1, all), whole = drawn(h, 4, s->n, all + s->rest),
           parts = drawn(h, 4, s->n, all + s->rest);
    op_linear_forward(dev, columns_of(whole, 0, all), x, w, with_bias ? tensor_flat(b) : NO_TENSOR,
                      EPILOGUE_NONE, NO_TENSOR);
    for (int p = 0; p < PARTS; first += s->width[p++])
        op_linear_forward(
            dev, columns_of(parts, first, s->width[p]), x, tensor_slice_rows(w, first, s->width[p]),
            with_bias ? tensor_slice_rows(tensor_flat(b), first, s->width[p]) : NO_TENSOR,
            EPILOGUE_NONE, NO_TENSOR);
    expect_alike(h, "y", parts, whole, s->inputs, 2);
    device_drop(dev, x);
    device_drop(dev, w);
    device_drop(dev, b);
}

static void check_backward(const Here *h)
{
    const Shape *s = h->shape;
    Device *dev = &h->d->device;
    int64_t all = outputs_of(s), first = 0;
    Tensor x = drawn(h, 1, s->n, s->inputs), w = drawn(h, 2, all, s->inputs),
           dy = drawn(h, 5, s->n, all + s->rest), dx[2], dw[2], db[2];
    for (int k = 0; k < 2; k++) {
        dx[k] = drawn(h, 6, s->n, s->inputs);
        dw[k] = drawn(h, 7, all, s->inputs);
        db[k] = drawn(h, 8, 1, all);
    }
    op_linear_backward_input(dev, dx[0], columns_of(dy, 0, all), w, EPILOGUE_NONE, NO_TENSOR,
                             false);
    op_linear_backward_weight(dev, dw[0], tensor_flat(db[0]), columns_of(dy, 0, all), x, NO_TENSOR,
                              true);
    for (int p = 0; p < PARTS; first += s->width[p++]) {
        Tensor part = columns_of(dy, first, s->width[p]);
        op_linear_backward_input(dev, dx[1], part, tensor_slice_rows(w, first, s->width[p]),
                                 EPILOGUE_NONE, NO_TENSOR, p > 0);
        op_linear_backward_weight(dev, tensor_slice_rows(dw[1], first, s->width[p]),
                                  tensor_slice_rows(tensor_flat(db[1]), first, s->width[p]), part,
                                  x, NO_TENSOR, true);
    }
    expect_alike(h, "dx", dx[1], dx[0], all, 3);
    expect_alike(h, "dw", dw[1], dw[0], s->n, 2);
    expect_alike(h, "db", db[1], db[0], s->n, 2);
    device_drop(dev, x);
    device_drop(dev, w);
    device_drop(dev, dy);
}

static void layers_whose_outputs_share_a_buffer_equal_one_layer_with_stacked_weights(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (DType storage = F64; storage <= F16; storage++)
            for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
                Here here = {&devices.item[i], storage, &shapes[k]};
                if (!device_asked_for(here.d) || !device_has_storage(&here.d->device, storage))
                    continue;
                check_forward(&here, false);
                check_forward(&here, true);
                check_backward(&here);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_whose_outputs_share_a_buffer_equal_one_layer_with_stacked_weights),
    };
    return cmocka_run_group_tests_name("products of columns of a buffer", tests, devices_setup,
                                       devices_teardown);
}
