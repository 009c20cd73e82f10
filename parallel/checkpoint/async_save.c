/* async_save.c -- takes the snapshot of an asynchronous save, and leads the save through its
 * phases. See async_save.h; save.c lists the steps of a save. */
#include "parallel/checkpoint/async_save.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/checkpoint/write.h"
#include "parallel/checkpoint/writer_thread.h"
#include "parallel/grid/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef enum { PHASE_NONE, PHASE_COPYING, PHASE_WRITING, PHASE_COMMITTING } Phase;

struct AsyncSave {
    CheckpointIo *io;
    Snapshot snapshot;
    /* true: there is only one rank, and its device itself copies the tensors to the snapshot. */
    bool on_device;
    /* Used only if on_device. ready: all work that was enqueued before the copies has ended, so the
     * tensors are final; copied: they are in the snapshot. */
    Event ready, copied;
    bool writes; /* true: this rank writes files, so it has a thread */
    WriterThread thread;

    /* The pending save. While the thread has a job, only the job uses the fields from here to the
     * line of dashes below. */
    Phase phase;
    Save save;
    CheckpointHook hook;
    int keep;
    bool good;
    double seconds;     /* time that the job took */
    double ended;       /* time at which the job ended */
    char pruning[1024]; /* why old checkpoints could not be removed; "": nothing has failed */
    char err[2048];
    /* ---- */
    bool drops;
    CheckpointContents contents;
    Piece *weights, *slots; /* copies, to which `contents` points */
    char *run;
    int64_t step;
    double begun, stall, work;
};

AsyncSave *async_save_open(CheckpointIo *io, const CheckpointContents *contents)
{
    AsyncSave *a = must_calloc(1, sizeof *a);
    int rank = checkpoint_io_rank(io), ranks = checkpoint_io_ranks(io);
    a->io = io;
    snapshot_open(&a->snapshot, io->device, contents, ranks, rank);
    a->on_device = io->device != NULL && io->device->backend->place == PLACE_DEVICE && ranks == 1;
    /* An event is created when it is first recorded. */
    if (a->on_device) {
        device_event_record(io->device, &a->ready);
        device_event_record(io->device, &a->copied);
    }
    a->writes = layout_writes(contents, ranks, rank);
    if (a->writes) writer_thread_start(&a->thread);
    return a;
}

void async_save_close(AsyncSave *a)
{
    if (a == NULL) return;
    CHECK(a->phase == PHASE_NONE, "a save is pending");
    if (a->writes) writer_thread_end(&a->thread);
    if (a->on_device) {
        device_event_destroy(a->io->device, &a->ready);
        device_event_destroy(a->io->device, &a->copied);
    }
    snapshot_close(&a->snapshot);
    free(a);
}

int64_t async_save_pending(const AsyncSave *a)
{
    return a != NULL && a->phase != PHASE_NONE ? a->step : -1;
}

bool async_save_copied(AsyncSave *a)
{
    return !a->on_device || device_event_reached(a->io->device, &a->copied);
}

/* ---- the jobs of the thread ------------------------------------------------------------------ */

/* Writes this rank's files. */
static void write_job(void *context)
{
    AsyncSave *a = context;
    double start = seconds_now();
    if (checkpoint_io_far(a->io)) fs_await(a->save.temporary);
    a->good = snapshot_write(&a->snapshot, a->save.fs, &a->save.layout, checkpoint_io_rank(a->io),
                             a->save.temporary, a->err, sizeof a->err);
    a->seconds = seconds_now() - start;
}

/* On rank 0: commits the save if all ranks have written their files (`good`), or removes it. */
static void commit_job(void *context)
{
    AsyncSave *a = context;
    Save *s = &a->save;
    double start = seconds_now();
    CheckpointIo alone = {.fs = s->fs, .keep_every = a->io->keep_every};
    s->layout.manifest.state = *a->snapshot.state;
    a->good = a->good &&
              (a->hook.before == NULL || a->hook.before(a->hook.context, a->err, sizeof a->err)) &&
              save_complete(s) && save_commit(s);
    a->ended = seconds_now();
    if (a->good)
        save_remove_leftovers(s);
    else
        save_remove_temporary(s);
    if (a->good && a->keep > 0 &&
        !checkpoint_prune(&alone, a->run, a->step, a->keep, a->pruning, sizeof a->pruning))
        CHECK(a->pruning[0] != '\0', "a failure without a reason");
    a->seconds = seconds_now() - start;
}

