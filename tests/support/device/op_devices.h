/* op_devices.h -- the devices on which the tests of ops run: every CPU level of this machine, with
 * and without OpenBLAS and with one to three threads, and the GPU (or the emulated one) if CUDA is
 * built in. */
#ifndef TESTS_SUPPORT_DEVICE_OP_DEVICES_H
#define TESTS_SUPPORT_DEVICE_OP_DEVICES_H

#include "model/core/device.h"

enum { DEVICE_LEVELS = CPU_LEVEL_COUNT - 1, DEVICE_PRODUCTS = 2, DEVICE_THREADS = 3 };

typedef struct {
    Device device;
    CpuLevel level;
    int threads;
    bool openblas;
    bool cuda; /* it has its own memory and no f64 */
    char name[160];
} TestDevice;

typedef struct {
    TestDevice item[DEVICE_LEVELS * DEVICE_PRODUCTS * DEVICE_THREADS + 1];
    int count;
} TestDevices;

/* Setup of a group of tests: opens all CPU devices that this machine supports, at least one, and
 * then the CUDA device if it is built in and present. Prints the names of the others. With
 * TEST_DEVICE set, one CPU device is opened, for comparison with the named device. With TEST_SAMPLE
 * set, for slow builds that check every memory access, no device has two threads. */
int devices_setup(void **state);
/* Teardown of the group: closes them. */
int devices_teardown(void **state);
extern TestDevices devices;

/* Returns how often each op is called on each device: twice, to compare the bits, or once with
 * TEST_SAMPLE. */
int devices_calls(void);
/* Returns whether this device is to be tested, according to TEST_DEVICE, which names a backend. */
bool device_asked_for(const TestDevice *d);

/* Returns whether a device can compute on this storage type. */
bool device_has_storage(const Device *dev, DType storage);

/* ---- test data in device memory -------------------------------------------------------------- */

/* device_put copies a dense host tensor to device memory. device_take copies it back into the host
 * tensor and frees the device memory. Absent tensors stay absent. */
Tensor device_put(Device *dev, Tensor host);
void device_take(Device *dev, Tensor host, Tensor on_device);
/* Frees the device memory without copying back. */
void device_drop(Device *dev, Tensor on_device);

/* The same for `bytes` bytes of any structure. */
void *device_put_bytes(Device *dev, const void *host, size_t bytes);
void device_take_bytes(Device *dev, void *host, void *on_device, size_t bytes);

#endif
