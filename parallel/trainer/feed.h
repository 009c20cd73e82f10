/* feed.h -- takes micro-batches from the loaders and copies them to the device for the model. */
#ifndef PARALLEL_TRAINER_FEED_H
#define PARALLEL_TRAINER_FEED_H

#include "data/loader.h"
#include "model/gpt.h"

/* The work in progress and how much of it is done. The unit is micro-batches for a step or an
 * evaluation, and tokens for a sample. */
typedef enum { WORK_STEP, WORK_EVALUATION, WORK_SAMPLE } WorkKind;
typedef struct {
    WorkKind kind;
    int64_t done, all;
} Work;
/* Called before each micro-batch, and after each token of a sample. In an evaluation over several
 * stages, it is called before each group of micro-batches instead. If it returns false, an
 * evaluation or a sample ends there; a step continues to its end anyway. It must not wait for the
 * device. */
typedef bool (*FeedWatch)(void *context, const Work *work);

/* Number of slots in page-locked host memory, from which micro-batches are copied to the device.
 * The host waits for a free slot if all of them hold micro-batches that are still to be copied.
 * Four are enough: three micro-batches keep the device busy while the host prepares the next. */
enum { FEED_SLOTS = 4 };

/* Number of places for micro-batches in device memory: one for each of the `batches` micro-batches
 * that are in use at a time, and one into which the next is copied meanwhile. */
#define FEED_PLACES(batches) ((batches) + 1)

typedef struct {
    Device *dev;
    Loader *train, *val; /* borrowed; may be NULL if never needed */
    /* true: micro-batches are not loaded, because nothing reads them on a counted device */
    bool unread;
    const int64_t *position; /* number of the step's first sample in the data, for training */
    Device copy;             /* dev's copy stream */
    GptBatch *place;         /* places of micro-batches on the device, used in turn */
    GptBatch *batch;         /* places of the micro-batches in use, indexed by action->batch */
    int batches;             /* how many micro-batches are in use at a time */
    FeedWatch watch;         /* may be NULL */
    void *watch_context;
    int64_t micros;           /* micro-batches per step, for the watch */
    int64_t target_bytes;     /* bytes of text in the targets so far */
    double seconds;           /* time spent waiting for the loaders so far */
    void *memory;             /* device memory of the places */
    size_t bytes;             /* bytes of one place */
    char *staging;            /* page-locked host memory: FEED_SLOTS slots of `bytes` */
    Event copied[FEED_SLOTS]; /* per slot: recorded after its copy to the device */
    Event left;   /* recorded on the compute stream when the latest micro-batch was sent */
    int64_t turn; /* number of micro-batches sent so far */
} Feed;

/* For the memory plan, with micro-batches of N rows (tokens). feed_bytes returns the device memory
 * of a feed with `batches` micro-batches in use at a time. feed_host_bytes returns the page-locked
 * host memory of all its slots. */
size_t feed_bytes(int64_t N, int batches);
size_t feed_host_bytes(int64_t N);
/* Allocates memory for micro-batches of N rows. Close with feed_close. */
void feed_open(Feed *feed, Device *dev, int64_t N, int batches);
void feed_close(Feed *feed);
/* Implements GptFeed for a Feed. A forward or evaluation of a stage's first chunk takes the next
 * micro-batch from the loader and starts to copy it to the device, on the copy stream; the compute
 * stream waits for the copy. All later actions with the same action->batch use this copy. Every
 * stage and every tensor-parallel rank loads the micro-batch itself, so token ids are never sent
 * between ranks. Damaged data end the program (EXIT_DAMAGED). */
GptBatch feed_batch(void *context, const Action *action);

/* Starts to copy `batch` to the device and returns its place there. This action and all later ones
 * with the same action->batch use this copy. The caller may overwrite `batch` at once. Other feeds
 * call it for data that no loader provides (score.c). */
GptBatch feed_send(Feed *feed, const Action *action, const Batch *batch);

/* Calls the watch and returns its result; returns true if there is no watch. */
bool feed_may_continue(const Feed *feed, WorkKind kind, int64_t done, int64_t all);

#endif
