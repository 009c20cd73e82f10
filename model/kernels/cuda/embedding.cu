/* embedding.cu -- looks up rows of an embedding table. */
#include "model/kernels/cuda/embedding.cuh"

/* Copies table row tokens[n] - first_row to x (N, C), bit for bit, or writes zeros if the table
 * does not have that row. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    token_forward_kernel(Cut cut, DeviceRows<T> x, DeviceRows<T> table, int64_t table_rows,
                         const int32_t *__restrict__ tokens, int64_t first_row)
{
    int64_t n, pack;
    if (!cut_place(cut, &n, &pack)) return;
    int64_t row = table_row(tokens, n, first_row, table_rows);
    if (row < 0) {
        float zero[N] = {};
        store_global<N>(row_at(x, n, pack * N), zero);
    } else {
        *reinterpret_cast<Pack<T, N> *>(row_at(x, n, pack * N)) =
            raw_load<N>((const T *)row_at(table, row, pack * N));
    }
}

void cuda_token_forward(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row)
{
    with_packs(x.dtype, all_fit(pack_size(x.dtype), x, table), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<token_forward_kernel<T, n>>(dev, tensor_rows(x), tensor_cols(x) / n,
                                               rows_of<T>(x), rows_of<T>(table), tensor_rows(table),
                                               (const int32_t *)tokens.data, first_row);
    });
}

/* Adds table row positions[n] to x (N, C). A position outside the table makes the row NaN. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    position_add_kernel(Cut cut, DeviceRows<T> x, DeviceRows<T> table, int64_t table_rows,
                        const int32_t *__restrict__ positions)
{
    int64_t n, pack;
    if (!cut_place(cut, &n, &pack)) return;
    int64_t row = table_row(positions, n, 0, table_rows);
    float v[N], t[N];
    load<N>(v, row_at(x, n, pack * N));
    if (row >= 0) load<N>(t, row_at(table, row, pack * N));
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = row >= 0 ? v[i] + t[i] : NAN;
    store_global<N>(row_at(x, n, pack * N), v);
}

void cuda_position_add(Device *dev, Tensor x, Tensor table, Tensor positions)
{
    with_packs(x.dtype, all_fit(pack_size(x.dtype), x, table), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_cut<position_add_kernel<T, n>>(dev, tensor_rows(x), tensor_cols(x) / n,
                                              rows_of<T>(x), rows_of<T>(table), tensor_rows(table),
                                              (const int32_t *)positions.data);
    });
}
