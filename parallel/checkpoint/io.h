/* io.h -- copies between a rank's pieces and the staging buffer, and agreement between ranks.
 * Private to parallel/checkpoint; checkpoint.h is the header for everybody else.
 *
 * A tensor goes through in windows: ranges of its elements whose bytes fit into the staging buffer,
 * or with several ranks into half of it, for the other half takes what a rank sends. */
#ifndef PARALLEL_CHECKPOINT_IO_H
#define PARALLEL_CHECKPOINT_IO_H

#include "parallel/checkpoint/checkpoint.h"

/* ---- ranks ----------------------------------------------------------------------------------- */

int checkpoint_io_rank(const CheckpointIo *io);
int checkpoint_io_ranks(const CheckpointIo *io);
/* Rank 0, which finds, decides, commits, removes and warns for all. */
static inline bool checkpoint_io_leads(const CheckpointIo *io)
{
    return checkpoint_io_rank(io) == 0;
}
/* control_agree and control_share (parallel/grid/control.h); of a single rank they change nothing.
 */
bool checkpoint_io_agree(CheckpointIo *io, bool good, char *err, size_t n);
void checkpoint_io_share(CheckpointIo *io, void *data, size_t bytes);

/* ---- windows --------------------------------------------------------------------------------- */

/* The most bytes of a window. */
size_t checkpoint_io_window(const CheckpointIo *io);
/* Where a writer receives what does not come in one stretch, as large as a window. */
void *checkpoint_io_inbox(const CheckpointIo *io);

/* Elements of [from, end) that are in the extent; *one: they are one stretch, which is in *first.
 */
int64_t extent_count(const ParamExtent *extent, int64_t from, int64_t end, Stretch *first,
                     bool *one);
/* Where the host can read `s`, a stretch of the piece: in the piece itself, or `there`, which
 * must have room for it and to which it has been copied. */
const void *checkpoint_io_fetch(CheckpointIo *io, const Piece *piece, Stretch s, void *there);
/* Copies what this rank has of elements [from, end) to `to`: packed, one stretch after the other;
 * else each where it lies in the window, whose first element is to[0]. */
void checkpoint_io_take(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end, void *to,
                        bool packed);
/* The way back: what this rank has of elements [from, end), from the window into the piece. */
void checkpoint_io_put(CheckpointIo *io, const Piece *piece, int64_t from, int64_t end,
                       const void *window);
/* Brings another rank's stretches in [from, end), packed as above, to their places in the window.
 */
void checkpoint_io_spread(const ParamExtent *extent, int64_t from, int64_t end, size_t size,
                          const void *packed, void *window);

#endif
