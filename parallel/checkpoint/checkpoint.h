/* checkpoint.h -- saves a training run, and resumes it with the same bits on any grid of ranks.
 * Code outside this folder includes only this header, async_save.h, manifest.h, pieces.h and
 * source.h.
 *
 * RUN/checkpoints/step_00000123/ holds model.safetensors (weights), optimizer.safetensors
 * (optimizer states, called slots) and manifest.json (checksums, StepState, config). A save writes
 * a temporary folder, syncs it and renames it, so at every moment the newest folder that verifies
 * is a complete save. No pointer file names the newest checkpoint. Tensors are identified by name
 * only.
 *
 * Each rank passes its part of every tensor as a Piece (pieces.h), but on disk every tensor is
 * whole. One rank, the tensor's writer, receives the parts of the other ranks and writes the
 * tensor. If there are several writers, each writes one file of weights and one file of slots, and
 * an index tells Hugging Face's loaders which file has which tensor. A checkpoint can therefore be
 * read on any grid: each rank reads its own parts out of the files. */
#ifndef PARALLEL_CHECKPOINT_CHECKPOINT_H
#define PARALLEL_CHECKPOINT_CHECKPOINT_H

#include "model/core/device.h"
#include "model/core/fs.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/pieces.h"
#include "parallel/comm/comm.h"

/* Weights that are not in memory when they are saved: an import reads them window by window. */
typedef struct {
    /* Reads elements [from, from + count) of weights[weight] to `out`, in that piece's dtype.
     * Returns false and sets err on failure. */
    bool (*read)(void *context, int weight, int64_t from, int64_t count, void *out, char *err,
                 size_t n);
    void *context;
} WeightReader;

typedef struct {
    const Piece *weights;
    int n_weights;
    /* NULL: the pieces contain their data. Otherwise the data are read through this; the pieces
     * then cover whole tensors and have no memory. For a single rank only. */
    const WeightReader *reader;
    const Piece *slots;
    int n_slots;
    const StepState *state;                     /* StepState in host memory */
    const char *config, *machine, *code, *data; /* texts for the manifest */
    GridPlace grid;                             /* sizes of the grid's axes; all 0: one rank */
    int zero_stage;
    int writers; /* number of writers wanted, at most one per rank; 0 means 1 */
    bool trial;  /* true: the save writes everything, and removes it instead of committing it */
} CheckpointContents;

/* Size of the staging buffer below in bytes. Tensors are written and read in windows of at most
 * this size, so a rank never holds more than this of another rank's data. */
#define CHECKPOINT_STAGING_BYTES ((size_t)4 << 20)

/* The device, disk and communicator through which a rank saves and loads, and its buffer. */
typedef struct {
    Device *device; /* may be NULL if all tensors are in host memory */
    Comm *world;    /* NULL: a single rank */
    const FsOps *fs;
    /* Host memory for tensors on their way from or to a device, for data of other ranks, and for
     * files that are verified. */
    void *staging;
    /* Checkpoints of steps divisible by this are never removed; 0: there are no such steps. The
     * caller sets it. */
    int64_t keep_every;
    Event copied; /* recorded after the last copy from or to the staging buffer */
    bool copying; /* true: nobody has waited for `copied` yet */
} CheckpointIo;

/* Allocates the staging buffer, page-locked if there is a device (`device` may be NULL). Call it
 * once, at the start: page-locking makes the device wait. `world` (NULL: a single rank) must
 * outlive `io`. From then on all ranks of `world` must make the same calls of this header in the
 * same order; functions without a CheckpointIo parameter are exempt. Close `io` before the
 * device. */
void checkpoint_io_open(CheckpointIo *io, Device *device, Comm *world);
void checkpoint_io_close(CheckpointIo *io);

/* ---- saving ---------------------------------------------------------------------------------- */

/* Commits `contents` as RUN/checkpoints/step_NNNNNNNN, where N = state->steps. Every rank passes
 * its own pieces; the texts are taken from rank 0. All ranks return the same result, and `err`
 * holds the message of the lowest rank that failed.
 *
 * When it returns true, the save is durable and has been opened again without an error. When it
 * returns false, older checkpoints are untouched and the caller may try again later; nothing of the
 * failed save remains, unless the disk fails at the last sync.
 *
 * If the step's folder exists and verifies, it is not written again. If it is damaged, it is
 * replaced. If it holds another step, it is renamed. If it cannot be read because of its
 * permissions, the save fails. */
bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n);
/* Like checkpoint_write, but if the disk is full, removes checkpoints older than the newest one
 * that verifies, oldest first, and tries again. */
bool checkpoint_write_making_room(CheckpointIo *io, const char *run,
                                  const CheckpointContents *contents, char *err, size_t n);
