/* relay.h -- the pipeline's stages as the Relay that decoding asks for. */
#ifndef PARALLEL_PIPELINE_RELAY_H
#define PARALLEL_PIPELINE_RELAY_H

#include "model/param/stage.h"
#include "parallel/comm/comm.h"

/* Begins as {0}, and must stay where it is while its Relay is in use. */
typedef struct {
    Device *dev;
    Comm *pp;
    int chunks;
    Event made, moved; /* by the compute stream; by the p2p stream */
} StageRelay;

/* dev and pp, whose rank is the stage, must outlive it; chunks: runs of layers of a stage. */
void relay_open(StageRelay *relay, Device *dev, Comm *pp, int chunks);
/* receive does nothing for the first run of layers of the model, send nothing for the last, and
 * between two runs of one stage nothing moves. All stages run their chunks in order: chunk 0 of
 * all, then chunk 1, and call share after their last. */
Relay relay_of(StageRelay *relay);
void relay_close(StageRelay *relay);

#endif
