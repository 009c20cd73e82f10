/* some_flight.h -- the flight of a rank as a test may need one, before it is written to a file. */
#ifndef TESTS_SUPPORT_FLIGHT_SOME_FLIGHT_H
#define TESTS_SUPPORT_FLIGHT_SOME_FLIGHT_H

#include "parallel/flight/write.h"

/* The world, and what names its dumps. */
enum { SOME_RANKS = 2, SOME_START = 77 };

/* Returns a flight with a finished op, and a collective under way. */
Flight *some_flight(void);
/* Returns what is written of it as the flight of this rank. */
FlightSource some_source(const Flight *f, int rank);

#endif
