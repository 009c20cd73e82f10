/* interruptible.h -- a WeightSource whose reads fail after Ctrl-C, so that the code that writes its
 * weights can remove incomplete files before the process ends. */
#ifndef MODEL_WEIGHTS_INTERRUPTIBLE_H
#define MODEL_WEIGHTS_INTERRUPTIBLE_H

#include "model/weights/source.h"

/* Returns a source with the tensors of `inner`; closing it closes `inner`, too. Until it is closed,
 * this thread blocks SIGINT, SIGTERM and SIGHUP, except those that are ignored (as with nohup).
 * Once one of them has arrived, all reads fail. Closing unblocks the signals, and one that has
 * arrived then ends the process. So remove incomplete files before closing. */
WeightSource *interruptible_source(WeightSource *inner);

#endif
