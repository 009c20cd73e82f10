/* mutate.h -- makes random changes to a valid input that are likely to reveal bugs in parsers.
 * Tests use it to run fuzz targets without a fuzzer. */
#ifndef TESTS_SUPPORT_FILES_MUTATE_H
#define TESTS_SUPPORT_FILES_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* Returns a copy of text[0..n) with one to four random changes, determined by (seed, round): it
 * flips a bit; inserts, replaces, removes or repeats bytes; replaces a number by an extreme one; or
 * cuts off the end. Sets *out_n to the length; the caller frees the copy. */
uint8_t *mutate(const void *text, size_t n, uint64_t seed, uint64_t round, size_t *out_n);

#endif
