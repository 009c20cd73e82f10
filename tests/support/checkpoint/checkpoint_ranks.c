/* checkpoint_ranks.c -- saves and reads the parts of a run on each of several ranks. See
 * checkpoint_ranks.h. */
#include "tests/support/checkpoint/checkpoint_ranks.h"

#include "model/core/check.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

/* The parts of one rank. */
typedef struct {
    Piece piece[N_ALL];
    StepState state;
    CheckpointIo io;
    Device device;
} Parts;

/* Returns the elements of tensor `t` that rank `rank` has. */
static ParamExtent part_of(const TestTensor *t, const TestRanks *r, int rank)
{
    int64_t rows = 1, cols = t->dim[t->ndim - 1];
    for (int d = 0; d + 1 < t->ndim; d++)
        rows *= t->dim[d];
    int tp = rank % r->tp, dp = rank / r->tp, dps = r->ranks / r->tp;
    int64_t first = cols * tp / r->tp, own = cols * (tp + 1) / r->tp - first, part = rows * own,
            from = part * dp / dps, count = part * (dp + 1) / dps - from;
    return (ParamExtent){.from = from,
                         .count = count,
                         .first = first,
                         .cols = own > 0 ? own : 1,
                         .whole_cols = cols};
}

static void parts_open(Parts *p, const TestRanks *r, Comm *world)
{
    *p = (Parts){0};
    for (int i = 0; i < N_ALL; i++) {
        const TestTensor *t = &test_tensors[i];
        ParamExtent extent = part_of(t, r, world->rank);
        p->piece[i] =
            (Piece){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .extent = extent};
        memcpy(p->piece[i].dim, t->dim, sizeof t->dim);
        p->piece[i].data = tensor_1d(must_calloc((size_t)extent.count + 1, dtype_size(t->dtype)),
                                     t->dtype, extent.count);
    }
    p->device = (Device){.backend = &test_offset_backend};
    checkpoint_io_open(&p->io, r->on_device ? &p->device : NULL, world);
    if (r->fs) {
        p->io.fs = &r->fs[world->rank].ops;
        r->fs[world->rank].home = pthread_self();
    }
}

/* Moves the parts to the device of checkpoint_run.h, or back to the host. */
static void parts_place(Parts *p, const TestRanks *r, Place place)
{
    ptrdiff_t by = place == PLACE_DEVICE ? DEVICE_OFFSET : -DEVICE_OFFSET;
    for (int i = 0; r->on_device && i < N_ALL; i++) {
        p->piece[i].data.place = place;
        p->piece[i].data.data = (char *)p->piece[i].data.data + by;
    }
}

static void parts_close(Parts *p)
{
    for (int i = 0; i < N_ALL; i++)
        free(p->piece[i].data.data);
    checkpoint_io_close(&p->io);
}

/* With `fill`, sets the parts to the step's values. Otherwise compares them with these values and
 * returns the name of the first tensor that differs, or NULL. */
static const char *parts_each(Parts *p, int64_t step, bool fill)
{
    TestRun whole;
    const char *wrong = NULL;
    test_run_open(&whole);
    test_run_fill(&whole, step);
    for (int i = 0; i < N_ALL; i++) {
        const Piece *piece = &p->piece[i];
        size_t size = dtype_size(piece->dtype);
        for (int64_t e = 0; e < piece->extent.count; e++) {
            char *own = (char *)piece->data.data + (size_t)e * size;
            const char *value = (char *)whole.tensor[i].data.data +
                                (size_t)param_extent_element(&piece->extent, e) * size;
            if (fill)
                memcpy(own, value, size);
            else if (memcmp(own, value, size) != 0 && wrong == NULL)
                wrong = piece->name;
        }
    }
    if (!fill && memcmp(&p->state, &whole.state, sizeof p->state) != 0) wrong = "the state";
    p->state = whole.state;
    test_run_close(&whole);
    return wrong;
}

