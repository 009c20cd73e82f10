/* holdings.h -- which rank has which elements of what is saved. Every rank knows this of all ranks,
 * so that a writer and the ranks that send to it need no further messages to agree. Private to
 * parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_HOLDINGS_H
#define PARALLEL_CHECKPOINT_HOLDINGS_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct {
    int rank;
    ParamExtent extent;
} Holding;

typedef struct {
    int *first;  /* holdings of piece i: of[first[i]] ... of[first[i + 1] - 1], by rank */
    Holding *of; /* those of one piece cover it, once */
} Holdings;

/* All ranks call it, each with its own pieces. Holdings_free is due. */
void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents);
void holdings_free(Holdings *holdings);

#endif
