/* fuzz_packets.h -- the function of the fuzz target fuzz_packets.c, for tests that pass mutated
 * inputs to it. */
#ifndef TESTS_FUZZ_FUZZ_PACKETS_H
#define TESTS_FUZZ_FUZZ_PACKETS_H

#include <stddef.h>
#include <stdint.h>

/* Reads data[0..size) as what rank 2 of four sends to rank 0, or to rank 1, which passes it on.
 * Fails a CHECK if what rank 0 then knows makes no sense. Returns 0. */
int fuzz_packets(const uint8_t *data, size_t size);

#endif
