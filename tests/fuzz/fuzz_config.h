/* fuzz_config.h -- the fuzz target of configs, by name, for replay in tests/configs/test_config.c.
 */
#ifndef TESTS_FUZZ_FUZZ_CONFIG_H
#define TESTS_FUZZ_FUZZ_CONFIG_H

#include <stddef.h>
#include <stdint.h>

/* Any bytes as a config file; what follows the first NUL byte is one --set. Returns 1 if they
 * are accepted, 0 if they are refused; aborts if an accepted config does not read back from its own
 * print to the same values, or a refused one comes without a sentence. */
int fuzz_config(const uint8_t *data, size_t n);

#endif
