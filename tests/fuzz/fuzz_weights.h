/* fuzz_weights.h -- declares the fuzz targets of weight files, so that test programs can replay
 * inputs. */
#ifndef TESTS_FUZZ_FUZZ_WEIGHTS_H
#define TESTS_FUZZ_FUZZ_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

/* Returns 1 if the input was accepted and 0 if it was refused. Aborts if what was accepted is
 * inconsistent. */
int fuzz_llmc(const uint8_t *data, size_t n);

#endif
