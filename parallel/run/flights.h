/* flights.h -- lets the flight recorders of a run's ranks be written to RUN/flight/ (dump.h). */
#ifndef PARALLEL_RUN_FLIGHTS_H
#define PARALLEL_RUN_FLIGHTS_H

#include "parallel/run/run.h"

/* From the first call on, a hang, a lost rank and SIGUSR2 leave files; until the second one, which
 * comes before the trainer is closed. All ranks call the first one together. Neither does anything
 * if the trainer has no flight recorder. */
void run_open_flights(const Run *run);
void run_close_flights(const Run *run);

#endif
