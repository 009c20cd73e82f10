/* feed.h -- from loaders to the model: micro-batches on their way to the device. */
#ifndef PARALLEL_TRAINER_FEED_H
#define PARALLEL_TRAINER_FEED_H

#include "data/loader.h"
#include "model/gpt.h"

/* What is under way, and how much of it is done: micro-batches of a step or an evaluation, tokens
 * of a sample. */
typedef enum { WORK_STEP, WORK_EVALUATION, WORK_SAMPLE } WorkKind;
typedef struct {
    WorkKind kind;
    int64_t done, all;
} Work;
/* Called before each micro-batch (of an evaluation on several stages, before each of the groups
 * that go through them), and after each token of a sample. False ends an evaluation or a sample
 * there; a step goes on to its end all the same. Must not wait for the device. */
typedef bool (*FeedWatch)(void *context, const Work *work);

/* How many micro-batches may wait for the device; then the host waits for a free slot. Four hold
 * two steps of two micro-batches, or three that keep the device busy while the host makes the next.
 */
enum { FEED_SLOTS = 4 };

typedef struct {
    Device *dev;
    Loader *train, *val;    /* borrowed; either may be NULL when its actions do not occur */
    const int64_t *samples; /* consumed before this step; read by training actions */
    GptBatch *place;        /* device: micro-batches that have been begun and not ended */
    int places;
    FeedWatch watch; /* or NULL */
    void *watch_context;
    int64_t micros;           /* of a step, for the watch */
    int64_t target_bytes;     /* of text, in the targets handed out so far */
    double seconds;           /* waiting for the loaders so far */
    void *memory;             /* of the places */
    size_t bytes;             /* of one of them */
    char *staging;            /* FEED_SLOTS times `bytes` of page-locked host memory, in turn */
    Event copied[FEED_SLOTS]; /* per slot: the device has it */
    int64_t turn;
} Feed;

/* For the memory plan: bytes on the device of so many places for micro-batches of N rows, and those
 * of all slots in page-locked host memory. */
size_t feed_bytes(int64_t N, int places);
size_t feed_host_bytes(int64_t N);
/* Memory for micro-batches of N rows. Close with feed_close. */
void feed_open(Feed *feed, Device *dev, int64_t N, int places);
void feed_close(Feed *feed);
/* The GptFeed of a Feed: a forward or evaluation of a stage's first chunk takes the micro-batch
 * from the loader into action->batch, where it is for all its later actions. Every stage and every
 * tensor-parallel rank does, so that nothing of a batch travels. Damaged data ends the run
 * (EXIT_DAMAGED). */
GptBatch feed_batch(void *context, const Action *action);

/* Asks the watch, if there is one. */
bool feed_may_continue(const Feed *feed, WorkKind kind, int64_t done, int64_t all);

#endif
