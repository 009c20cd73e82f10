/* io.h -- copies data between a rank's pieces and the staging buffer, and lets the ranks agree on
 * results. Private to parallel/checkpoint; other folders include checkpoint.h.
 *
 * A piece is this rank's part of a tensor, and a stretch is a range of consecutive elements of it
 * (pieces.h). A tensor is processed in windows: ranges of its elements that fit into the staging
 * buffer. With several ranks a window fits into half of it, because the other half receives data
 * from other ranks. */
#ifndef PARALLEL_CHECKPOINT_IO_H
#define PARALLEL_CHECKPOINT_IO_H

#include "parallel/checkpoint/checkpoint.h"

/* ---- ranks ----------------------------------------------------------------------------------- */

int checkpoint_io_rank(const CheckpointIo *io);
int checkpoint_io_ranks(const CheckpointIo *io);
/* Returns whether this is rank 0, which finds, decides, commits, removes and warns for all
 * ranks. */
static inline bool checkpoint_io_leads(const CheckpointIo *io)
{
    return checkpoint_io_rank(io) == 0;
}
/* Like control_agree and control_share (parallel/grid/control.h), but they also work without a
 * world: for a single rank they change nothing. */
bool checkpoint_io_agree(CheckpointIo *io, bool good, char *err, size_t n);
void checkpoint_io_share(CheckpointIo *io, void *data, size_t bytes);

/* ---- windows --------------------------------------------------------------------------------- */

/* Returns the maximum size of a window in bytes. */
size_t checkpoint_io_window(const CheckpointIo *io);
/* Returns the half of the staging buffer into which a writer receives data that consist of several
 * stretches. It has room for a window. */
void *checkpoint_io_inbox(const CheckpointIo *io);

/* Returns how many elements of [from, end) are in the extent, and sets *first to their first
 * stretch. *one says whether they are a single stretch. */
int64_t extent_count(const ParamExtent *extent, int64_t from, int64_t end, Stretch *first,
                     bool *one);
/* Returns a pointer through which the host can read stretch `s` of the piece. That is the piece's
 * own memory if the host can read it; otherwise the stretch is copied to `there`, which must have
 * room for it, and `there` is returned. */
const void *checkpoint_io_fetch(CheckpointIo *io, const Piece *piece, Stretch s, void *there);
/* Copies the elements of [from, end) that this rank has to `to`. If `packed`, the stretches are
 * stored one after the other; otherwise each goes to its place in the window, whose first element
 * is to[0]. */
void checkpoint_io_take(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end, void *to,
                        bool packed);
/* The reverse of checkpoint_io_take without `packed`: copies the elements of [from, end) that this
 * rank has from the window into the piece. */
void checkpoint_io_put(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end,
                       const void *window);
/* Copies another rank's stretches in [from, end), packed as above, to their places in the window.
 * `size` is the size of an element in bytes. */
void checkpoint_io_spread(const ParamExtent *extent, int64_t from, int64_t end, size_t size,
                          const void *packed, void *window);

#endif
