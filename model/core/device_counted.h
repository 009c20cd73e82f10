/* device_counted.h -- a device that only counts: it has the properties of another device, but no
 * memory, and it computes nothing. Opening a rank's layout on it shows what the rank would allocate
 * and issue (recorder.h), even in a program without CUDA. */
#ifndef MODEL_CORE_DEVICE_COUNTED_H
#define MODEL_CORE_DEVICE_COUNTED_H

#include "model/core/device.h"

typedef struct {
    DeviceFacts facts; /* properties of the device that it stands for */
    Place place;       /* where that device's memory is */
    size_t workspace;  /* bytes that opening that device takes before anything is allocated */
} CountedFacts;

/* Opens a counted device, which device_open cannot open by any name.
 *
 * Memory: device_alloc never fails and returns distinct addresses that nobody may read or write
 * (they are not valid x86-64 addresses, so an access ends the program). `held`, `host_held`,
 * `waits` and `allocations` count as on every device. If place is PLACE_DEVICE, device_memory
 * reports facts.bytes in total, and what the workspace and the allocations leave of it (at least 0)
 * as available; if PLACE_HOST, it returns false as on the CPU. Page-locked host memory is real,
 * since host code writes it, except for that of device_counted_reserve.
 *
 * Work: ops and copies do nothing, so a copy to the host does not change its destination. Every
 * event counts as reached, and all times are 0. On PLACE_DEVICE the six streams are distinct and
 * there are no ops for f64, as on CUDA; on PLACE_HOST all streams are one, as on the CPU. */
void device_counted_open(Device *device, const CountedFacts *facts);
/* Like device_host_alloc, but without memory: returns the address of a range of `bytes` bytes,
 * which is counted but must not be read or written, as with device_alloc. Release with
 * device_host_release. */
void *device_counted_reserve(Device *device, size_t bytes);
/* Returns whether the device only counts memory. Values need not be computed on such a device. */
bool device_is_counted(const Device *device);

#endif
