/* checkpoint.h -- saving a run so that it can go on with the same bits, on any grid. This header is
 * the room's door: with manifest.h and pieces.h it is all that others include.
 *
 * RUN/checkpoints/step_00000123/ holds model.safetensors (weights), optimizer.safetensors (named
 * slots) and manifest.json (checksums, StepState, config). A save writes a temporary folder, syncs
 * it and renames it: at every moment the newest folder that verifies is a whole save. There is no
 * pointer file. Tensors are known by name only.
 *
 * On disk all tensors are whole, however many ranks hold their parts: each is written by one rank,
 * a writer, which receives the others' parts. Several writers have a file each for either part of
 * the checkpoint, and an index tells Hugging Face's loaders which tensor is where. So any grid of
 * ranks reads what any other has saved: each rank takes its own parts out of the files. */
#ifndef PARALLEL_CHECKPOINT_CHECKPOINT_H
#define PARALLEL_CHECKPOINT_CHECKPOINT_H

#include "model/core/device.h"
#include "model/core/fs.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/pieces.h"
#include "parallel/comm/comm.h"

typedef struct {
    const Piece *weights;
    int n_weights;
    const Piece *slots;
    int n_slots;
    const StepState *state;                     /* on the host */
    const char *config, *machine, *code, *data; /* as in the manifest */
    GridPlace grid;                             /* sizes of its axes; all 0: one rank */
    int zero_stage;
    int writers; /* so many ranks write, if there are as many; 0: one */
} CheckpointContents;

/* Bytes of the staging buffer below: tensors are written and read in pieces of at most that many,
 * and more of another rank's data is never here. */
#define CHECKPOINT_STAGING_BYTES ((size_t)4 << 20)

/* How a rank reaches its tensors, its disk and the other ranks. */
typedef struct {
    Device *device; /* may be NULL when all tensors are on the host */
    Comm *world;    /* NULL: a single rank */
    const FsOps *fs;
    void *staging; /* host memory through which pass a device's tensors, other ranks' data, and
                      files that are verified */
    Event copied;  /* the device is done with the staging buffer */
} CheckpointIo;

/* Allocates the staging buffer (page-locked for the device; device may be NULL): once, at the
 * start, for page-locking makes a device wait. All ranks of `world` (NULL: a single rank), which
 * outlives it, then make the same calls of this header in the same order, but for those that take
 * no CheckpointIo. Close it before the device. */
void checkpoint_io_open(CheckpointIo *io, Device *device, Comm *world);
void checkpoint_io_close(CheckpointIo *io);

/* ---- saving ---------------------------------------------------------------------------------- */

/* Commits `contents` as RUN/checkpoints/step_NNNNNNNN, N = state->steps. Every rank gives its own
 * pieces and its own texts, of which rank 0's are used. All ranks return the same, with the
 * sentence of the lowest rank that failed. When it returns true the save is durable. When it
 * returns false older ones are untouched, nothing of it remains (unless the disk dies at the last
 * sync: then all of it may), and the caller may go on and try again later. A step that is there and
 * verifies is not written again; one that is there and damaged is replaced; a folder of that name
 * that holds another step is moved aside, and one that must not be read stops the save. What is
 * committed reads back. */
bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n);
/* The same, on a disk that may be full: then checkpoints older than the newest that verifies go,
 * oldest first, and the save is tried again. */
bool checkpoint_write_making_room(CheckpointIo *io, const char *run,
                                  const CheckpointContents *contents, char *err, size_t n);
/* After the commit of step `newest`: keeps it and the `keep` - 1 newest readable ones before it,
 * removes those older still, and the leftovers of saves and removals that died. Damaged ones
 * newer than the oldest kept one stay as evidence. */
bool checkpoint_prune(CheckpointIo *io, const char *run, int64_t newest, int keep, char *err,
                      size_t n);
/* Bytes on disk that one save of `contents` takes over all ranks, rounded up a little. */
int64_t checkpoint_bytes(const CheckpointContents *contents);

/* ---- finding and reading --------------------------------------------------------------------- */

typedef struct Checkpoint Checkpoint;

/* Files of a checkpoint that a rank keeps open: what it reads of these is what it has checked, even
 * if a live run prunes the folder meanwhile. More are opened when they are read, one at a time. */
enum { CHECKPOINT_OPEN_FILES = 8 };

/* The steps with a folder below RUN/checkpoints, newest first; returns how many: 0 without the
 * folder, -1 with a sentence when it is there and cannot be listed. The caller frees *steps. */
int checkpoint_list(const char *run, int64_t **steps, char *err, size_t n);
/* "RUN/checkpoints/step_00000123"; the caller frees. */
char *checkpoint_path(const char *run, int64_t step);
/* Whether nothing has the name `path` any more. Of a path from the list this means that a live run
 * has pruned the checkpoint since, which is not damage. */
bool checkpoint_gone(const char *path);
/* A list may be out of date at once, because a live run prunes. A reader makes a new list at most
 * this many times when all that the list named is gone before it could be read. */
enum { CHECKPOINT_LIST_ATTEMPTS = 100 };

/* Opens a checkpoint folder: reads the manifest and the headers of all files strictly and compares
 * them with each other and, if the folder is named after a step, with that step, without reading
 * the data. False with a sentence; otherwise checkpoint_close is due. */
bool checkpoint_open(const char *path, Checkpoint **out, char *err, size_t n);
/* The same on all ranks at once: none has it open unless all have. */
bool checkpoint_open_everywhere(CheckpointIo *io, const char *path, Checkpoint **out, char *err,
                                size_t n);
/* Reads all data, each rank its share, and compares every checksum. False with a sentence that
 * names a damaged file and tensor. */
bool checkpoint_verify(CheckpointIo *io, Checkpoint *c, char *err, size_t n);
/* Whether the indexes of parts in several files are there, to the byte as they were saved. Only
 * Hugging Face's loaders read them, so opening, verifying and reading do without. False with a
 * sentence. */
bool checkpoint_verify_indexes(const Checkpoint *c, char *err, size_t n);
/* The newest checkpoint of a run that verifies. Damaged ones are passed over with a warning that
 * names them. One without permission to read ends the search, because it may be whole. True with
 * *out == NULL when the run has none at all; false with a sentence when it has some and none
 * verifies, or when they cannot be listed. */
bool checkpoint_open_newest(CheckpointIo *io, const char *run, Checkpoint **out, char *err,
                            size_t n);
/* Whether the weights or the slots are dst[0..n_dst) by name, dtype and shape, as checkpoint_read
 * asks; reads no data. False with a sentence. */
bool checkpoint_fits(const Checkpoint *c, CheckpointPart part, const Piece *dst, int n_dst,
                     char *err, size_t n);
/* Fills dst[0..n_dst) from the weights or the slots, matched by name: dtype and shape must agree; a
 * tensor that is missing on either side is an error. A single rank compares checksums while it
 * reads; several share that work beforehand. After false the contents of dst are undefined. */
bool checkpoint_read(CheckpointIo *io, Checkpoint *c, CheckpointPart part, const Piece *dst,
                     int n_dst, char *err, size_t n);
/* The manifest of an open checkpoint: state, config, machine, tensors. Valid until
 * checkpoint_close. */
const Manifest *checkpoint_manifest(const Checkpoint *c);
const char *checkpoint_folder(const Checkpoint *c);
void checkpoint_close(Checkpoint *c); /* NULL is fine */

#endif
