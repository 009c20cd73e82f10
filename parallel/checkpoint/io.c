/* io.c -- allocates the staging buffer and copies data between it and a rank's pieces, which are
 * its parts of tensors. io.h explains pieces, stretches and windows. */
#include "parallel/checkpoint/io.h"

#include "model/core/check.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"

#include <stdlib.h>
#include <string.h>

void checkpoint_io_open(CheckpointIo *io, Device *device, Comm *world)
{
    *io = (CheckpointIo){.device = device, .world = world, .fs = &fs_system};
    io->staging = device ? device_host_alloc(device, CHECKPOINT_STAGING_BYTES, "checkpoints")
                         : must_alloc(CHECKPOINT_STAGING_BYTES);
}

void checkpoint_io_close(CheckpointIo *io)
{
    if (io->device) {
        device_event_destroy(io->device, &io->copied);
        device_host_release(io->device, io->staging, CHECKPOINT_STAGING_BYTES);
    } else {
        free(io->staging);
    }
    *io = (CheckpointIo){0};
}

/* ---- ranks ----------------------------------------------------------------------------------- */

int checkpoint_io_rank(const CheckpointIo *io)
{
    return io->world ? io->world->rank : 0;
}

int checkpoint_io_ranks(const CheckpointIo *io)
{
    return io->world ? io->world->size : 1;
}

bool checkpoint_io_agree(CheckpointIo *io, bool good, char *err, size_t n)
{
    return checkpoint_io_ranks(io) == 1 ? good : control_agree(io->world, good, err, n);
}

void checkpoint_io_share(CheckpointIo *io, void *data, size_t bytes)
{
    if (checkpoint_io_ranks(io) > 1) control_share(io->world, data, bytes);
}

bool checkpoint_io_far(const CheckpointIo *io)
{
    return machines_of(io->world).own != 0;
}

/* ---- windows --------------------------------------------------------------------------------- */

void *checkpoint_io_half(const CheckpointIo *io, int half)
{
    return (char *)io->staging + (size_t)half * CHECKPOINT_WINDOW;
}

int64_t extent_count(const ParamExtent *extent, int64_t from, int64_t end, Stretch *first,
                     bool *one)
{
    Stretch s;
    int64_t count = 0;
    /* *one stays true only if there is no second stretch. A part with cut columns has a stretch in
     * each row; any other part has a single stretch, which needs no packing. */
    *one = false;
    for (; extent_stretch(extent, from, end, &s); from = s.at + s.count) {
        *one = count == 0;
        if (*one) *first = s;
        count += s.count;
    }
    return count;
}

/* Returns the stretch in the piece's own memory. */
static Tensor data_of(const Piece *piece, Stretch s)
{
    return tensor_slice_rows(piece->data, s.within, s.count);
}

/* Returns a tensor of `count` elements at `at` in host memory, with the piece's dtype. */
static Tensor staged(const Piece *piece, const void *at, int64_t count)
{
    return tensor_1d((void *)(uintptr_t)at, piece->dtype, count);
}

/* Enqueues a copy between the piece's memory and the host on the device's stream. */
static void copy(CheckpointIo *io, Tensor dst, Tensor src)
{
    CHECK(io->device != NULL, "a tensor on a device, and no device to reach it");
    device_copy(io->device, dst, src);
}

/* Records an event after the copies so far, for checkpoint_io_await. Waiting for the whole device
 * instead would also wait for steps that are enqueued after the copies. */
static void end_copies(CheckpointIo *io)
{
    CHECK(!io->copying, "copies to a staging buffer that is in use");
    device_event_record(io->device, &io->copied);
    io->copying = true;
}

void checkpoint_io_await(CheckpointIo *io)
{
    if (io->copying) device_event_synchronize(io->device, &io->copied);
    io->copying = false;
}

const void *checkpoint_io_fetch(CheckpointIo *io, const Piece *piece, Stretch s, void *there)
{
    Tensor data = data_of(piece, s);
    /* Data in host memory are not copied: on CPUs a save writes the weights directly to the
     * file. */
    if (data.place == PLACE_HOST) return data.data;
    copy(io, staged(piece, there, s.count), data);
    end_copies(io);
    return there;
}

void checkpoint_io_take(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end, void *to,
                        bool packed)
{
    size_t size = dtype_size(piece->dtype), used = 0;
    bool host = piece->data.place == PLACE_HOST;
    Stretch s;
    for (int64_t at = from; extent_stretch(&piece->extent, at, end, &s); at = s.at + s.count) {
        char *there = (char *)to + (packed ? used : (size_t)(s.at - from) * size);
        size_t bytes = (size_t)s.count * size;
        if (host)
            memcpy(there, data_of(piece, s).data, bytes);
        else
            copy(io, staged(piece, there, s.count), data_of(piece, s));
        used += bytes;
    }
    /* One event for all stretches: a wait per stretch would take a round trip to the device for
     * every row. */
    if (!host && used > 0) end_copies(io);
}

void checkpoint_io_put(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end,
                       const void *window)
{
    size_t size = dtype_size(piece->dtype);
    bool host = piece->data.place == PLACE_HOST, any = false;
    Stretch s;
    for (int64_t at = from; extent_stretch(&piece->extent, at, end, &s); at = s.at + s.count) {
        const char *there = (const char *)window + (size_t)(s.at - from) * size;
        if (host)
            memmove(data_of(piece, s).data, there, (size_t)s.count * size);
        else
            copy(io, data_of(piece, s), staged(piece, there, s.count));
        any = true;
    }
    /* The caller overwrites the window at once, so the copies from it must have finished. */
    if (host || !any) return;
    end_copies(io);
    checkpoint_io_await(io);
}

void checkpoint_io_spread(const ParamExtent *extent, int64_t from, int64_t end, size_t size,
                          const void *packed, void *window)
{
    const char *next = packed;
    Stretch s;
    for (int64_t at = from; extent_stretch(extent, at, end, &s); at = s.at + s.count) {
        size_t bytes = (size_t)s.count * size;
        memcpy((char *)window + (size_t)(s.at - from) * size, next, bytes);
        next += bytes;
    }
}
