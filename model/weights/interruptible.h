/* interruptible.h -- a WeightSource whose reads fail after Ctrl-C, so that the code that writes its
 * weights can remove incomplete files before the process ends. */
#ifndef MODEL_WEIGHTS_INTERRUPTIBLE_H
#define MODEL_WEIGHTS_INTERRUPTIBLE_H

#include "model/weights/source.h"

/* Presents the tensors of `inner`, and closes `inner` when it is closed. Until then, this thread
 * blocks SIGINT, SIGTERM and SIGHUP, except for those that are ignored, as with nohup; after one of
 * them arrives, all reads fail. Closing unblocks the signals, so a signal that has arrived then
 * ends the process. Close it only after removing incomplete files. */
WeightSource *interruptible_source(WeightSource *inner);

#endif
