/* say.h -- inside parallel/flight: prints what a dump shows, when it has been written. */
#ifndef PARALLEL_FLIGHT_SAY_H
#define PARALLEL_FLIGHT_SAY_H

#include "model/core/dumps.h"
#include "parallel/flight/dump.h"

/* Prints on stderr, and to this thread's log, who is late in the run's newest dump and who waits
 * for it, and the command that shows more. `own`: a rank of this process, which speaks. */
void flight_say(const char *run, const FlightSource *own, Dump dump);

#endif
