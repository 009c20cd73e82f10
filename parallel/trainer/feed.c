/* feed.c -- copies micro-batches from the loaders through page-locked slots to the device, on the
 * copy stream. See feed.h. */
#include "parallel/trainer/feed.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/flight.h"

#include <stdlib.h>
#include <string.h>

/* Allocates tokens, targets and positions of a micro-batch of N rows from `arena`. */
static GptBatch batch_layout(Arena *arena, int64_t N)
{
    GptBatch batch = {0};
    batch.tokens = arena_tensor(arena, I32, 1, N, 0, 0);
    batch.targets = arena_tensor(arena, I32, 1, N, 0, 0);
    batch.positions = arena_tensor(arena, I32, 1, N, 0, 0);
    return batch;
}

size_t feed_bytes(int64_t N, int batches)
{
    Arena measuring = arena_measuring();
    for (int i = 0; i < FEED_PLACES(batches); i++)
        batch_layout(&measuring, N);
    return measuring.peak;
}

size_t feed_host_bytes(int64_t N)
{
    Arena measuring = arena_measuring();
    for (int i = 0; i < FEED_SLOTS; i++)
        batch_layout(&measuring, N);
    return measuring.peak;
}

void feed_open(Feed *f, Device *dev, int64_t N, int batches)
{
    size_t bytes = feed_bytes(N, batches), staged = feed_host_bytes(N);
    *f = (Feed){.dev = dev, .bytes = staged / FEED_SLOTS, .batches = batches};
    f->copy = device_on(dev, dev->copy);
    f->memory = device_alloc(dev, bytes, "micro-batches");
    f->place = must_calloc((size_t)FEED_PLACES(batches), sizeof *f->place);
    f->batch = must_calloc((size_t)batches, sizeof *f->batch);
    Arena arena = device_arena(dev, f->memory, bytes);
    for (int i = 0; i < FEED_PLACES(batches); i++)
        f->place[i] = batch_layout(&arena, N);
    memcpy(f->batch, f->place, (size_t)batches * sizeof *f->batch);
    f->staging = device_host_alloc(dev, staged, "micro-batches");
    /* The first record creates an event, so no step has to. */
    for (int i = 0; i < FEED_SLOTS; i++)
        device_event_record(&f->copy, &f->copied[i]);
    device_event_record(dev, &f->left);
}

void feed_close(Feed *f)
{
    if (f->dev == NULL) return;
    for (int i = 0; i < FEED_SLOTS; i++)
        device_event_destroy(f->dev, &f->copied[i]);
    device_event_destroy(f->dev, &f->left);
    device_host_release(f->dev, f->staging, FEED_SLOTS * f->bytes);
    device_release(f->dev, f->memory, feed_bytes(tensor_count(f->place[0].tokens), f->batches));
    free(f->place);
    free(f->batch);
    *f = (Feed){0};
}

static void stage(const GptBatch *slot, const Batch *batch)
{
    memcpy(slot->tokens.data, batch->tokens.data, tensor_bytes(batch->tokens));
    memcpy(slot->targets.data, batch->targets.data, tensor_bytes(batch->targets));
    memcpy(slot->positions.data, batch->positions.data, tensor_bytes(batch->positions));
}

/* Starts to copy `batch` to the device and returns its place there; if `batch` is NULL, copies
 * whatever the slot contains. The loader may reuse its buffer at once; the slot is reused only
 * after the copy has finished.
 *
 * At most `batches` micro-batches are in use, and they end in the order in which they began. So
 * when the previous micro-batch was sent, all actions of the micro-batch that last occupied this
 * place had already been issued. The copy therefore waits only for the work issued before that
 * moment (`left`). It overlaps with the work issued since then, which is about one micro-batch. */
static GptBatch send(Feed *f, const Batch *batch)
{
    int64_t slot = f->turn % FEED_SLOTS, N = tensor_count(f->place[0].tokens);
    GptBatch to = f->place[f->turn++ % FEED_PLACES(f->batches)];
    device_event_synchronize(f->dev, &f->copied[slot]);
    Arena arena = arena_over(f->staging + (size_t)slot * f->bytes, f->bytes);
    GptBatch staged = batch_layout(&arena, N);
    if (batch) stage(&staged, batch);
    device_event_wait(&f->copy, &f->left);
    device_event_record(f->dev, &f->left);
    device_copy(&f->copy, to.tokens, staged.tokens);
    device_copy(&f->copy, to.targets, staged.targets);
    device_copy(&f->copy, to.positions, staged.positions);
    device_event_record(&f->copy, &f->copied[slot]);
    device_event_wait(f->dev, &f->copied[slot]);
    return to;
}

bool feed_may_continue(const Feed *f, WorkKind kind, int64_t done, int64_t all)
{
    Work work = {.kind = kind, .done = done, .all = all};
    return f->watch == NULL || f->watch(f->watch_context, &work);
}

GptBatch feed_send(Feed *f, const Action *action, const Batch *batch)
{
    CHECK(action->batch < f->batches, "batch %d of %d", action->batch, f->batches);
    return f->batch[action->batch] = send(f, batch);
}

GptBatch feed_batch(void *context, const Action *action)
{
    Feed *f = context;
    bool evaluate = action->kind == ACT_EVALUATE;
    CHECK(action->batch < f->batches, "batch %d of %d", action->batch, f->batches);
    if (action->kind == ACT_BACKWARD || action->chunk > 0) return f->batch[action->batch];
    if (f->unread) return f->batch[action->batch] = send(f, NULL);
    Batch batch;
    char err[1024];
    if (!evaluate) feed_may_continue(f, WORK_STEP, action->micro, f->micros);
    double start = seconds_now();
    int64_t noted = flight_work_begin(f->dev->flight, FLIGHT_DATA);
    if (!loader_next(evaluate ? f->val : f->train, evaluate ? 0 : *f->position, action->micro,
                     &batch, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    flight_work_end(f->dev->flight, noted);
    f->seconds += seconds_now() - start;
    f->target_bytes += batch.target_bytes;
    return feed_send(f, action, &batch);
}
