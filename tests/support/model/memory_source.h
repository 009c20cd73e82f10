/* memory_source.h -- a WeightSource whose tensors are in memory, for tests of what reads one. */
#ifndef TESTS_SUPPORT_MODEL_MEMORY_SOURCE_H
#define TESTS_SUPPORT_MODEL_MEMORY_SOURCE_H

#include "model/weights/source.h"

/* Creates a source without tensors. */
WeightSource *memory_source_new(void);
/* Adds a tensor (cols 0: a vector) with random values, normally distributed, of the stream `seed`.
 * Returns its data, which belongs to the source. */
void *memory_source_add(WeightSource *source, const char *name, DType dtype, int64_t rows,
                        int64_t cols, uint64_t seed);
/* Returns the data of a tensor; fails the test if there is none of this name. */
const void *memory_source_data(const WeightSource *source, const char *name);
/* The read of tensor `index` fails from now on; -1: of none. */
void memory_source_fail(WeightSource *source, int index);

/* Reads a whole tensor of any source, in random windows; the caller frees. Fails the test if the
 * tensor does not exist or cannot be read. */
void *source_take(WeightSource *source, const char *name, uint64_t seed);

#endif
