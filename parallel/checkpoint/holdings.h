/* holdings.h -- collects which rank has which elements of the tensors that are saved. A holding is
 * one rank's extent of a piece (pieces.h). The writer of a file gets the complete list for its
 * tensors, so the writer and the ranks that send to it need no further messages to agree on what is
 * sent. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_HOLDINGS_H
#define PARALLEL_CHECKPOINT_HOLDINGS_H

#include "parallel/checkpoint/layout.h"

typedef struct {
    int rank;
    ParamExtent extent;
} Holding;

/* The holdings of all tensors of one file. */
typedef struct {
    int *first;  /* tensor i has of[first[i]] to of[first[i + 1] - 1], in rank order */
    Holding *of; /* holdings of one tensor cover each of its elements exactly once */
} FileHoldings;

typedef struct {
    int files;
    FileHoldings *file; /* [files]; both pointers are NULL for files that other ranks write */
} Holdings;

/* Sends this rank's extents to the writers, receives those for its own files, and fills *out. All
 * ranks must call it, each with its own pieces and the same layout. The caller must call
 * holdings_free. */
void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents,
                     const Layout *layout);
void holdings_free(Holdings *holdings);

#endif
