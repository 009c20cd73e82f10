/* standing_device.h -- devices of thread ranks over fake_nccl that stand in a call, as a GPU does
 * whose peers do not come: their work is their marks, one after the other. */
#ifndef TESTS_SUPPORT_DEVICE_STANDING_DEVICE_H
#define TESTS_SUPPORT_DEVICE_STANDING_DEVICE_H

#include "parallel/comm/comm.h"

/* Opens the rank's; all ranks of the world, four at most, call it. Without NCCL or the CPU the
 * process ends. */
void standing_device_open(Comm *world, Device *dev);
/* From here on calls return at once, and devices of these ranks (bits) stand in their next call:
 * the watchdog has seen the end of what came before. All ranks call it. */
void standing_device_stand(Comm *world, int ranks);
/* The same, but they end so many calls more before the one that they stand in. */
void standing_device_stand_after(Comm *world, int ranks, int calls);
/* While it is on, nobody hears how far a device has come: whoever asks waits. */
void standing_device_silence(bool on);
/* So many numbers of the calling rank's, for its calls: at most 64. */
Tensor standing_device_numbers(int64_t n);
/* For a host that goes no further. */
void standing_device_hang(void) __attribute__((noreturn));

#endif
