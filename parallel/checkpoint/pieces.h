/* pieces.h -- describes a rank's part of a tensor that is saved or read. However many ranks share a
 * tensor, each has at most one extent of it (consecutive elements of the rank's part:
 * model/param/extents.h). In a file the tensor is whole. */
#ifndef PARALLEL_CHECKPOINT_PIECES_H
#define PARALLEL_CHECKPOINT_PIECES_H

#include "model/core/tensor.h"
#include "model/param/extents.h"

/* One tensor of a checkpoint in its logical shape, without padding, and this rank's part of it. All
 * ranks list the same tensors in the same order; a rank that has no part of a tensor has an extent
 * with count 0. Optimizer states, called slots, are named PARAMETER.SLOT. */
typedef struct {
    const char *name;
    DType dtype;
    int ndim;
    int64_t dim[4];
    /* The elements that this rank has; `param` and `offset` are not used here. */
    ParamExtent extent;
    Tensor data; /* values of these elements, as a 1-D tensor */
} Piece;

/* Returns a piece with the name, dtype and shape of a parameter or of one of its slots. Its extent
 * is empty until piece_fill sets it. */
Piece piece_of_row(const char *name, const Param *row, DType dtype);
/* Sets the piece's extent and data. The data are taken from `flat`, a range of a unit (a flat
 * buffer of several parameters) that begins at the unit's element `offset`. */
void piece_fill(Piece *piece, const ParamExtent *extent, Tensor flat, int64_t offset);
/* Returns the number of elements of the whole tensor. */
int64_t piece_elements(const Piece *piece);

/* A range of elements that are consecutive both in the whole tensor and in an extent. */
typedef struct {
    int64_t at;     /* index of its first element in the whole tensor */
    int64_t within; /* index of its first element in the extent */
    int64_t count;
} Stretch;
/* Finds the first stretch of the extent in elements [from, end) of the tensor; returns false if
 * there is none. To get the next one, pass the end of the last one as `from`. */
bool extent_stretch(const ParamExtent *extent, int64_t from, int64_t end, Stretch *out);

#endif
