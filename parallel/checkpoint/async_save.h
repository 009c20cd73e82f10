/* async_save.h -- an asynchronous save: training goes on while it is written.
 *
 * It has three parts. First all ranks take a snapshot: each writer stores what it writes in host
 * memory, and a single rank's device copies it there while the host goes on. Then each writer's
 * thread writes and syncs its files. At last rank 0's thread commits the save by the same steps as
 * checkpoint_write, and removes old checkpoints. The threads do file work alone. All communication
 * is that of the ranks' own threads, which find out in async_save_advance how far the save is. */
#ifndef PARALLEL_CHECKPOINT_ASYNC_SAVE_H
#define PARALLEL_CHECKPOINT_ASYNC_SAVE_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct AsyncSave AsyncSave;

/* Called on rank 0 by its thread before the commit, if all files are written: for what must be on
 * the disk before the checkpoint is. Returns false and sets `err` if the save is to fail. */
typedef struct {
    bool (*before)(void *context, char *err, size_t n);
    void *context;
} CheckpointHook;

/* What is to be saved, and where. */
typedef struct {
    const char *run;
    /* Its texts and the names of its pieces must stay valid until the save has ended; all else is
     * copied. */
    const CheckpointContents *contents;
    /* For a single rank: the StepState in the device's memory, which is copied with the tensors;
     * contents->state need only have the steps. NULL: contents->state is whole. */
    const StepState *on_device;
    CheckpointHook hook;
} AsyncRequest;

typedef enum {
    ASYNC_NONE,    /* there is no save */
    ASYNC_PENDING, /* it is not committed yet */
    ASYNC_SAVED,   /* it is durable, and has been opened again without an error */
    ASYNC_FAILED,  /* nothing of it remains, as after a failed checkpoint_write */
    ASYNC_DROPPED  /* the same, because the caller wanted it so */
} AsyncState;

/* How a save has ended. */
typedef struct {
    int64_t step;
    StepState state; /* what was saved */
    double seconds;  /* from its begin to its commit; on rank 0 */
    double work;     /* of that, what snapshot, writing and commit took, one after the other */
    double stall;    /* for how long this rank's own thread was held in the functions below */
    char err[2048];  /* if it failed: why; the same on all ranks */
} AsyncResult;

/* What the caller has decided by the time it asks. All ranks pass the same values. */
typedef struct {
    /* As for checkpoint_prune, which follows the commit, and to make room on a full disk; 0: no
     * checkpoint is removed. */
    int keep;
    bool drop; /* the save is not to be committed: its state turned out to be of no use */
} AsyncRules;

/* Allocates host memory for snapshots of such contents, page-locked if `io` has a device, and
 * starts a thread if this rank writes. Call it once, after checkpoint_io_open and as early; close
 * it before the `io`, which must outlive it. */
AsyncSave *async_save_open(CheckpointIo *io, const CheckpointContents *contents);
/* No save may be pending. `a` may be NULL. */
void async_save_close(AsyncSave *a);

/* Takes the snapshot of a save, and begins to write it; none may be pending. All ranks must call
 * it. The host does not wait for a single rank's device, whose compute stream waits for the copies.
 * Returns false on all ranks if the save cannot begin: its folder cannot be made, or the step's
 * folder exists. checkpoint_write then says why, or does what is to be done. */
bool async_save_begin(AsyncSave *a, const AsyncRequest *request);
/* Goes on with the pending save, without waiting. With `meet`, all ranks call it together, and all
 * return the same; otherwise it communicates with no rank and returns ASYNC_PENDING. At most three
 * calls with `meet` are needed once the threads are done. `rules` decide only if async_save_copied
 * was true before they were made. A full disk is dealt with as by
 * checkpoint_write_making_room. When the save has ended, sets *result. `a` may be NULL. */
AsyncState async_save_advance(AsyncSave *a, const AsyncRules *rules, bool meet,
                              AsyncResult *result);
/* Waits until the save has ended; all ranks call it together. */
AsyncState async_save_await(AsyncSave *a, const AsyncRules *rules, AsyncResult *result);
/* Returns the step of the pending save, or -1 if there is none. */
int64_t async_save_pending(const AsyncSave *a);
/* Returns whether what is pending has been copied, so that the steps before it have ended. */
bool async_save_copied(AsyncSave *a);

#endif
