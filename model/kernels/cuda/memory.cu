/* memory.cu -- implements fill and copy, for any strides and mixtures of float types, the
 * elementwise sum and maximum of several dense tensors, and the marks that show the host how far a
 * stream has got. */
#include "model/kernels/cuda/rows.cuh"

/* 16 bytes that are moved without being interpreted. */
typedef Pack<uint32_t, 4> Chunk;

static_assert(sizeof(Chunk) == 16, "a chunk is a full pack of every type");

/* Sets every element of x to value; elements have 1 to 16 bytes. Writes each byte once. */
template <class E>
__global__ void __launch_bounds__(CUT_THREADS) fill_kernel(Cut cut, DeviceRows<E> x, E value)
{
    int64_t row, col;
    if (cut_place(cut, &row, &col)) *row_at(x, row, col) = value;
}

/* Fills x in units of E. The elements of x have `size` bytes, and `pattern` holds the bytes of one
 * unit. */
template <class E>
static void fill_as(Device *dev, Tensor x, size_t size, const unsigned char *pattern)
{
    E value;
    memcpy(&value, pattern, sizeof value);
    /* From here on, columns and strides count units of E; cuda_fill chose E so that both are whole
     * numbers of units. */
    int64_t step = (int64_t)(sizeof value / size);
    launch_cut<fill_kernel<E>>(dev, tensor_rows(x), tensor_cols(x) / step,
                               DeviceRows<E>{(E *)x.data, x.ld / step}, value);
}

void cuda_fill(Device *dev, Tensor x, double value)
{
    /* Works on bits, so bf16 and f16 use the same kernel. The loop copies each byte from the byte
     * `size` places before it, which repeats the element over the whole chunk. */
    size_t size = dtype_size(x.dtype);
    unsigned char pattern[sizeof(Chunk)];
    dtype_set(x.dtype, pattern, 0, value);
    for (size_t i = size; i < sizeof pattern; i++)
        pattern[i] = pattern[i - size];
    if (tensor_is_dense(x)) x = tensor_flat(x);
    if (packs_fit(x, pack_size(x.dtype)))
        fill_as<Chunk>(dev, x, size, pattern);
    else if (size == 8)
        fill_as<uint64_t>(dev, x, size, pattern);
    else if (size == 4)
        fill_as<uint32_t>(dev, x, size, pattern);
    else if (size == 2)
        fill_as<uint16_t>(dev, x, size, pattern);
    else
        fill_as<uint8_t>(dev, x, size, pattern);
}

/* Copies N elements of the same type bit for bit. A conversion through float would change the bits
 * of NaNs. */
template <int N, class T> static __device__ __forceinline__ void convert(T *y, const T *x)
{
    *reinterpret_cast<Pack<T, N> *>(y) = raw_load<N>(x);
}

template <int N, class Y, class X> static __device__ __forceinline__ void convert(Y *y, const X *x)
{
    float value[N];
    load<N>(value, x);
    store_global<N>(y, value);
}

/* Computes y = x, rounded to nearest even. Reads and writes each element once. */
template <class Y, class X, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    copy_kernel(Cut cut, DeviceRows<Y> y, DeviceRows<X> x)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    convert<N>(row_at(y, row, pack * N), (const X *)row_at(x, row, pack * N));
}

/* The number of elements that a thread reads and writes, where D is the type that it writes and S
 * the type that it reads: 16 bytes of the wider type, fewer bytes of the narrower one. */
template <class D, class S>
static constexpr int PACK = (int)(16 / (sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S)));

template <class Y, class X, int N> static void copy_as(Device *dev, Tensor y, Tensor x)
{
    launch_cut<copy_kernel<Y, X, N>>(dev, tensor_rows(y), tensor_cols(y) / N, rows_of<Y>(y),
                                     rows_of<X>(x));
}

void cuda_copy(Device *dev, Tensor y, Tensor x)
{
    if (tensor_is_dense(y) && tensor_is_dense(x)) {
        y = tensor_flat(y);
        x = tensor_flat(x);
    }
    with_storage(y.dtype, [&](auto to) {
        with_storage(x.dtype, [&](auto from) {
            typedef typename decltype(to)::Type Y;
            typedef typename decltype(from)::Type X;
            if (all_fit(PACK<Y, X>, y, x))
                copy_as<Y, X, PACK<Y, X>>(dev, y, x);
            else
                copy_as<Y, X, 1>(dev, y, x);
        });
    });
}

/* The sources of a sum or maximum. They are passed as 512 bytes of kernel parameters, so no call
 * has to copy them to the device. */
template <class S> struct Sources {
    const S *at[SUM_SOURCES];
    int n;
};

