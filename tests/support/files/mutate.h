/* mutate.h -- damages a valid input in the ways that find bugs in parsers: for replaying fuzz
 * targets without a fuzzer. */
#ifndef TESTS_SUPPORT_FILES_MUTATE_H
#define TESTS_SUPPORT_FILES_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* The bytes of text[0..n) with one to four changes, drawn from (seed, round): flipped, inserted,
 * removed, repeated and swapped bytes, numbers replaced by extreme ones, an end cut off. The caller
 * frees; *out_n tells the length. */
uint8_t *mutate(const void *text, size_t n, uint64_t seed, uint64_t round, size_t *out_n);

#endif
