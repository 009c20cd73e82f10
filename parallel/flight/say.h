/* say.h -- inside parallel/flight: prints what a dump shows after it has been written. */
#ifndef PARALLEL_FLIGHT_SAY_H
#define PARALLEL_FLIGHT_SAY_H

#include "model/core/dumps.h"

/* Prints what `dump`, the run's newest dump, shows, on stderr and to this thread's log: which ranks
 * are late, which ranks wait for them, and the command that shows more. */
void flight_say(const char *run, Dump dump);

#endif
