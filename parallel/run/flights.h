/* flights.h -- lets the ranks of a run write their flight records (what each rank has done last;
 * model/core/flight.h) to RUN/flight/ (dump.h). */
#ifndef PARALLEL_RUN_FLIGHTS_H
#define PARALLEL_RUN_FLIGHTS_H

#include "parallel/run/run.h"

/* From this call on, every rank writes its flight record to a file if the run hangs, if a rank is
 * lost, or on SIGUSR2. Does nothing if the trainer has no flight recorder. All ranks call it
 * together. */
void run_open_flights(const Run *run);
/* Undoes run_open_flights. Must be called before the trainer is closed. */
void run_close_flights(const Run *run);

#endif
