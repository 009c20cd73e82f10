/* snapshot.h -- a copy in host memory of what one rank writes in a save, so that training can
 * continue while a thread writes it. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_SNAPSHOT_H
#define PARALLEL_CHECKPOINT_SNAPSHOT_H

#include "parallel/checkpoint/layout.h"

typedef struct {
    Device *device; /* NULL: the memory is not page-locked */
    char *memory;
    size_t bytes;
    size_t slots_at;  /* offset of the slots (optimizer states), which come after the weights */
    StepState *state; /* at the end of the memory */
} Snapshot;

/* Allocates a snapshot (checkpoint_snapshot_bytes) for rank `rank` of `ranks`, which will save
 * these contents. Writes to all of the memory once, so that the first save does not wait for the
 * system to provide pages. */
void snapshot_open(Snapshot *snapshot, Device *device, const CheckpointContents *contents,
                   int ranks, int rank);
void snapshot_close(Snapshot *snapshot);
/* Returns the address in the snapshot of element `element` of a tensor of the manifest; the tensor
 * must be in a file of this rank. */
void *snapshot_at(const Snapshot *snapshot, const Layout *layout, int tensor, int64_t element);
/* For a single rank, which has all tensors whole: begins to copy the tensors to the snapshot on the
 * stream of `device`, which may be a view of the device (device_on). If `device` is NULL, copies
 * from host memory. */
void snapshot_copy(Snapshot *snapshot, Device *device, const CheckpointContents *contents,
                   const Layout *layout);
/* Writes and syncs the files of rank `rank` in `folder`, which must exist, and stores their
 * checksums in `layout`. Returns false and sets `err` on failure. Does not communicate, so a thread
 * may call it. */
bool snapshot_write(const Snapshot *snapshot, const FsOps *fs, Layout *layout, int rank,
                    const char *folder, char *err, size_t n);

#endif
