/* write.h -- the files with tensors of one save: all ranks' pieces to the disk. Private to
 * parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_WRITE_H
#define PARALLEL_CHECKPOINT_WRITE_H

#include "parallel/checkpoint/layout.h"

/* Writes and syncs this rank's files below `folder`, which is there, and sends its pieces to the
 * other writers. Fills in layout's checksums: of this rank's files, on rank 0 of all. All ranks
 * call it. False with a sentence where a file of this rank could not be written: this rank then
 * still received everything, so that no other rank waits for it. */
bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n);
/* Creates folder/NAME with these bytes and syncs it. `fd`: the open folder. */
bool write_whole_file(const FsOps *fs, int fd, const char *path, const void *data, size_t bytes,
                      char *err, size_t n);

#endif
