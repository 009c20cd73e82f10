/* whole_pieces.h -- pieces of a checkpoint that are whole tensors: from a tensor to its piece, and
 * back. */
#ifndef TESTS_SUPPORT_CHECKPOINT_WHOLE_PIECES_H
#define TESTS_SUPPORT_CHECKPOINT_WHOLE_PIECES_H

#include "parallel/checkpoint/pieces.h"

/* A dense tensor all of which this rank has. */
Piece piece_whole(const char *name, Tensor tensor);
/* The tensor of a piece that is whole. */
Tensor piece_tensor(const Piece *piece);

#endif
