/* interruptible.h -- a WeightSource whose reads fail after Ctrl-C, so that whoever writes its
 * weights removes what is half written before the process ends. */
#ifndef MODEL_WEIGHTS_INTERRUPTIBLE_H
#define MODEL_WEIGHTS_INTERRUPTIBLE_H

#include "model/weights/source.h"

/* Presents the tensors of `inner`, which it closes when it is closed. Until then this thread holds
 * back SIGINT, SIGTERM and SIGHUP, except for those that are ignored, as with nohup: after one of
 * them all reads fail. Closing it takes the signals again, so one that has come ends the process
 * then. Close it after removing what is incomplete. */
WeightSource *interruptible_source(WeightSource *inner);

#endif
