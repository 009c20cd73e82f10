/* layout.h -- decides which file of a checkpoint holds which tensor, and which rank writes that
 * file. Each rank computes this on its own, with the same result. Private to parallel/checkpoint.
 *
 * The weights, and likewise the slots (optimizer states), are distributed over as many files as
 * there are writers, in the order in which the caller lists them. Tensors are not cut, so files
 * have sizes as equal as whole tensors allow. If there are fewer tensors than writers, there are
 * fewer files. */
#ifndef PARALLEL_CHECKPOINT_LAYOUT_H
#define PARALLEL_CHECKPOINT_LAYOUT_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct {
    int writer;   /* rank that writes the file */
    int first, n; /* its tensors: manifest.tensor[first] to [first + n - 1] */
    char *header; /* header of the file; its size is the manifest's header_bytes */
} LayoutFile;

typedef struct {
    Manifest manifest; /* complete except for the checksums of the chunks */
    LayoutFile *file;  /* one for each file of the manifest */
    int *piece;        /* for each tensor of the manifest: number of its piece */
    int n_pieces;
} Layout;

/* Returns the piece with number `piece`. The weights are numbered first, then the slots. */
const Piece *contents_piece(const CheckpointContents *contents, int piece);
/* Computes the layout of a save by `ranks` ranks. The caller must call layout_free. */
void layout_build(Layout *layout, const CheckpointContents *contents, int ranks,
                  const char *save_id);
void layout_free(Layout *layout);

/* Returns the safetensors header entry of a piece; its offset is not set. */
SafetensorsEntry layout_entry(const Piece *piece);
/* Returns the rank of writer number k. Writers are spread evenly over the ranks; the first writer
 * is rank 0. */
int layout_writer(int k, int writers, int ranks);
/* Returns whether the rank is one of the writers; rank 0 always is. */
bool layout_writes(const CheckpointContents *contents, int ranks, int rank);
/* Distributes n tensors, whose sizes are in `bytes`, over `files` files: file k gets tensors
 * [first[k], first[k + 1]). No file is empty, unless there are no tensors; then `files` must be
 * 1. */
void layout_cut(const int64_t *bytes, int n, int files, int *first);

#endif