/* ---- the begin ------------------------------------------------------------------------------- */

/* Creates the temporary folder, on rank 0, and sends the id of the save to all ranks. */
static bool prepare(AsyncSave *a)
{
    struct {
        char id[SAVE_ID_DIGITS + 1];
        bool good;
    } begin = {.good = true};
    CheckpointIo *io = a->io;
    Save *s = &a->save;
    if (checkpoint_io_leads(io)) save_draw_id(begin.id);
    if (checkpoint_io_leads(io)) {
        save_begin(s, io, a->run, a->step, begin.id, a->err, sizeof a->err);
        begin.good = checkpoint_gone(s->final) && save_open_parent(s);
        if (begin.good) save_remove_leftovers(s); /* leftovers may fill the disk */
        begin.good = begin.good && save_make_temporary(s);
        if (!begin.good && s->parent_fd >= 0) save_remove_temporary(s);
    }
    checkpoint_io_share(io, &begin, sizeof begin);
    if (!checkpoint_io_leads(io))
        save_begin(s, io, a->run, a->step, begin.id, a->err, sizeof a->err);
    if (begin.good)
        layout_build(&s->layout, &a->contents, checkpoint_io_ranks(io), begin.id);
    else
        save_end(s);
    return begin.good;
}

/* Fills the snapshot. If a->on_device, the device makes the copies after all work that is enqueued
 * so far and before all later work, and the host does not wait for them. */
static void take_snapshot(AsyncSave *a, const StepState *on_device)
{
    Device *dev = a->io->device;
    *a->snapshot.state = *a->contents.state;
    if (checkpoint_io_ranks(a->io) > 1) {
        store_tensors(a->io, &a->contents, &a->save.layout, &a->snapshot);
    } else if (!a->on_device) {
        snapshot_copy(&a->snapshot, NULL, &a->contents, &a->save.layout);
        if (on_device) *a->snapshot.state = *on_device;
    } else {
        Device copying = device_on(dev, dev->copy);
        device_event_record(dev, &a->ready);
        device_event_wait(&copying, &a->ready);
        snapshot_copy(&a->snapshot, &copying, &a->contents, &a->save.layout);
        if (on_device) device_copy_words(&copying, a->snapshot.state, on_device, sizeof *on_device);
        device_event_record(&copying, &a->copied);
        device_event_wait(dev, &a->copied);
    }
}

/* Copies the part of the contents that must outlive the call of async_save_begin. */
static void keep_contents(AsyncSave *a, const AsyncRequest *r)
{
    const CheckpointContents *c = r->contents;
    a->run = must_strdup(r->run);
    a->contents = *c;
    a->step = c->state->steps;
    a->weights = must_calloc((size_t)c->n_weights + 1, sizeof *a->weights);
    a->slots = must_calloc((size_t)c->n_slots + 1, sizeof *a->slots);
    memcpy(a->weights, c->weights, (size_t)c->n_weights * sizeof *c->weights);
    if (c->n_slots > 0) memcpy(a->slots, c->slots, (size_t)c->n_slots * sizeof *c->slots);
    a->contents.weights = a->weights;
    a->contents.slots = a->slots;
}

/* Frees what `a` holds for the pending save, whose files have been committed or removed; after
 * this, no save is pending. */
static void forget(AsyncSave *a)
{
    save_end(&a->save);
    free(a->weights);
    free(a->slots);
    free(a->run);
    a->weights = a->slots = NULL;
    a->run = NULL;
    a->phase = PHASE_NONE;
}

/* If the snapshot is complete, gives this rank's thread the job to write its files. */
static void begin_writing(AsyncSave *a)
{
    if (!async_save_copied(a)) return;
    a->phase = PHASE_WRITING;
    a->good = true;
    a->seconds = 0;
    if (a->writes) writer_thread_give(&a->thread, write_job, a);
}

