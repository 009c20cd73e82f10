/* cuda_pair.h -- for tests that hold the CUDA device to the CPU's bits: one device of each, tensors
 * in host memory, and the comparison. */
#ifndef TESTS_SUPPORT_DEVICE_CUDA_PAIR_H
#define TESTS_SUPPORT_DEVICE_CUDA_PAIR_H

#include "model/core/device.h"

extern Device pair_cpu, pair_cuda;

/* Setup of a group of tests: opens both (the CPU with two threads); teardown closes them. */
int pair_setup(void **state);
int pair_teardown(void **state);
/* Skips the test where no CUDA device is built in and there. */
void pair_needed(void);

/* n elements: spread * normal i of the stream, or its absolute value. The caller frees the
 * data. */
Tensor pair_drawn(DType dtype, int64_t n, uint64_t stream, double spread, bool positive);
/* The same tensor in memory of its own, absent if t is. */
Tensor pair_copy(Tensor t);
/* Fails with `what` and the first element unless both have the same bits. */
void pair_same_bits(Tensor expected, Tensor found, const char *what);

#endif
