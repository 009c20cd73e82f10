/* flights.h -- sets up that the flight recorders of a run's ranks are written to RUN/flight/
 * (dump.h). */
#ifndef PARALLEL_RUN_FLIGHTS_H
#define PARALLEL_RUN_FLIGHTS_H

#include "parallel/run/run.h"

/* After run_open_flights, a hang, a lost rank or SIGUSR2 makes the ranks write their files;
 * run_close_flights ends that, and must be called before the trainer is closed. All ranks call
 * run_open_flights together. Neither does anything if the trainer has no flight recorder. */
void run_open_flights(const Run *run);
void run_close_flights(const Run *run);

#endif
