/* fuzz_started_by.h -- the function of the fuzz target fuzz_started_by.c, for tests that pass
 * mutated inputs to it. */
#ifndef TESTS_FUZZ_FUZZ_STARTED_BY_H
#define TESTS_FUZZ_FUZZ_STARTED_BY_H

#include <stddef.h>
#include <stdint.h>

/* Reads data[0..size) as an environment, one NAME=value per line. Fails a CHECK if an accepted one
 * has no possible rank. Returns 0. */
int fuzz_started_by(const uint8_t *data, size_t size);

#endif
