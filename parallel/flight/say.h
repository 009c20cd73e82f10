/* say.h -- inside parallel/flight: prints what a dump shows, when it has been written. */
#ifndef PARALLEL_FLIGHT_SAY_H
#define PARALLEL_FLIGHT_SAY_H

#include "model/core/dumps.h"

/* Prints on stderr, and to this thread's log, who is late in the run's newest dump, which is
 * `dump`, and who waits for it, and the command that shows more. */
void flight_say(const char *run, Dump dump);

#endif
