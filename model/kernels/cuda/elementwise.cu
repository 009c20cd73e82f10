/* elementwise.cu -- contains the ops without sums over a row: activations, residual sums, rotary
 * positions.
 *
 * Each thread reads its own packs before it writes them, so an output may be the same tensor as an
 * input where ops.h allows it. All kernels are limited by memory bandwidth: every element is read
 * and written once. */
#include "model/kernels/cuda/activation.cuh"
#include "model/kernels/cuda/rows.cuh"

/* ---- activations ----------------------------------------------------------------------------- */

/* Computes y = f(x); y and x are (N, F). */
template <class T, int N, ActivationKind KIND>
__global__ void __launch_bounds__(CUT_THREADS)
    activation_forward_kernel(Cut cut, DeviceRows<T> y, DeviceRows<T> x)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float v[N];
    load<N>(v, row_at(x, row, pack * N));
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = activate<T, KIND>(v[i]);
    store_global<N>(row_at(y, row, pack * N), v);
}

/* Computes y (N, F) = silu(gate) * up, where x (N, 2F) = gate | up. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    swiglu_forward_kernel(Cut cut, DeviceRows<T> y, DeviceRows<T> x, int64_t cols)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float gate[N], up[N];
    load<N>(gate, row_at(x, row, pack * N));
    load<N>(up, row_at(x, row, cols + pack * N));
#pragma unroll
    for (int i = 0; i < N; i++)
        gate[i] = silu<T>(gate[i]) * up[i];
    store_global<N>(row_at(y, row, pack * N), gate);
}

/* Computes dx = dy * f'(x). dx and x (N, F) have the storage type. dy (N, F) has the storage type
 * too, or is the f32 sum of a product. */
template <class T, class D, int N, ActivationKind KIND>
__global__ void __launch_bounds__(CUT_THREADS)
    activation_backward_kernel(Cut cut, DeviceRows<T> dx, DeviceRows<D> dy, DeviceRows<T> x)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float v[N], d[N];
    load<N>(v, row_at(x, row, pack * N));
    load<N>(d, row_at(dy, row, pack * N));
#pragma unroll
    for (int i = 0; i < N; i++)
        d[i] *= derivative<T, KIND>(v[i]);
    store_global<N>(row_at(dx, row, pack * N), d);
}

/* Computes dx (N, 2F) = dgate | dup from dy (N, F) and x (N, 2F); dx may be x. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    swiglu_backward_kernel(Cut cut, DeviceRows<T> dx, DeviceRows<T> dy, DeviceRows<T> x,
                           int64_t cols)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float gate[N], up[N], d[N];
    load<N>(gate, row_at(x, row, pack * N));
    load<N>(up, row_at(x, row, cols + pack * N));
    load<N>(d, row_at(dy, row, pack * N));
#pragma unroll
    for (int i = 0; i < N; i++) {
        /* Computes silu(gate) again: forward saved only x, and an exponential costs less than the
         * memory traffic of another matrix. */
        float g = gate[i];
        gate[i] = d[i] * up[i] * silu_derivative<T>(g);
        up[i] = d[i] * silu<T>(g);
    }
    store_global<N>(row_at(dx, row, pack * N), gate);
    store_global<N>(row_at(dx, row, cols + pack * N), up);
}

/* Computes y (N, O) = gelu(sum (N, O) + bias (O)) of the unrounded sum, and stores the rounded sum
 * in pre (N, O). bias may be NULL, and so may pre's data. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    gelu_of_sum_kernel(Cut cut, DeviceRows<T> y, DeviceRows<T> pre, DeviceRows<float> sum,
                       const T *__restrict__ bias)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float v[N], b[N];
    load<N>(v, row_at(sum, row, pack * N));
    if (bias) {
        load<N>(b, bias + pack * N);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] += b[i];
    }
    /* v itself stays unrounded: GELU is applied to the unrounded sum, and only backward sees the
     * rounded copy. */
    if (pre.data) store_global<N>(row_at(pre, row, pack * N), v);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = activate<T, ACTIVATION_GELU>(v[i]);
    store_global<N>(row_at(y, row, pack * N), v);
}

