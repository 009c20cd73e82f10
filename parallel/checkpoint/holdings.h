/* holdings.h -- collects which rank has which elements of the tensors that are saved. A holding is
 * one rank's extent of a piece (pieces.h). Every rank gets the complete list, so a writer and the
 * ranks that send to it need no further messages to agree on what is sent. Private to
 * parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_HOLDINGS_H
#define PARALLEL_CHECKPOINT_HOLDINGS_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct {
    int rank;
    ParamExtent extent;
} Holding;

typedef struct {
    int *first;  /* holdings of piece i, by rank: of[first[i]] ... of[first[i + 1] - 1] */
    Holding *of; /* holdings of one piece cover each of its elements exactly once */
} Holdings;

/* Exchanges the extents of all ranks' pieces and fills *out. All ranks must call it, each with its
 * own pieces. The caller must call holdings_free. */
void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents);
void holdings_free(Holdings *holdings);

#endif
