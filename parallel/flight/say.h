/* say.h -- inside parallel/flight: prints what a dump shows after it has been written. */
#ifndef PARALLEL_FLIGHT_SAY_H
#define PARALLEL_FLIGHT_SAY_H

#include "model/core/dumps.h"

/* Prints on stderr, and to this thread's log, what the run's newest dump, `dump`, shows: who is
 * late, who waits for them, and the command that shows more. */
void flight_say(const char *run, Dump dump);

#endif
