/* async_save.h -- an asynchronous save: training continues while its files are written.
 *
 * It has three parts. First all ranks take a snapshot: each writer (a rank that writes files)
 * copies to host memory the data that it will write. If there is a single rank, its device makes
 * this copy while the host continues. Then each writer's thread writes and syncs its files. Finally
 * rank 0's thread commits the save by the same steps as checkpoint_write, and removes old
 * checkpoints. The threads only do file work. Only the ranks' main threads communicate; they follow
 * the progress of the save in async_save_advance. */
#ifndef PARALLEL_CHECKPOINT_ASYNC_SAVE_H
#define PARALLEL_CHECKPOINT_ASYNC_SAVE_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct AsyncSave AsyncSave;

/* A function that rank 0's thread calls when all files of a save are written, before it commits the
 * save. The function can write other data that must be on the disk before the checkpoint exists. If
 * it returns false and sets `err`, the save fails. */
typedef struct {
    bool (*before)(void *context, char *err, size_t n);
    void *context;
} CheckpointHook;

/* What is to be saved, and where. */
typedef struct {
    const char *run;
    /* Its texts and the names of its pieces must stay valid until the save has ended; everything
     * else is copied. */
    const CheckpointContents *contents;
    /* For a single rank: the StepState in the device's memory. It is copied together with the
     * tensors, and of contents->state only `steps` must be valid. NULL: contents->state is saved.
     */
    const StepState *on_device;
    CheckpointHook hook;
} AsyncRequest;

typedef enum {
    ASYNC_NONE,    /* there is no save */
    ASYNC_PENDING, /* it is not committed yet */
    ASYNC_SAVED,   /* it is durable, and has been opened again without an error */
    ASYNC_FAILED,  /* nothing of it remains, as after a failed checkpoint_write */
    ASYNC_DROPPED  /* nothing of it remains, because AsyncRules.drop was set */
} AsyncState;

/* How a save has ended. */
typedef struct {
    int64_t step;
    StepState state; /* what was saved */
    double seconds;  /* from its begin to its commit; on rank 0 */
    double work;     /* `seconds` without the waits between snapshot, writing and commit */
    double stall;    /* how long this rank's main thread was blocked in the functions below */
    char err[2048];  /* why it failed; the same text on all ranks */
} AsyncResult;

/* What the caller has decided about the pending save. All ranks pass the same values. */
typedef struct {
    /* The number of checkpoints to keep, for checkpoint_prune, which is called after the commit. 0:
     * no checkpoint is removed, not even to make room on a full disk. */
    int keep;
    bool drop; /* do not commit the save: its state turned out to be useless */
} AsyncRules;

/* Allocates host memory for snapshots of these contents, page-locked if `io` has a device, and
 * starts a thread if this rank writes. Call it once, at the start, after checkpoint_io_open. `io`
 * must outlive it. */
AsyncSave *async_save_open(CheckpointIo *io, const CheckpointContents *contents);
/* Ends the thread and frees the memory. No save may be pending. `a` may be NULL. */
void async_save_close(AsyncSave *a);

/* Takes the snapshot of a save, and begins to write it; no save may be pending. All ranks must call
 * it. With a single rank the host does not wait for the device, whose compute stream waits for the
 * copies. Returns false on all ranks if the save cannot begin: its folder cannot be created, or the
 * step's folder exists. The caller should then call checkpoint_write, which reports the reason or
 * handles the case. */
bool async_save_begin(AsyncSave *a, const AsyncRequest *request);
/* Advances the pending save, without waiting. With `meet`, all ranks call it together and get the
 * same result. Without `meet`, it does not communicate and returns ASYNC_PENDING. Once the threads
 * are done, at most three calls with `meet` are needed. `rules` only take effect if
 * async_save_copied was true before the caller decided them. A full disk is handled as by
 * checkpoint_write_making_room. When the save has ended, sets *result. `a` may be NULL. */
AsyncState async_save_advance(AsyncSave *a, const AsyncRules *rules, bool meet,
                              AsyncResult *result);
/* Waits until the save has ended; all ranks call it together. */
AsyncState async_save_await(AsyncSave *a, const AsyncRules *rules, AsyncResult *result);
/* Returns the step of the pending save, or -1 if there is none. */
int64_t async_save_pending(const AsyncSave *a);
/* Returns whether the snapshot of the pending save is complete; then the device has ended all steps
 * before it. */
bool async_save_copied(AsyncSave *a);

#endif
