/* whole_pieces.c -- makes pieces of whole tensors, and tensors of whole pieces. See
 * whole_pieces.h. */
#include "tests/support/checkpoint/whole_pieces.h"

#include "model/core/check.h"

#include <string.h>

Piece piece_whole(const char *name, Tensor tensor)
{
    int64_t count = tensor_count(tensor);
    CHECK(tensor_is_dense(tensor), "%s has gaps between its rows", name);
    Piece piece = {.name = name,
                   .dtype = tensor.dtype,
                   .ndim = tensor.ndim,
                   .extent = {.count = count, .cols = count, .whole_cols = count},
                   .data = tensor_flat(tensor)};
    memcpy(piece.dim, tensor.dim, sizeof piece.dim);
    return piece;
}

Tensor piece_tensor(const Piece *piece)
{
    CHECK(piece->extent.count == piece_elements(piece), "%s: %lld of %lld elements are here",
          piece->name, (long long)piece->extent.count, (long long)piece_elements(piece));
    Tensor t = piece->data;
    t.ndim = piece->ndim;
    memcpy(t.dim, piece->dim, sizeof t.dim);
    t.ld = tensor_cols(t);
    return t;
}
