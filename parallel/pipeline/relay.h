/* relay.h -- implements the Relay interface of decoding for the stages of a pipeline. */
#ifndef PARALLEL_PIPELINE_RELAY_H
#define PARALLEL_PIPELINE_RELAY_H

#include "model/param/stage.h"
#include "parallel/comm/comm.h"

/* Must be initialised as {0}, and must not be moved while its Relay is in use. */
typedef struct {
    Device *dev;
    Comm *pp;
    int chunks;
    Event made, moved; /* made: recorded on the compute stream; moved: on the p2p stream */
} StageRelay;

/* Opens a relay. dev and pp, whose rank is the stage, must outlive it; chunks: layer ranges per
 * stage. */
void relay_open(StageRelay *relay, Device *dev, Comm *pp, int chunks);
/* Returns the Relay. `receive` does nothing for the model's first layer range, and `send` does
 * nothing for the last one. Nothing is sent between two ranges of the same stage. All stages run
 * their chunks in order: chunk 0 on all stages, then chunk 1, and so on. Each stage calls `share`
 * after its last chunk. */
Relay relay_of(StageRelay *relay);
void relay_close(StageRelay *relay);

#endif