/* Returns how many checkpoints checkpoint_write_making_room could remove if step `newest` is the
 * newest one that verifies; keep_every as in CheckpointIo. First removes the leftovers of crashed
 * saves, as each save does. Only rank 0 calls it. */
int checkpoint_removable(const FsOps *fs, const char *run, int64_t newest, int64_t keep_every);
/* Removes old checkpoints; call it after step `newest` has been committed. Keeps `newest`, the
 * `keep` - 1 newest readable checkpoints before it, those of steps divisible by io->keep_every, the
 * best one, which best.json names, and one with weights alone (checkpoint_weights_only). Removes
 * all other checkpoints before `newest`, and leftovers of saves and removals that crashed. If
 * best.json cannot be read, keeps all checkpoints. Damaged checkpoints newer than the oldest kept
 * one stay as evidence. */
bool checkpoint_prune(CheckpointIo *io, const char *run, int64_t newest, int keep, char *err,
                      size_t n);
/* Removes the checkpoints of steps after `step`, the newest first, even the best one. They are
 * useless to a run that has gone back to `step`: it repeats these steps with different data.
 * Returns true if none of them is a checkpoint any more, even if the machine crashes now; for files
 * that could not be deleted it only warns. Otherwise returns false and sets `err`; the checkpoints
 * of the earlier of these steps then remain. All ranks call it. */
bool checkpoint_remove_after(CheckpointIo *io, const char *run, int64_t step, char *err, size_t n);
/* Removes what crashed saves and interrupted removals have left in RUN/checkpoints; of a symbolic
 * link it removes only the link itself. Only rank 0 calls this, and it must hold the run's lock.
 * Returns false and sets `err` if something could not be removed. */
bool checkpoint_tidy(CheckpointIo *io, const char *run, char *err, size_t n);
/* Returns the bytes on disk that one save of `contents` takes over all ranks, rounded up a
 * little. */
int64_t checkpoint_bytes(const CheckpointContents *contents);

/* The bytes of the tensors that one rank writes in a save, for each part (weights, slots). */
typedef struct {
    int64_t part[CHECKPOINT_PARTS];
} CheckpointShare;
/* Returns the share of rank `rank` of `ranks`. bytes[0..n_weights + n_slots) are the sizes of the
 * weights, followed by those of the slots, in the order of the contents. */
CheckpointShare checkpoint_share(const int64_t *bytes, int n_weights, int n_slots, int writers,
                                 int ranks, int rank);
/* Stores the ranks that write files of a save, in rising order, in rank[0..CHECKPOINT_MAX_WRITERS),
 * and returns their number. */
int checkpoint_writers(int writers, int ranks, int *rank);
/* Returns the bytes of host memory in which a rank with this share stores a snapshot
 * (async_save.h). */
size_t checkpoint_snapshot_bytes(const CheckpointShare *share);

/* ---- finding --------------------------------------------------------------------------------- */

typedef struct Checkpoint Checkpoint;

/* If a checkpoint has at most this many files, a rank keeps all of them open. They stay readable,
 * with the content that was checked, even if another process prunes the folder meanwhile. If there
 * are more files, they are opened one at a time when they are read. */
enum { CHECKPOINT_OPEN_FILES = 8 };

/* Sets *steps to the steps that have a folder below RUN/checkpoints, newest first; the caller frees
 * it. Returns their number, which is 0 if RUN/checkpoints does not exist. Returns -1 and sets `err`
 * if it exists but cannot be listed. */
int checkpoint_list(const char *run, int64_t **steps, char *err, size_t n);
/* Returns "RUN/checkpoints/step_00000123" for step 123; the caller frees it. */
char *checkpoint_path(const char *run, int64_t step);
/* Returns whether nothing exists at `path`. If that is the folder of a step that checkpoint_list
 * has returned, it is no damage: another process, which is still training, has pruned it since. */
bool checkpoint_gone(const char *path);
/* Returns false and sets `err` if `path`, a step's folder in RUN/checkpoints, is a symbolic link:
 * this run did not save the folder to which the link points. */
bool checkpoint_not_linked(const char *path, char *err, size_t n);
/* How many times a reader lists the checkpoints. It lists them again if another process, which is
 * still training, has pruned listed checkpoints before they could be read. */
enum { CHECKPOINT_LIST_ATTEMPTS = 100 };

/* Opens a checkpoint folder. Reads the manifest and the headers of all files strictly, compares
 * them with each other and, if the folder is named after a step, with that step. Does not read the
 * data. Returns false and sets `err` on failure; on success, the caller must call
 * checkpoint_close. */
bool checkpoint_open(const char *path, Checkpoint **out, char *err, size_t n);
/* Opens the checkpoint on all ranks, or on none: if one rank fails to open it, all return false. */
bool checkpoint_open_everywhere(CheckpointIo *io, const char *path, Checkpoint **out, char *err,
                                size_t n);
