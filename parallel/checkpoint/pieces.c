/* pieces.c -- fills in a rank's pieces, which are its parts of tensors, and finds the stretches
 * (consecutive elements) of an extent. See pieces.h. */
#include "parallel/checkpoint/pieces.h"

#include "model/core/check.h"

#include <string.h>

Piece piece_of_row(const char *name, const Param *row, DType dtype)
{
    Piece piece = {.name = name, .dtype = dtype, .ndim = row->ndim};
    for (int d = 0; d < row->ndim; d++)
        piece.dim[d] = row->dim[d];
    return piece;
}

void piece_fill(Piece *piece, const ParamExtent *extent, Tensor flat, int64_t offset)
{
    /* A second extent would overwrite the first, and only half of this rank's part would be
     * saved. */
    CHECK(piece->extent.count == 0, "%s: a second extent on one rank", piece->name);
    CHECK(flat.dtype == piece->dtype, "%s is %s in memory and %s in files", piece->name,
          dtype_name(flat.dtype), dtype_name(piece->dtype));
    piece->extent = *extent;
    piece->data = tensor_slice_rows(flat, extent->offset - offset, extent->count);
}

int64_t piece_elements(const Piece *piece)
{
    int64_t n = 1;
    for (int d = 0; d < piece->ndim; d++)
        n *= piece->dim[d];
    return n;
}

bool extent_stretch(const ParamExtent *extent, int64_t from, int64_t end, Stretch *out)
{
    if (extent->count == 0) return false; /* the divisors below may be 0 then */
    /* Index in this rank's part of its first element at or after `from`. */
    int64_t k = 0;
    if (from > extent->first) {
        int64_t row = (from - extent->first) / extent->whole_cols,
                col = (from - extent->first) % extent->whole_cols;
        /* If `from` is in a column after this rank's columns, the next element is the first of the
         * rank's next row. */
        k = row * extent->cols + (col < extent->cols ? col : extent->cols);
    }
    int64_t i = k > extent->from ? k - extent->from : 0;
    if (i >= extent->count) return false;
    int64_t at = param_extent_element(extent, i), left = extent->count - i;
    if (at >= end) return false;
    /* If columns are cut, a stretch ends with the row: the next row's elements are not adjacent in
     * the tensor. */
    if (extent->cols < extent->whole_cols) {
        int64_t of_row = extent->cols - (extent->from + i) % extent->cols;
        if (left > of_row) left = of_row;
    }
    *out = (Stretch){.at = at, .within = i, .count = left < end - at ? left : end - at};
    return true;
}