/* Saves the parts asynchronously. Returns false if that could not begin. */
static bool save_beside(TestRanks *r, int rank, Parts *p, const CheckpointContents *contents)
{
    enum { ALL = 100 };
    AsyncResult result = {0};
    AsyncRules rules = {.keep = r->keep == 0 && r->making_room ? ALL : r->keep, .drop = r->drop};
    AsyncSave *a = async_save_open(&p->io, contents);
    AsyncRequest request = {.run = r->run, .contents = contents, .hook = r->hook};
    r->begun[rank] = async_save_begin(a, &request);
    if (r->begun[rank]) {
        parts_place(p, r, PLACE_HOST);
        for (int i = 0; i < N_ALL; i++)
            memset(p->piece[i].data.data, 0xee, tensor_bytes(p->piece[i].data));
        parts_place(p, r, PLACE_DEVICE);
        memset(&p->state, 0xee, sizeof p->state);
        r->good[rank] = async_save_await(a, &rules, &result) == ASYNC_SAVED;
        snprintf(r->err[rank], sizeof r->err[rank], "%.1000s", result.err);
    }
    async_save_close(a);
    return r->begun[rank];
}

bool ranks_save_here(TestRanks *r, Comm *world)
{
    Parts p;
    TestRun texts = {0};
    int rank = world->rank;
    parts_open(&p, r, world);
    parts_each(&p, r->step, true);
    CheckpointContents contents = test_run_contents(&texts);
    contents.weights = p.piece;
    contents.slots = p.piece + N_WEIGHTS;
    contents.state = &p.state;
    contents.grid = (GridPlace){1, r->ranks / r->tp, 1, r->tp};
    contents.zero_stage = 1;
    contents.writers = r->writers;
    parts_place(&p, r, PLACE_DEVICE);
    size_t n = sizeof r->err[rank];
    bool beside = r->async && save_beside(r, rank, &p, &contents);
    if (!beside)
        r->good[rank] = (r->making_room ? checkpoint_write_making_room : checkpoint_write)(
            &p.io, r->run, &contents, r->err[rank], n);
    if (!beside && r->good[rank] && r->keep > 0)
        r->good[rank] = checkpoint_prune(&p.io, r->run, r->step, r->keep, r->err[rank], n);
    parts_place(&p, r, PLACE_HOST);
    parts_close(&p);
    return r->good[rank];
}

static void save_body(Comm *world, void *context)
{
    ranks_save_here(context, world);
}

void ranks_save(TestRanks *r)
{
    thread_ranks(r->ranks, 60, save_body, r);
}

static void newest_body(Comm *world, void *context)
{
    TestRanks *r = context;
    Parts p;
    int rank = world->rank;
    size_t n = sizeof r->err[rank];
    Checkpoint *c = NULL;
    parts_open(&p, r, world);
    r->found[rank] = -1;
    r->good[rank] = checkpoint_open_newest(&p.io, r->run, &c, r->err[rank], n);
    if (c != NULL) {
        r->found[rank] = checkpoint_manifest(c)->state.steps;
        parts_place(&p, r, PLACE_DEVICE);
        r->good[rank] =
            checkpoint_read(&p.io, c, CHECKPOINT_WEIGHTS, p.piece, N_WEIGHTS, r->err[rank], n) &&
            checkpoint_read(&p.io, c, CHECKPOINT_SLOTS, p.piece + N_WEIGHTS, N_SLOTS, r->err[rank],
                            n);
        parts_place(&p, r, PLACE_HOST);
        p.state = checkpoint_manifest(c)->state;
        const char *wrong = r->good[rank] ? parts_each(&p, r->found[rank], false) : NULL;
        if (wrong)
            rank_wrong(world, "%s differs from what step %lld had", wrong,
                       (long long)r->found[rank]);
    }
    checkpoint_close(c);
    parts_close(&p);
}

void ranks_newest(TestRanks *r)
{
    thread_ranks(r->ranks, 60, newest_body, r);
    for (int rank = 1; rank < r->ranks; rank++)
        assert_int_equal(r->found[rank], r->found[0]);
}

bool ranks_agree(const TestRanks *r)
{
    for (int rank = 1; rank < r->ranks; rank++) {
        assert_int_equal(r->good[rank], r->good[0]);
        if (!r->good[0]) assert_string_equal(r->err[rank], r->err[0]);
    }
    return r->good[0];
}

void ranks_disks(FaultyFs *fs, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        faulty_fs_init(&fs[rank], FAULT_NONE, 0, 0);
}

void ranks_must_save(TestRanks *r)
{
    ranks_save(r);
    if (!ranks_agree(r)) fail_msg("%s", r->err[0]);
}

int64_t ranks_resume_step(const TestRun *r)
{
    TestRanks reading = {.ranks = 2, .tp = 2, .run = r->run};
    ranks_newest(&reading);
    return reading.found[0];
}