void cuda_activation_forward(Device *dev, Tensor y, Tensor x, ActivationKind kind)
{
    /* Dense matrices are treated as one long row, in which a pack may cross the end of a row of the
     * matrix. So rows of an odd width also move in full packs. */
    if (kind != ACTIVATION_SWIGLU && tensor_is_dense(y) && tensor_is_dense(x)) {
        y = tensor_flat(y);
        x = tensor_flat(x);
    }
    /* If y (N, F) and x (N, 2F) are aligned for full packs, so are both halves of x. */
    with_packs(y.dtype, all_fit(pack_size(y.dtype), y, x), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        int64_t rows = tensor_rows(y), packs = tensor_cols(y) / n;
        if (kind == ACTIVATION_GELU)
            launch_cut<activation_forward_kernel<T, n, ACTIVATION_GELU>>(
                dev, rows, packs, rows_of<T>(y), rows_of<T>(x));
        else if (kind == ACTIVATION_RELU2)
            launch_cut<activation_forward_kernel<T, n, ACTIVATION_RELU2>>(
                dev, rows, packs, rows_of<T>(y), rows_of<T>(x));
        else
            launch_cut<swiglu_forward_kernel<T, n>>(dev, rows, packs, rows_of<T>(y), rows_of<T>(x),
                                                    tensor_cols(y));
    });
}

/* Launches dx = dy * f'(x), where f is GELU or squared ReLU. If `product`, dy is the f32 sum of a
 * product and f is GELU; otherwise dy has the type of dx and x. */
static void pointwise_backward(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind,
                               bool product)
{
    if (tensor_is_dense(dx) && tensor_is_dense(dy) && tensor_is_dense(x)) {
        dx = tensor_flat(dx);
        dy = tensor_flat(dy);
        x = tensor_flat(x);
    }
    with_packs(dx.dtype, all_fit(pack_size(dx.dtype), dx, dy, x), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        int64_t rows = tensor_rows(dx), packs = tensor_cols(dx) / n;
        if (product)
            launch_cut<activation_backward_kernel<T, float, n, ACTIVATION_GELU>>(
                dev, rows, packs, rows_of<T>(dx), rows_of<float>(dy), rows_of<T>(x));
        else if (kind == ACTIVATION_GELU)
            launch_cut<activation_backward_kernel<T, T, n, ACTIVATION_GELU>>(
                dev, rows, packs, rows_of<T>(dx), rows_of<T>(dy), rows_of<T>(x));
        else
            launch_cut<activation_backward_kernel<T, T, n, ACTIVATION_RELU2>>(
                dev, rows, packs, rows_of<T>(dx), rows_of<T>(dy), rows_of<T>(x));
    });
}

void cuda_activation_backward(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind)
{
    if (kind != ACTIVATION_SWIGLU) {
        pointwise_backward(dev, dx, dy, x, kind, false);
        return;
    }
    with_packs(dx.dtype, all_fit(pack_size(dx.dtype), dx, dy, x), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<swiglu_backward_kernel<T, n>>(dev, tensor_rows(dy), tensor_cols(dy) / n,
                                                 rows_of<T>(dx), rows_of<T>(dy), rows_of<T>(x),
                                                 tensor_cols(dy));
    });
}

void cuda_gelu_multiply(Device *dev, Tensor dx, Tensor product, Tensor pre)
{
    CHECK(product.dtype == F32, "the product is %s, not f32", dtype_name(product.dtype));
    pointwise_backward(dev, dx, product, pre, ACTIVATION_GELU, true);
}

void cuda_gelu_of_sum(Device *dev, Tensor y, Tensor pre, Tensor sum, Tensor bias)
{
    CHECK(sum.dtype == F32, "the sum is %s, not f32", dtype_name(sum.dtype));
    CHECK(y.dtype == BF16 || y.dtype == F16, "a sum of %s is its own pre", dtype_name(y.dtype));
    with_packs(y.dtype, all_fit(pack_size(y.dtype), y, pre, sum, bias), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        if constexpr (sizeof(T) < sizeof(float))
            launch_cut<gelu_of_sum_kernel<T, n>>(dev, tensor_rows(y), tensor_cols(y) / n,
                                                 rows_of<T>(y), rows_of<T>(pre),
                                                 rows_of<float>(sum), (const T *)bias.data);
    });
}

/* ---- sums and copies of rows ----------------------------------------------------------------- */

