/* late_open.c -- lets tests replace device_open: it can open late devices, which delay their work,
 * instead of CPU devices, or fail, hang or be slow. The linker redirects calls of device_open here
 * (--wrap). */
#include "model/core/check.h"
#include "tests/support/device/late_device.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static bool wanted;
static int opened, refused = -1, small = -1, hanging = -1;
static int slow = -1;
static unsigned slow_seconds;
static size_t small_bytes;

void late_devices(bool on)
{
    wanted = on;
}

void late_devices_refuse(int index)
{
    refused = index;
}

void late_devices_memory(int index, size_t available)
{
    small = index;
    small_bytes = available;
}

void late_devices_hang(int index)
{
    hanging = index;
}

void late_devices_delay(int opening, unsigned seconds)
{
    slow = late_devices_opened() + opening;
    slow_seconds = seconds;
}

static void own_memory(Device *device, size_t *available, size_t *total)
{
    *total = (size_t)4 << 30;
    *available = device->index == small ? small_bytes : *total;
}

/* Gives an opened device its own memory if late_devices_memory was called. All ranks use the same
 * backend. */
static bool with_memory(Device *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static Backend own;
    if (small < 0) return true;
    pthread_mutex_lock(&lock);
    if (own.name == NULL) {
        own = *device->backend;
        own.memory = own_memory;
    }
    pthread_mutex_unlock(&lock);
    device->backend = &own;
    return true;
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
    if (__atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED) == slow) sleep(slow_seconds);
    while (options != NULL && options->index == hanging)
        pause();
    if (options != NULL && options->index == refused)
        return error_set(err, n, "no device is left for rank %d", refused);
    bool late = wanted && strcmp(name, "cuda") != 0;
    return (late ? late_device_open(device, options, err, n)
                 : __real_device_open(device, name, options, err, n)) &&
           with_memory(device);
}
