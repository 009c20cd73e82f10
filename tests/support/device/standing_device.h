/* standing_device.h -- stalled devices for tests of NCCL timeouts. The thread ranks use the fake
 * NCCL library (fake_nccl), and a device can get stuck in a call, like a GPU whose peers do not
 * arrive. Its only work is to complete its events one after the other. */
#ifndef TESTS_SUPPORT_DEVICE_STANDING_DEVICE_H
#define TESTS_SUPPORT_DEVICE_STANDING_DEVICE_H

#include "parallel/comm/comm.h"

/* Opens the rank's device. All ranks of the world, at most four, must call it. Ends the process if
 * NCCL or the CPU device cannot be opened. */
void standing_device_open(Comm *world, Device *dev);
/* From now on calls return at once, and the devices of these ranks (one bit each) stall in their
 * next call. The watchdog has already seen that all earlier calls are complete. All ranks must call
 * it. */
void standing_device_stand(Comm *world, int ranks);
/* The same, but the devices complete this many further calls before they stall. */
void standing_device_stand_after(Comm *world, int ranks, int calls);
/* While on, querying a device's progress blocks. */
void standing_device_silence(bool on);
/* Returns n numbers, at most 64, of the calling rank for its calls. */
Tensor standing_device_numbers(int64_t n);
/* Blocks the calling host forever. */
void standing_device_hang(void) __attribute__((noreturn));

#endif
