/* cuda_pair.h -- helpers for tests that compare the CUDA device's results with the CPU's, bit for
 * bit: one device of each kind, tensors in host memory, and the comparison. */
#ifndef TESTS_SUPPORT_DEVICE_CUDA_PAIR_H
#define TESTS_SUPPORT_DEVICE_CUDA_PAIR_H

#include "model/core/device.h"

extern Device pair_cpu, pair_cuda;

/* Setup of a group of tests: opens both devices (the CPU with two threads). The teardown closes
 * them. */
int pair_setup(void **state);
int pair_teardown(void **state);
/* Skips the test if CUDA is not built in or there is no GPU. */
void pair_needed(void);

/* Returns n elements: spread * normal number i of the random stream, or its absolute value if
 * `positive`. The caller frees the data. */
Tensor pair_drawn(DType dtype, int64_t n, uint64_t stream, double spread, bool positive);
/* Returns a copy of the tensor in new memory, or an absent tensor if t is absent. */
Tensor pair_copy(Tensor t);
/* Fails with `what` and the first differing element unless both tensors have the same bits. */
void pair_same_bits(Tensor expected, Tensor found, const char *what);

#endif
