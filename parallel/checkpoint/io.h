/* io.h -- pieces of tensors between memory and files; shared by write.c and read.c. */
#ifndef PARALLEL_CHECKPOINT_IO_H
#define PARALLEL_CHECKPOINT_IO_H

#include "parallel/checkpoint/checkpoint.h"

#define CHECKPOINT_PIECE_BYTES ((size_t)4 << 20)

/* How much of `left` bytes goes in one piece. */
static inline size_t checkpoint_piece(int64_t left)
{
    return left < (int64_t)CHECKPOINT_PIECE_BYTES ? (size_t)left : CHECKPOINT_PIECE_BYTES;
}

/* Where the host can read the `bytes` bytes at `at` of a dense tensor: itself, or the staging
 * buffer. */
const void *checkpoint_fetch(CheckpointIo *io, Tensor t, int64_t at, size_t bytes);
/* Where the host may put them, and the step that brings them home when they are there. */
void *checkpoint_landing(CheckpointIo *io, Tensor t, int64_t at);
void checkpoint_store(CheckpointIo *io, Tensor t, int64_t at, size_t bytes);

#endif
