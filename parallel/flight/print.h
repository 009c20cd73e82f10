/* print.h -- prints what a dump shows, for people and as JSON. */
#ifndef PARALLEL_FLIGHT_PRINT_H
#define PARALLEL_FLIGHT_PRINT_H

#include "parallel/flight/words.h"

#include <stdio.h>

/* Prints when and why the dump was written, the cause of the hang, where it begins, what to do, and
 * the first waits, in lines that fit a terminal. */
void flight_print(FILE *to, const FlightReading *reading);
/* Prints the whole analysis as one JSON object, which contains an object for each rank. */
void flight_print_json(FILE *to, const FlightReading *reading);

#endif
