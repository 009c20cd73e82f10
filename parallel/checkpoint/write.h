/* write.h -- collects the pieces of all ranks on the writers, which write them to the tensor files
 * of a save or store them in a snapshot. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_WRITE_H
#define PARALLEL_CHECKPOINT_WRITE_H

#include "parallel/checkpoint/snapshot.h"

/* Writes and syncs this rank's files in `folder`, which must exist, and sends this rank's pieces of
 * tensors in other files to the writers of those files. Stores the checksums of this rank's files
 * in `layout`; rank 0 gets the checksums of all files. All ranks must call it.
 *
 * Returns false and sets `err` if a file of this rank could not be written. Even then the rank has
 * received all data that was sent to it, so no other rank is blocked. */
bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n);
/* Stores in the snapshot what this rank's files will contain, and sends this rank's pieces of
 * tensors in other files to the writers of those files. All ranks must call it. */
void store_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   Snapshot *snapshot);
/* Sends the other writers' checksums to rank 0, which writes the manifest. All ranks must call
 * it. */
void collect_checksums(CheckpointIo *io, Layout *layout);

#endif
