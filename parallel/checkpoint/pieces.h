/* pieces.h -- a rank's part of a tensor that is saved or read: one extent, however the units are
 * laid out and however many ranks share the tensor. In a file the tensor is whole. */
#ifndef PARALLEL_CHECKPOINT_PIECES_H
#define PARALLEL_CHECKPOINT_PIECES_H

#include "model/core/tensor.h"
#include "model/param/extents.h"

/* One tensor of a checkpoint in its logical shape, without padding, and this rank's part of it.
 * All ranks list the same tensors in the same order; one that has nothing of a tensor has an extent
 * of no elements. Slots are called PARAMETER.SLOT. */
typedef struct {
    const char *name;
    DType dtype;
    int ndim;
    int64_t dim[4];
    ParamExtent extent; /* which elements; its `param` and `offset` mean nothing here */
    Tensor data;        /* they themselves: flat, dense, extent.count */
} Piece;

/* The tensor of a row of the table, or of one of its slots, of which this rank has nothing yet. */
Piece piece_of_row(const char *name, const Param *row, DType dtype);
/* Gives the piece `extent`, whose elements lie in `flat`; flat[0] is element `offset` of the unit.
 */
void piece_fill(Piece *piece, const ParamExtent *extent, Tensor flat, int64_t offset);
/* Elements of the whole tensor. */
int64_t piece_elements(const Piece *piece);

/* Consecutive elements of a tensor that are consecutive in an extent, too. */
typedef struct {
    int64_t at;     /* in the whole tensor */
    int64_t within; /* in the extent */
    int64_t count;
} Stretch;
/* The first stretch of the extent in elements [from, end) of the tensor; false without one. To go
 * on, ask from the end of the last. */
bool extent_stretch(const ParamExtent *extent, int64_t from, int64_t end, Stretch *out);

#endif
