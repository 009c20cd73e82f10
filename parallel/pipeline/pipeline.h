/* pipeline.h -- carries out a schedule on a stage. */
#ifndef PARALLEL_PIPELINE_PIPELINE_H
#define PARALLEL_PIPELINE_PIPELINE_H

#include "model/param/stage.h"

/* Runs the actions in order. They are only put on the device's streams: the host waits for none. */
void pipeline_run(const Stage *stage, const Action *actions, int64_t n);

#endif
