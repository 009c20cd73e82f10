/* fuzz_checkpoint.h -- the fuzz targets of checkpoint files, by name, for replay in the test
 * programs. Each file also defines LLVMFuzzerTestOneInput, weakly, so that several link into one
 * program. */
#ifndef TESTS_FUZZ_FUZZ_CHECKPOINT_H
#define TESTS_FUZZ_FUZZ_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

/* Returns 1 if the input was accepted, 0 if it was refused; aborts if what it accepted is not
 * sound. */
int fuzz_safetensors(const uint8_t *data, size_t n);
int fuzz_manifest(const uint8_t *data, size_t n);

#endif
