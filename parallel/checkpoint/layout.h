/* layout.h -- which file of a checkpoint holds which tensor, and which rank writes it: all ranks
 * come to the same result. Private to parallel/checkpoint.
 *
 * Each part's tensors, in the order in which they are given, are cut into as many files as there
 * are writers, of bytes as equal as whole tensors let them be; a part with fewer tensors has fewer
 * files. */
#ifndef PARALLEL_CHECKPOINT_LAYOUT_H
#define PARALLEL_CHECKPOINT_LAYOUT_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct {
    int writer;   /* the rank */
    int first, n; /* its tensors in manifest.tensor */
    char *header; /* its bytes before the data; how many, says the manifest */
} LayoutFile;

typedef struct {
    Manifest manifest; /* all but the chunks' checksums */
    LayoutFile *file;  /* one for each of the manifest's */
    int *piece;        /* of each of the manifest's tensors: its number below */
    int n_pieces;
} Layout;

/* Pieces are numbered through: first the weights, then the slots. */
const Piece *contents_piece(const CheckpointContents *contents, int piece);
/* How a save by `ranks` ranks is laid out. Layout_free is due. */
void layout_build(Layout *layout, const CheckpointContents *contents, int ranks,
                  const char *save_id);
void layout_free(Layout *layout);

/* The header's row for a piece, without its offset. */
SafetensorsEntry layout_entry(const Piece *piece);
/* Which rank is the k-th of the writers: spread evenly, the first is rank 0. */
int layout_writer(int k, int writers, int ranks);
/* Cuts tensors of these bytes into `files` files: file k gets [first[k], first[k + 1]). None is
 * empty unless there are no tensors; then files is 1. */
void layout_cut(const int64_t *bytes, int n, int files, int *first);

#endif
