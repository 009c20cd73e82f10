/* hopper_needed.h -- skips tests of attention for Hopper where its kernels cannot run. For programs
 * of tests/cuda, which are only linked if there are kernels. */
#ifndef TESTS_SUPPORT_DEVICE_HOPPER_NEEDED_H
#define TESTS_SUPPORT_DEVICE_HOPPER_NEEDED_H

#include "model/kernels/cuda/attention.h"
#include "model/kernels/op_cases.h"
#include "tests/support/support.h"

#include <stdlib.h>

/* Skips the test unless there is a CUDA device of compute capability 9.0 and the kernels are built.
 */
static inline void hopper_needed(void)
{
    Device device;
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    if (!device_open(&device, "cuda", &options, err, sizeof err)) skip_because("cuda: %s", err);
    int major = cuda_device(&device)->major, minor = cuda_device(&device)->minor;
    device_close(&device);
    if (!hopper_attention_built()) skip_because("the kernels for Hopper are not built");
    if (major != 9 || minor != 0) skip_because("compute capability %d.%d, not 9.0", major, minor);
}

/* The same; also skips the test unless HOPPER_SWEEP is set, as by `make hopper`. */
static inline void hopper_sweep_needed(void)
{
    hopper_needed();
    if (getenv("HOPPER_SWEEP") == NULL) skip_because("runs with HOPPER_SWEEP=1, in make hopper");
}

/* Returns how many elements lie between the rows of a call's operands: the kernels need rows that
 * start on boundaries of 16 bytes, except where each operand has a single row. */
static inline int64_t hopper_row_gap(const OpCase *c)
{
    return c->batch * c->tq * c->tk > 1 ? 8 : 3;
}

#endif