/* Reads all data and compares every checksum; the ranks share the work. If something is damaged,
 * returns false and sets `err` to a message that names the file and the tensor. */
bool checkpoint_verify(CheckpointIo *io, Checkpoint *c, char *err, size_t n);
/* Returns whether each index file is byte for byte as it was saved; a part in a single file has no
 * index. Only Hugging Face's loaders read the indexes, so opening, verifying and reading a
 * checkpoint ignore them. Sets `err` if one is missing or differs. */
bool checkpoint_verify_indexes(const Checkpoint *c, char *err, size_t n);
/* Opens the newest checkpoint of a run that verifies. Damaged ones are skipped with a warning that
 * names them. One that the user has no permission to read ends the search, because it may be
 * intact.
 *
 * Returns true and sets *out, which is NULL if the run has no checkpoints at all. Returns false and
 * sets `err` if it has some and none verifies, or if they cannot be listed. */
bool checkpoint_open_newest(CheckpointIo *io, const char *run, Checkpoint **out, char *err,
                            size_t n);
/* Opens the newest checkpoint of an earlier step than `before` that verifies, and that holds more
 * than weights. A checkpoint of a step divisible by `interval` (0: there are none) is preferred to
 * all others, because the others may have been saved at any step, such as at a stop. Returns true
 * and NULL in *out if there is none. The caller must hold the run's lock. */
bool checkpoint_open_before(CheckpointIo *io, const char *run, int64_t before, int64_t interval,
                            Checkpoint **out, char *err, size_t n);
/* ---- the best -------------------------------------------------------------------------------- */

/* The checkpoint with the lowest validation loss, as RUN/checkpoints/best.json records it. */
typedef struct {
    int64_t step;    /* 0: none is recorded */
    double val_loss; /* mean nats per target */
    /* id of the save that wrote it: another save of the same step may have another loss */
    char save_id[SAVE_ID_DIGITS + 1];
} CheckpointBest;

/* Reads the record. Returns true and step 0 if there is none. Returns false and sets `err` if it is
 * damaged or cannot be read. */
bool checkpoint_best_read(const char *run, CheckpointBest *best, char *err, size_t n);
/* Records the checkpoint of step best->step, which must have been saved, as the best, and sets
 * best->save_id. The file is replaced atomically and synced. All ranks return the same result. */
bool checkpoint_best_write(CheckpointIo *io, const char *run, CheckpointBest *best, char *err,
                           size_t n);
/* Removes the record; its checkpoint becomes an ordinary one. */
bool checkpoint_best_forget(const char *run, char *err, size_t n);
/* Reads the record and opens its checkpoint, without reading the data. Returns true and sets *out,
 * which is NULL if none is recorded. Returns false and sets `err` if the record or the checkpoint
 * cannot be used. */
bool checkpoint_best_find(const char *run, CheckpointBest *best, Checkpoint **out, char *err,
                          size_t n);
/* Does the work of checkpoint_best_find on all ranks, and also verifies the checkpoint's data. */
bool checkpoint_best_open(CheckpointIo *io, const char *run, Checkpoint **out, CheckpointBest *best,
                          char *err, size_t n);

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns whether the checkpoint's weights or slots agree with dst[0..n_dst) in name, dtype and
 * shape, as checkpoint_read requires; sets `err` if not. Reads no data. */
bool checkpoint_fits(const Checkpoint *c, CheckpointPart part, const Piece *dst, int n_dst,
                     char *err, size_t n);
/* Fills dst[0..n_dst) from the weights or the slots. Tensors are matched by name, and dtype and
 * shape must agree. A tensor that exists only in the checkpoint or only in `dst` is an error. A
 * single rank compares checksums while it reads; several ranks verify the data first and share that
 * work. After false, the contents of `dst` are undefined. */
bool checkpoint_read(CheckpointIo *io, Checkpoint *c, CheckpointPart part, const Piece *dst,
                     int n_dst, char *err, size_t n);
/* Returns the manifest of an open checkpoint: state, config, machine, tensors. It is valid until
 * checkpoint_close. */
const Manifest *checkpoint_manifest(const Checkpoint *c);
const char *checkpoint_folder(const Checkpoint *c);
/* Returns whether the checkpoint is of step 0 and holds only weights, no optimizer states, as an
 * import writes it. A run begins its training from it: everything except the weights is fresh.
 * Their dtype need not be the run's (take.h). It is never pruned, and a later save of step 0 does
 * not replace it. */
bool checkpoint_weights_only(const Checkpoint *c);
void checkpoint_close(Checkpoint *c); /* `c` may be NULL */

#endif