static_assert(sizeof(Cut) + sizeof(void *) + sizeof(Sources<float>) <= PARAMETER_BYTES,
              "too many sources");

/* Computes dst = the sum of the sources, added in order in float and rounded to nearest even. A
 * thread reads its pack of every source before it writes, so dst may be one of the sources. */
template <class D, class S, int N>
__global__ void __launch_bounds__(CUT_THREADS) sum_kernel(Cut cut, D *dst, Sources<S> src)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    float sum[N];
    load<N>(sum, src.at[0] + pack * N);
#pragma unroll 4
    for (int k = 1; k < src.n; k++) {
        float term[N];
        load<N>(term, src.at[k] + pack * N);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += term[i];
    }
    store_global<N>(dst + pack * N, sum);
}

/* Returns the sources, and clears *whole if one of them is not aligned for packs of n. */
template <class S>
static Sources<S> sources_of(const Tensor *src, int count, int64_t n, bool *whole)
{
    Sources<S> sources = {{NULL}, count};
    for (int k = 0; k < count; k++) {
        sources.at[k] = (const S *)src[k].data;
        *whole = *whole && packs_fit(tensor_flat(src[k]), n);
    }
    return sources;
}

template <class D, class S> static void sum_as(Device *dev, Tensor dst, const Tensor *src, int n)
{
    bool whole = packs_fit(tensor_flat(dst), PACK<D, S>);
    Sources<S> sources = sources_of<S>(src, n, PACK<D, S>, &whole);
    if (whole)
        launch_cut<sum_kernel<D, S, PACK<D, S>>>(dev, 1, tensor_count(dst) / PACK<D, S>,
                                                 (D *)dst.data, sources);
    else
        launch_cut<sum_kernel<D, S, 1>>(dev, 1, tensor_count(dst), (D *)dst.data, sources);
}

/* Computes dst = the sum of the sources, added in double. Only the few sums of a training step are
 * double. */
__global__ void __launch_bounds__(CUT_THREADS)
    sum_doubles_kernel(Cut cut, double *dst, Sources<double> src)
{
    int64_t row, i;
    if (!cut_place(cut, &row, &i)) return;
    double sum = src.at[0][i];
    for (int k = 1; k < src.n; k++)
        sum += src.at[k][i];
    dst[i] = sum;
}

static void sum_doubles(Device *dev, Tensor dst, const Tensor *src, int n)
{
    bool whole = true;
    Sources<double> sources = sources_of<double>(src, n, 1, &whole);
    launch_cut<sum_doubles_kernel>(dev, 1, tensor_count(dst), (double *)dst.data, sources);
}

/* Returns x in the type in which sums and comparisons are computed: doubles are unchanged, all
 * other types become float. */
static __device__ __forceinline__ double widened(double x)
{
    return x;
}

template <class T> static __device__ __forceinline__ float widened(T x)
{
    return to_float(x);
}

/* Computes sum += the sources, in order. */
template <class A, class S>
__global__ void __launch_bounds__(CUT_THREADS) sum_more_kernel(Cut cut, A *sum, Sources<S> src)
{
    int64_t row, i;
    if (!cut_place(cut, &row, &i)) return;
    A total = sum[i];
    for (int k = 0; k < src.n; k++)
        total += widened(src.at[k][i]);
    sum[i] = total;
}

template <class A, class S> static void sum_more(Device *dev, Tensor sum, const Tensor *src, int n)
{
    bool whole = true;
    Sources<S> sources = sources_of<S>(src, n, 1, &whole);
    launch_cut<sum_more_kernel<A, S>>(dev, 1, tensor_count(sum), (A *)sum.data, sources);
}

/* Sets part[k] to elements [at, at + count) of src[k], without copying them, for every k < n. */
static void slices_of(Tensor *part, const Tensor *src, int n, int64_t at, int64_t count)
{
    for (int k = 0; k < n; k++)
        part[k] = tensor_slice_rows(tensor_flat(src[k]), at, count);
}

/* Returns how many elements of this type the scratch memory holds, at most `count`. */
static int64_t scratch_count(const Device *dev, DType type, int64_t count)
{
    int64_t most = (int64_t)(cuda_device(dev)->workspace_bytes / dtype_size(type));
    return most < count ? most : count;
}

/* Computes the sum of more sources than a kernel's parameters hold, one block of sources at a time.
 * The unrounded sum of the blocks so far is in scratch memory. Only the last step writes to dst,
 * which may be one of the sources. */
