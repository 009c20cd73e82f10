/* fuzz_checkpoint.h -- declares the fuzz targets of checkpoint files and of Hugging Face's files,
 * so that test programs can replay inputs. Each source file also defines LLVMFuzzerTestOneInput as
 * a weak symbol, so that several can be linked into one program. */
#ifndef TESTS_FUZZ_FUZZ_CHECKPOINT_H
#define TESTS_FUZZ_FUZZ_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

/* All return 1 if the input was accepted and 0 if it was refused. They abort if what was accepted
 * is inconsistent. */
int fuzz_safetensors(const uint8_t *data, size_t n);
int fuzz_manifest(const uint8_t *data, size_t n);
int fuzz_best(const uint8_t *data, size_t n);
int fuzz_hf_config(const uint8_t *data, size_t n);
int fuzz_hf_index(const uint8_t *data, size_t n);

#endif