/* Computes y (N, C) = x + a + bias (C), added in this order. bias may be NULL; y may be x or a. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    bias_residual_kernel(Cut cut, DeviceRows<T> y, DeviceRows<T> a, const T *__restrict__ bias,
                         DeviceRows<T> x)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float sum[N], v[N];
    load<N>(sum, row_at(x, row, pack * N));
    load<N>(v, row_at(a, row, pack * N));
    /* Adds in float and rounds once, when storing: a 16-bit intermediate sum would lose what the
     * bias adds. */
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] += v[i];
    if (bias) {
        load<N>(v, bias + pack * N);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += v[i];
    }
    store_global<N>(row_at(y, row, pack * N), sum);
}

void cuda_bias_residual(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x)
{
    with_packs(y.dtype, all_fit(pack_size(y.dtype), y, a, bias, x), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<bias_residual_kernel<T, n>>(dev, tensor_rows(y), tensor_cols(y) / n,
                                               rows_of<T>(y), rows_of<T>(a), (const T *)bias.data,
                                               rows_of<T>(x));
    });
}

void cuda_add(Device *dev, Tensor y, Tensor a, Tensor b)
{
    if (tensor_is_dense(y) && tensor_is_dense(a) && tensor_is_dense(b)) {
        y = tensor_flat(y);
        a = tensor_flat(a);
        b = tensor_flat(b);
    }
    cuda_bias_residual(dev, y, b, NO_TENSOR, a);
}

/* Sets every row of y (N, O) to bias (O). */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    rows_fill_kernel(Cut cut, DeviceRows<T> y, const T *__restrict__ bias)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    /* Copies bits without conversion, so a NaN keeps its bits. */
    *reinterpret_cast<Pack<T, N> *>(row_at(y, row, pack * N)) = raw_load<N>(bias + pack * N);
}

void cuda_rows_fill(Device *dev, Tensor y, Tensor bias)
{
    CHECK(y.dtype == bias.dtype, "rows of %s from %s", dtype_name(y.dtype), dtype_name(bias.dtype));
    with_packs(y.dtype, all_fit(pack_size(y.dtype), y, bias), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<rows_fill_kernel<T, n>>(dev, tensor_rows(y), tensor_cols(y) / n, rows_of<T>(y),
                                           (const T *)bias.data);
    });
}

/* ---- rotary positions ------------------------------------------------------------------------ */

/* Rotates x (N, K*D) in place by the angles of each row's position. A thread rotates N pairs (i, i
 * + D/2) of one head. sign -1 rotates back. table (P, D) holds cosines, then sines, in float. A
 * position outside the table makes the elements NaN. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    rope_kernel(Cut cut, DeviceRows<T> x, DeviceRows<float> table, int64_t positions_in_table,
                const int32_t *__restrict__ positions, int half, float sign)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    /* This thread has both numbers of a pair, so x can be rotated in place. N divides half, so all
     * pairs of a pack are in one head. */
    int pairs = (int)pack * N, head = pairs / half, first = pairs % half;
    int64_t position = positions[row];
    T *at = row_at(x, row, (int64_t)head * 2 * half + first);
    float low[N], high[N], cosine[N], sine[N];
    load<N>(low, at);
    load<N>(high, at + half);
    if (position >= 0 && position < positions_in_table) {
        load<N>(cosine, row_at(table, position, first));
        load<N>(sine, row_at(table, position, half + first));
    } else { /* the host cannot check positions, so a wrong one must show in the results */
#pragma unroll
        for (int i = 0; i < N; i++)
            cosine[i] = sine[i] = NAN;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        /* The transpose of a rotation rotates by the opposite angle, so backward differs only in
         * the sign of the sine. */
        float a = low[i], b = high[i], s = sign * sine[i];
        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
    }
    store_global<N>(at, low);
    store_global<N>(at + half, high);
}

void cuda_rope(Device *dev, Tensor x, Tensor table, Tensor positions, bool inverse)
{
    int64_t half = tensor_cols(table) / 2, full = pack_size(x.dtype);
    CHECK(tensor_cols(x) <= INT32_MAX, "rope over %lld columns", (long long)tensor_cols(x));
    bool whole = all_fit(full, x, table) && half % full == 0;
    with_packs(x.dtype, whole, [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<rope_kernel<T, n>>(
            dev, tensor_rows(x), tensor_cols(x) / 2 / n, rows_of<T>(x), rows_of<float>(table),
            tensor_rows(table), (const int32_t *)positions.data, (int)half, inverse ? -1.0f : 1.0f);
    });
}
