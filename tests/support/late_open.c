/* late_open.c -- late devices in place of the CPU: the linker sends the program's calls of
 * device_open here where it is told to (--wrap). */
#include "model/core/check.h"
#include "tests/support/late_device.h"

#include <string.h>

static bool wanted;
static int opened, refused = -1;

void late_devices(bool on)
{
    wanted = on;
}

void late_devices_refuse(int index)
{
    refused = index;
}

int late_devices_opened(void)
{
    return __atomic_load_n(&opened, __ATOMIC_RELAXED);
}

bool __real_device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                        size_t n) __attribute__((weak));
bool __wrap_device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                        size_t n);

bool __wrap_device_open(Device *device, const char *name, const DeviceOptions *options, char *err,
                        size_t n)
{
    __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED);
    if (options != NULL && options->index == refused)
        return error_set(err, n, "no device is left for rank %d", refused);
    if (wanted && strcmp(name, "cuda") != 0) return late_device_open(device, options, err, n);
    return __real_device_open(device, name, options, err, n);
}
