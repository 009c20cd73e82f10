/* fuzz_flight.h -- the function of the fuzz target fuzz_flight.c, for tests that pass mutated
 * inputs to it. */
#ifndef TESTS_FUZZ_FUZZ_FLIGHT_H
#define TESTS_FUZZ_FUZZ_FLIGHT_H

#include <stddef.h>
#include <stdint.h>

/* Reads data[0..size) as the files of several flight recorders, one after the other, and analyses
 * those that are accepted. Fails a CHECK if anything in them is impossible. Returns 0. */
int fuzz_flight(const uint8_t *data, size_t size);

#endif
