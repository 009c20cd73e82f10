/* whole_pieces.h -- converts between a whole tensor and a piece of a checkpoint that contains all
 * of it. */
#ifndef TESTS_SUPPORT_CHECKPOINT_WHOLE_PIECES_H
#define TESTS_SUPPORT_CHECKPOINT_WHOLE_PIECES_H

#include "parallel/checkpoint/pieces.h"

/* Returns the piece of a dense tensor of which this rank has all elements. */
Piece piece_whole(const char *name, Tensor tensor);
/* Returns the tensor of a piece that contains all its elements. */
Tensor piece_tensor(const Piece *piece);

#endif
