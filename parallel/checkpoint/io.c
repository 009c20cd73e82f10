/* io.c -- the staging buffer, and copies between it and a device. See io.h. */
#include "parallel/checkpoint/io.h"

#include "model/core/check.h"

#include <stdlib.h>

void checkpoint_io_open(CheckpointIo *io, Device *device)
{
    *io = (CheckpointIo){.device = device, .fs = &fs_system};
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

/* The piece of a device tensor as a vector, and the staging buffer as its counterpart. */
static Tensor piece_of(Tensor t, int64_t at, size_t bytes)
{
    size_t size = dtype_size(t.dtype);
    Tensor piece = tensor_1d((char *)t.data + at, t.dtype, (int64_t)(bytes / size));
    CHECK(bytes % size == 0, "a piece of %zu bytes cuts an element of %zu", bytes, size);
    piece.place = t.place;
    return piece;
}

static Tensor staged(CheckpointIo *io, Tensor piece)
{
    CHECK(io->device != NULL, "a tensor on a device, and no device to reach it");
    piece.data = io->staging;
    piece.place = PLACE_HOST;
    return piece;
}

/* Copies between a piece and the staging buffer and waits for that copy alone, by an event behind
 * it: waiting for the whole device would also wait for the steps that it has been given since. */
static void copy_piece(CheckpointIo *io, Tensor dst, Tensor src)
{
    device_copy(io->device, dst, src);
    device_event_record(io->device, &io->copied);
    device_event_synchronize(io->device, &io->copied);
}

const void *checkpoint_io_fetch(CheckpointIo *io, Tensor t, int64_t at, size_t bytes)
{
    if (t.place == PLACE_HOST) return (const char *)t.data + at;
    Tensor piece = piece_of(t, at, bytes), copy = staged(io, piece);
    copy_piece(io, copy, piece);
    return io->staging;
}

void *checkpoint_io_target(CheckpointIo *io, Tensor t, int64_t at)
{
    return t.place == PLACE_HOST ? (char *)t.data + at : io->staging;
}

void checkpoint_io_store(CheckpointIo *io, Tensor t, int64_t at, size_t bytes)
{
    if (t.place == PLACE_HOST) return;
    Tensor piece = piece_of(t, at, bytes), copy = staged(io, piece);
    copy_piece(io, piece, copy);
}
