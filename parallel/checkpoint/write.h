/* write.h -- writes the tensor files of a save, with the pieces of all ranks. Private to
 * parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_WRITE_H
#define PARALLEL_CHECKPOINT_WRITE_H

#include "parallel/checkpoint/layout.h"

/* Writes and syncs this rank's files in `folder`, which must exist, and sends this rank's pieces to
 * the other writers. Stores the checksums of this rank's files in `layout`; rank 0 gets the
 * checksums of all files. All ranks must call it.
 *
 * Returns false and sets `err` if a file of this rank could not be written. Even then the rank has
 * received all data that was sent to it, so no other rank is blocked. */
bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n);
/* Creates the file `path`, writes `bytes` bytes of `data` to it and syncs it. `fd` is its folder,
 * which the caller has opened. */
bool write_whole_file(const FsOps *fs, int fd, const char *path, const void *data, size_t bytes,
                      char *err, size_t n);

#endif
