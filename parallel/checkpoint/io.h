/* io.h -- copies data between a rank's pieces and the staging buffer, and makes the ranks agree on
 * results. Private to parallel/checkpoint; other folders include checkpoint.h.
 *
 * A piece is this rank's part of a tensor, and a stretch is a range of consecutive elements of it
 * (pieces.h). A tensor is processed in windows: ranges of its elements that fit into the staging
 * buffer. A save uses windows that fit into half of it, so that one half can hold the current
 * window. The other half first receives data that other ranks send for this window. Then, while
 * this window is written or sent, the device copies the data of the next window there. */
#ifndef PARALLEL_CHECKPOINT_IO_H
#define PARALLEL_CHECKPOINT_IO_H

#include "parallel/checkpoint/checkpoint.h"

/* ---- ranks ----------------------------------------------------------------------------------- */

int checkpoint_io_rank(const CheckpointIo *io);
int checkpoint_io_ranks(const CheckpointIo *io);
/* Returns whether this is rank 0, which finds, selects, commits and removes checkpoints and prints
 * warnings for all ranks. */
static inline bool checkpoint_io_leads(const CheckpointIo *io)
{
    return checkpoint_io_rank(io) == 0;
}
/* Like control_agree and control_share (parallel/grid/control.h), but they also work without a
 * world: for a single rank they change nothing. */
bool checkpoint_io_agree(CheckpointIo *io, bool good, char *err, size_t n);
void checkpoint_io_share(CheckpointIo *io, void *data, size_t bytes);

/* Returns whether this rank is on another machine than rank 0. If so, files that rank 0 has created
 * may become visible to this rank only some seconds later. */
bool checkpoint_io_far(const CheckpointIo *io);

/* ---- windows --------------------------------------------------------------------------------- */

/* The largest window of a save in bytes. */
#define CHECKPOINT_WINDOW (CHECKPOINT_STAGING_BYTES / 2)
/* Returns half 0 or 1 of the staging buffer, which has room for such a window. */
void *checkpoint_io_half(const CheckpointIo *io, int half);

/* Returns how many elements of [from, end) are in the extent, and sets *first to their first
 * stretch. Sets *one to whether they are a single stretch. */
int64_t extent_count(const ParamExtent *extent, int64_t from, int64_t end, Stretch *first,
                     bool *one);
/* Returns a pointer through which the host can read stretch `s` of the piece after
 * checkpoint_io_await. That is the piece's own memory if the host can read it; otherwise the device
 * begins to copy the stretch to `there`, which must have room for it, and `there` is returned. */
const void *checkpoint_io_fetch(CheckpointIo *io, const Piece *piece, Stretch s, void *there);
/* Begins to copy the elements of [from, end) that this rank has to `to`; checkpoint_io_await waits
 * for the copies. If `packed`, the stretches are stored one after the other; otherwise each goes to
 * its place in the window, whose first element is to[0]. */
void checkpoint_io_take(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end, void *to,
                        bool packed);
/* Waits until the copies begun by checkpoint_io_fetch or checkpoint_io_take have ended. It must be
 * called before either of these is called again. */
void checkpoint_io_await(CheckpointIo *io);
/* The reverse of checkpoint_io_take without `packed`: copies the elements of [from, end) that this
 * rank has from the window into the piece. The copies have ended when it returns. */
void checkpoint_io_put(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end,
                       const void *window);
/* Copies another rank's stretches in [from, end) to their places in the window. `packed` holds them
 * one after the other, as checkpoint_io_take stores them. `size` is the size of an element in
 * bytes. */
void checkpoint_io_spread(const ParamExtent *extent, int64_t from, int64_t end, size_t size,
                          const void *packed, void *window);

#endif
