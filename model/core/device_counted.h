/* device_counted.h -- a device that only counts: it has the properties of another device, but no
 * memory, and it computes nothing. A program opens its layout on it to see what a rank would
 * allocate and issue (recorder.h), also in a program without CUDA. */
#ifndef MODEL_CORE_DEVICE_COUNTED_H
#define MODEL_CORE_DEVICE_COUNTED_H

#include "model/core/device.h"

typedef struct {
    DeviceFacts facts; /* of the device that it stands for */
    Place place;       /* of that device's memory */
    size_t workspace;  /* bytes that opening that device takes before anything is allocated */
} CountedFacts;

/* Opens a counted device. No name finds it: device_open does not know it.
 *
 * Memory: device_alloc never fails and returns distinct addresses that nobody may read or write
 * (they are no addresses of x86-64, so an access ends the program). `held`, `host_held`, `waits`
 * and `allocations` count as on every device. If place is PLACE_DEVICE, device_memory reports
 * facts.bytes in total, and what the workspace and the allocations leave of it (at least 0) as
 * available; if PLACE_HOST, it returns false as on the CPU. Page-locked host memory is real, since
 * host code writes it, but for that of device_counted_reserve.
 *
 * Work: ops and copies do nothing, so a copy to the host leaves what was there. Every event is
 * reached, and all times are 0. On PLACE_DEVICE the six streams are distinct and there are no ops
 * for f64, as on CUDA; on PLACE_HOST all streams are one, as on the CPU. */
void device_counted_open(Device *device, const CountedFacts *facts);
/* Returns as many addresses of page-locked host memory as device_host_alloc, and counts them like
 * it; but nobody may read or write them, as those of device_alloc. Release with
 * device_host_release. */
void *device_counted_reserve(Device *device, size_t bytes);
/* Returns whether it is a counted device, for which no values need to be computed. */
bool device_is_counted(const Device *device);

#endif
