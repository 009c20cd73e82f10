/* write.h -- writes the tensor files of a save, with the pieces of all ranks, or stores what they
 * will hold in a snapshot. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_WRITE_H
#define PARALLEL_CHECKPOINT_WRITE_H

#include "parallel/checkpoint/snapshot.h"

/* Writes and syncs this rank's files in `folder`, which must exist, and sends this rank's pieces to
 * the other writers. Stores the checksums of this rank's files in `layout`; rank 0 gets the
 * checksums of all files. All ranks must call it.
 *
 * Returns false and sets `err` if a file of this rank could not be written. Even then the rank has
 * received all data that was sent to it, so no other rank is blocked. */
bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n);
/* Stores what this rank's files will hold in the snapshot, and sends this rank's pieces to the
 * other writers. All ranks must call it. */
void store_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   Snapshot *snapshot);
/* Sends the other writers' checksums to rank 0, which writes the manifest. All ranks must call
 * it. */
void collect_checksums(CheckpointIo *io, Layout *layout);

#endif