bool async_save_begin(AsyncSave *a, const AsyncRequest *r)
{
    CHECK(a->phase == PHASE_NONE, "a save is pending");
    a->begun = seconds_now();
    a->hook = r->hook;
    a->drops = false;
    keep_contents(a, r);
    bool begun = prepare(a);
    if (begun) {
        take_snapshot(a, r->on_device);
        /* The caller's state may not exist later, so from here on its copy in the snapshot is used.
         */
        a->contents.state = a->snapshot.state;
        a->phase = PHASE_COPYING;
        if (!a->on_device) begin_writing(a);
    } else {
        forget(a);
    }
    a->stall = a->work = seconds_now() - a->begun;
    return begun;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Called when every rank's thread has finished, with all files written or after a failure: gives
 * rank 0's thread the job to commit the save or to remove it. */
static void begin_commit(AsyncSave *a, const AsyncRules *rules)
{
    a->good = checkpoint_io_agree(a->io, a->good, a->err, sizeof a->err);
    collect_checksums(a->io, &a->save.layout);
    a->drops = rules->drop;
    a->good = a->good && !a->drops;
    a->keep = rules->keep;
    a->pruning[0] = '\0';
    a->phase = PHASE_COMMITTING;
    a->seconds = 0;
    if (checkpoint_io_leads(a->io)) writer_thread_give(&a->thread, commit_job, a);
}

/* If the save failed because the disk was full, removes older checkpoints to make room, unless
 * rules->keep is 0. If it has removed any, begins to write the same snapshot again. Returns whether
 * it did begin again. */
static bool begin_again(AsyncSave *a, const AsyncRules *rules)
{
    bool full = error_says(a->err, ENOSPC) || error_says(a->err, EDQUOT);
    if (rules->keep == 0 || !full ||
        checkpoint_make_room(a->io, a->run, checkpoint_bytes(&a->contents)) == 0)
        return false;
    char why[sizeof a->err];
    memcpy(why, a->err, sizeof why);
    save_end(&a->save);
    if (!prepare(a)) {
        /* Only rank 0 knows why prepare failed, so all ranks report the error of the full disk,
         * which they all have. */
        memcpy(a->err, why, sizeof why);
        return false;
    }
    begin_writing(a);
    return true;
}

/* Called when the save has been committed or removed. Sets *result, unless the save begins again.
 */
static AsyncState end(AsyncSave *a, const AsyncRules *rules, AsyncResult *result)
{
    bool good = checkpoint_io_agree(a->io, a->good, a->err, sizeof a->err);
    if (!good && !a->drops && begin_again(a, rules)) return ASYNC_PENDING;
    if (good && a->pruning[0] != '\0') log_warning("%s; older checkpoints stay", a->pruning);
    *result = (AsyncResult){.step = a->step,
                            .state = *a->snapshot.state,
                            .seconds = a->ended - a->begun,
                            .work = a->work};
    memcpy(result->err, a->err, sizeof result->err);
    forget(a);
    return good ? ASYNC_SAVED : a->drops ? ASYNC_DROPPED : ASYNC_FAILED;
}

/* Returns whether a rank still has something to do in this phase. If not, adds to a->work the
 * longest time that a rank has worked in this phase. */
static bool any_busy(AsyncSave *a)
{
    static const double micro = 1e6;
    bool busy = a->writes && writer_thread_busy(&a->thread);
    int64_t most = busy ? INT64_MAX : (int64_t)(micro * a->seconds);
    if (checkpoint_io_ranks(a->io) > 1) most = control_max(a->io->world, most);
    if (most == INT64_MAX) return true;
    a->work += (double)most / micro;
    return false;
}

static AsyncState go_on(AsyncSave *a, const AsyncRules *rules, bool meet, AsyncResult *result)
{
    if (a->phase == PHASE_COPYING) {
        begin_writing(a);
        /* The rules may have been decided before the copies ended, so they do not apply yet. */
        return ASYNC_PENDING;
    }
    if (!meet || any_busy(a)) return ASYNC_PENDING;
    if (a->phase == PHASE_COMMITTING) return end(a, rules, result);
    begin_commit(a, rules);
    return ASYNC_PENDING;
}

AsyncState async_save_advance(AsyncSave *a, const AsyncRules *rules, bool meet, AsyncResult *result)
{
    if (a == NULL || a->phase == PHASE_NONE) return ASYNC_NONE;
    double start = seconds_now();
    AsyncState state = go_on(a, rules, meet, result);
    a->stall += seconds_now() - start;
    result->stall = a->stall;
    return state;
}

AsyncState async_save_await(AsyncSave *a, const AsyncRules *rules, AsyncResult *result)
{
    if (a == NULL || a->phase == PHASE_NONE) return ASYNC_NONE;
    for (;;) {
        double start = seconds_now();
        if (a->phase == PHASE_COPYING) device_event_synchronize(a->io->device, &a->copied);
        if (a->writes) writer_thread_wait(&a->thread);
        a->stall += seconds_now() - start;
        AsyncState state = async_save_advance(a, rules, true, result);
        if (state != ASYNC_PENDING) return state;
    }
}
