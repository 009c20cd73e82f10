/* fuzz_config.h -- declares the fuzz target of configs, so that tests/configs/test_config.c can
 * replay inputs. */
#ifndef TESTS_FUZZ_FUZZ_CONFIG_H
#define TESTS_FUZZ_FUZZ_CONFIG_H

#include <stddef.h>
#include <stdint.h>

/* Reads any bytes as a config file; the bytes after the first NUL are one --set. Returns 1 if the
 * config is accepted and 0 if it is refused. Aborts if an accepted config, printed and read again,
 * has other values, or if a refused one has no error message. */
int fuzz_config(const uint8_t *data, size_t n);

#endif
