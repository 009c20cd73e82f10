/* io.h -- pieces of tensors between memory and files, for write.c and read.c. Private to
 * parallel/checkpoint; checkpoint.h is the header for everybody else.
 *
 * A file is written and read in pieces of at most the staging buffer's size. Tensors on the host
 * are read and written where they lie; those of a device pass through the staging buffer. */
#ifndef PARALLEL_CHECKPOINT_IO_H
#define PARALLEL_CHECKPOINT_IO_H

#include "parallel/checkpoint/checkpoint.h"

/* How many of the `left` bytes go in the next piece. */
static inline size_t checkpoint_io_piece(int64_t left)
{
    return left < (int64_t)CHECKPOINT_STAGING_BYTES ? (size_t)left : CHECKPOINT_STAGING_BYTES;
}

/* Where the host can read bytes [at, at + bytes) of a dense tensor: in the tensor itself, or in the
 * staging buffer, into which they have been copied; valid until the next call. */
const void *checkpoint_io_fetch(CheckpointIo *io, Tensor t, int64_t at, size_t bytes);
/* Where the host puts such bytes: into the tensor itself or into the staging buffer. Then
 * checkpoint_io_store brings them to the device; for a tensor of the host it has nothing to do. */
void *checkpoint_io_target(CheckpointIo *io, Tensor t, int64_t at);
void checkpoint_io_store(CheckpointIo *io, Tensor t, int64_t at, size_t bytes);

#endif