static void sum_many(Device *dev, Tensor dst, const Tensor *src, int n)
{
    DType type = dst.dtype == F64 ? F64 : F32;
    int64_t count = tensor_count(dst), now = scratch_count(dev, type, count);
    Tensor block[SUM_SOURCES];
    for (int64_t at = 0; at < count; at += now) {
        if (now > count - at) now = count - at;
        Tensor sum = tensor_1d(cuda_workspace(dev, (size_t)now * dtype_size(type)), type, now);
        for (int k = 0, some; k < n; k += some) {
            some = n - k < SUM_SOURCES ? n - k : SUM_SOURCES;
            slices_of(block, src + k, some, at, now);
            if (k == 0)
                cuda_sum(dev, sum, block, some);
            else if (type == F64)
                sum_more<double, double>(dev, sum, block, some);
            else
                with_storage(src[0].dtype, [&](auto from) {
                    sum_more<float, typename decltype(from)::Type>(dev, sum, block, some);
                });
        }
        cuda_sum(dev, tensor_slice_rows(tensor_flat(dst), at, now), &sum, 1);
    }
}

void cuda_sum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    if (n > SUM_SOURCES) {
        sum_many(dev, dst, src, n);
        return;
    }
    if (dst.dtype == F64) {
        sum_doubles(dev, dst, src, n);
        return;
    }
    if (n == 1) {
        if (dst.data != src[0].data) cuda_copy(dev, dst, src[0]);
        return;
    }
    with_storage(dst.dtype, [&](auto to) {
        with_storage(src[0].dtype, [&](auto from) {
            sum_as<typename decltype(to)::Type, typename decltype(from)::Type>(dev, dst, src, n);
        });
    });
}

/* Computes dst = the largest of the sources, bit for bit. Among equal elements the first is kept,
 * and a NaN in any source makes the result NaN. A thread reads its pack of every source before it
 * writes, so dst may be one of the sources. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS) maximum_kernel(Cut cut, T *dst, Sources<T> src)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    Pack<T, N> most = raw_load<N>(src.at[0] + pack * N);
#pragma unroll 4
    for (int k = 1; k < src.n; k++) {
        Pack<T, N> term = raw_load<N>(src.at[k] + pack * N);
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto x = widened(term.at[i]);
            if (x > widened(most.at[i]) || x != x) most.at[i] = term.at[i];
        }
    }
    *reinterpret_cast<Pack<T, N> *>(dst + pack * N) = most;
}

template <class T> static void maximum_as(Device *dev, Tensor dst, const Tensor *src, int n)
{
    bool whole = packs_fit(tensor_flat(dst), PACK<T, T>);
    Sources<T> sources = sources_of<T>(src, n, PACK<T, T>, &whole);
    if (whole)
        launch_cut<maximum_kernel<T, PACK<T, T>>>(dev, 1, tensor_count(dst) / PACK<T, T>,
                                                  (T *)dst.data, sources);
    else
        launch_cut<maximum_kernel<T, 1>>(dev, 1, tensor_count(dst), (T *)dst.data, sources);
}

/* Computes the maximum of more sources than a kernel's parameters hold, one block of sources at a
 * time. The maximum of the blocks so far is in scratch memory. Only the last block writes to dst,
 * which may be one of the sources. */
static void maximum_many(Device *dev, Tensor dst, const Tensor *src, int n)
{
    int64_t count = tensor_count(dst), now = scratch_count(dev, dst.dtype, count);
    Tensor block[SUM_SOURCES];
    for (int64_t at = 0; at < count; at += now) {
        if (now > count - at) now = count - at;
        void *scratch = cuda_workspace(dev, (size_t)now * dtype_size(dst.dtype));
        Tensor most = tensor_1d(scratch, dst.dtype, now);
        for (int k = 0, before = 0, some; k < n; k += some, before = 1) {
            some = n - k < SUM_SOURCES - before ? n - k : SUM_SOURCES - before;
            block[0] = most;
            slices_of(block + before, src + k, some, at, now);
            cuda_maximum(dev, k + some < n ? most : tensor_slice_rows(tensor_flat(dst), at, now),
                         block, before + some);
        }
    }
}

void cuda_maximum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    if (n > SUM_SOURCES)
        maximum_many(dev, dst, src, n);
    else if (dst.dtype == F64)
        maximum_as<double>(dev, dst, src, n);
    else
        with_storage(dst.dtype,
                     [&](auto t) { maximum_as<typename decltype(t)::Type>(dev, dst, src, n); });
}

/* Stores the value in page-locked host memory, which a kernel reaches at the host's own address and
 * which the host may read at any time. Runs in one thread. */
__global__ void __launch_bounds__(WARP) mark_kernel(volatile int64_t *word, int64_t value)
{
    *word = value;
    __threadfence_system();
}

void cuda_mark(Device *dev, Stream stream, int64_t *word, int64_t value)
{
    (void)dev;
    LAUNCH(mark_kernel, 1, 1, 0, (cudaStream_t)stream.impl, word, value);
}
