/* tensor.h -- Tensor: a typed, shaped view of memory that somebody else owns. Passed by value.
 *
 * Row-major; the last dimension is contiguous; rows (all leading dimensions flattened) lie `ld`
 * elements apart, so a column slice of a matrix (q, k and v in one buffer) is a tensor too. */
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
    int64_t ld;                 /* elements between rows; = last dimension when dense */
    const struct Tensor *scale; /* fp8 only */
} Tensor;

/* "No tensor": an optional operand that is absent. */
#define NO_TENSOR ((Tensor){0})

static inline bool tensor_present(Tensor t)
{
    return t.data != NULL;
}

/* How the tensors of several ranks become one, element by element. */
typedef enum { REDUCE_SUM, REDUCE_MAX } ReduceOp;

/* Dense host tensors; on the CPU backend device memory is host memory. */
Tensor tensor_1d(void *data, DType dtype, int64_t n);
Tensor tensor_2d(void *data, DType dtype, int64_t rows, int64_t cols);
Tensor tensor_3d(void *data, DType dtype, int64_t d0, int64_t d1, int64_t d2);

/* Product of all dimensions; rows = product of all but the last; cols = the last. */
int64_t tensor_count(Tensor t);
int64_t tensor_rows(Tensor t);
int64_t tensor_cols(Tensor t);
/* Bytes of a dense tensor of this shape. */
size_t tensor_bytes(Tensor t);
bool tensor_is_dense(Tensor t);
bool tensor_same_shape(Tensor a, Tensor b);

/* Rows [first, first + n) of a matrix; columns [first, first + n) of a matrix (ld kept). */
Tensor tensor_slice_rows(Tensor t, int64_t first, int64_t n);
Tensor tensor_slice_cols(Tensor t, int64_t first, int64_t n);
/* The same memory with other leading dimensions: t of rows d0*d1 becomes (d0, d1, cols). */
Tensor tensor_as_3d(Tensor t, int64_t d0, int64_t d1);
/* A dense tensor seen as one row of all its elements. */
Tensor tensor_flat(Tensor t);

/* "(4, 64, 768) f32", for messages. Returns buf. */
const char *tensor_describe(Tensor t, char *buf, size_t n);

/* Address of element [row, 0]. */
static inline void *tensor_row(Tensor t, int64_t row)
{
    return (char *)t.data + (size_t)(row * t.ld) * dtype_size(t.dtype);
}

#endif
