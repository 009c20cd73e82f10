/* tensor.h -- Tensor: a typed, shaped view of memory that it does not own. Passed by value.
 *
 * Row-major; the last dimension is contiguous. Rows (all leading dimensions flattened) are `ld`
 * elements apart, so a column slice of a matrix, such as q in a buffer that holds q, k and v, is a
 * tensor, too. */
#ifndef MODEL_CORE_TENSOR_H
#define MODEL_CORE_TENSOR_H

#include "model/core/dtype.h"

typedef enum { PLACE_HOST, PLACE_DEVICE } Place;

typedef struct Tensor {
    void *data;
    DType dtype;
    Place place;
    int ndim;
    int64_t dim[4];
    int64_t ld;                 /* elements between rows; equals the last dimension if dense */
    const struct Tensor *scale; /* scale factors for fp8; no present type uses them */
} Tensor;

/* An optional operand that is absent. */
#define NO_TENSOR ((Tensor){0})

static inline bool tensor_present(Tensor t)
{
    return t.data != NULL;
}

/* The element-wise operation that combines the tensors of several ranks. */
typedef enum { REDUCE_SUM, REDUCE_MAX } ReduceOp;

/* Make dense tensors over host memory. On the CPU backend, device memory is host memory. */
Tensor tensor_1d(void *data, DType dtype, int64_t n);
Tensor tensor_2d(void *data, DType dtype, int64_t rows, int64_t cols);
Tensor tensor_3d(void *data, DType dtype, int64_t d0, int64_t d1, int64_t d2);

/* count: product of all dimensions; rows: product of all but the last; cols: the last dimension. */
int64_t tensor_count(Tensor t);
int64_t tensor_rows(Tensor t);
int64_t tensor_cols(Tensor t);
/* Returns the bytes of a dense tensor of this shape. */
size_t tensor_bytes(Tensor t);
bool tensor_is_dense(Tensor t);
bool tensor_same_shape(Tensor a, Tensor b);

/* Return rows or columns [first, first + n) of a matrix as a view; a slice of columns keeps ld. */
Tensor tensor_slice_rows(Tensor t, int64_t first, int64_t n);
Tensor tensor_slice_cols(Tensor t, int64_t first, int64_t n);
/* Returns a view with other leading dimensions: t with d0*d1 rows becomes (d0, d1, cols). */
Tensor tensor_as_3d(Tensor t, int64_t d0, int64_t d1);
/* Returns a view of a dense tensor as one dimension with all its elements. */
Tensor tensor_flat(Tensor t);

/* Writes a description for messages, such as "(4, 64, 768) f32", to buf and returns buf. */
const char *tensor_describe(Tensor t, char *buf, size_t n);

/* Returns the address of element [row, 0]. */
static inline void *tensor_row(Tensor t, int64_t row)
{
    return (char *)t.data + (size_t)(row * t.ld) * dtype_size(t.dtype);
}

#endif
