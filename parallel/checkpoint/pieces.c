/* pieces.c -- see pieces.h. */
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

void piece_fill(Piece *piece, const ParamExtent *run, Tensor flat, int64_t offset)
{
    CHECK(piece->run.count == 0, "%s: a second run on one rank", piece->name);
    CHECK(flat.dtype == piece->dtype, "%s is %s in memory and %s in files", piece->name,
          dtype_name(flat.dtype), dtype_name(piece->dtype));
    piece->run = *run;
    piece->data = tensor_slice_rows(flat, run->offset - offset, run->count);
}

int64_t piece_elements(const Piece *piece)
{
    int64_t n = 1;
    for (int d = 0; d < piece->ndim; d++)
        n *= piece->dim[d];
    return n;
}

bool run_stretch(const ParamExtent *run, int64_t from, int64_t end, Stretch *out)
{
    if (run->count == 0) return false; /* its other fields may be 0, too */
    int64_t k = 0; /* of this rank's part: the first element that is `from` or behind it */
    if (from > run->first) {
        int64_t row = (from - run->first) / run->whole_cols,
                col = (from - run->first) % run->whole_cols;
        k = row * run->cols + (col < run->cols ? col : run->cols);
    }
    int64_t i = k > run->from ? k - run->from : 0;
    if (i >= run->count) return false;
    int64_t at = param_extent_element(run, i), left = run->count - i;
    if (at >= end) return false;
    if (run->cols < run->whole_cols) {
        int64_t of_row = run->cols - (run->from + i) % run->cols;
        if (left > of_row) left = of_row;
    }
    *out = (Stretch){.at = at, .within = i, .count = left < end - at ? left : end - at};
    return true;
}
