/* op_devices.h -- the devices that op tests run on: every CPU level this machine has, with and
 * without OpenBLAS, one to three threads; and the GPU (or the emulated one) where CUDA is built in.
 */
#ifndef TESTS_SUPPORT_DEVICE_OP_DEVICES_H
#define TESTS_SUPPORT_DEVICE_OP_DEVICES_H

#include "model/core/device.h"

enum { DEVICE_LEVELS = CPU_LEVEL_COUNT - 1, DEVICE_PRODUCTS = 2, DEVICE_THREADS = 3 };

typedef struct {
    Device device;
    CpuLevel level;
    int threads;
    bool openblas;
    bool cuda; /* its memory is not the host's, and it has no f64 */
    char name[160];
} TestDevice;

typedef struct {
    TestDevice item[DEVICE_LEVELS * DEVICE_PRODUCTS * DEVICE_THREADS + 1];
    int count;
} TestDevices;

/* Setup of a group of tests: opens all CPU devices that there are, at least one, and as the last
 * the CUDA device if it is built in and there; prints by name those that are not. The environment
 * thins them: with TEST_DEVICE set one CPU device is enough, to compare that device with; with
 * TEST_SAMPLE set, for programs in which every access is watched, none has two threads: their
 * accesses are those of one or of three. */
int devices_setup(void **state);
/* Its teardown: closes them. */
int devices_teardown(void **state);
extern TestDevices devices;

/* How often a call is made on each device: twice, to compare the bits; once with TEST_SAMPLE. */
int devices_calls(void);
/* Whether TEST_DEVICE, which names a backend, leaves this device to be tested. */
bool device_asked_for(const TestDevice *d);

/* Whether a device computes on this storage type. */
bool device_has_storage(const Device *dev, DType storage);

/* ---- host data on a device ------------------------------------------------------------------- */

/* A copy of a dense host tensor in device memory; device_take brings it back into the host tensor
 * and releases it. Absent tensors stay absent. */
Tensor device_put(Device *dev, Tensor host);
void device_take(Device *dev, Tensor host, Tensor on_device);
/* As device_take, without the copy back. */
void device_drop(Device *dev, Tensor on_device);

/* The same for `bytes` bytes of any record. */
void *device_put_bytes(Device *dev, const void *host, size_t bytes);
void device_take_bytes(Device *dev, void *host, void *on_device, size_t bytes);

#endif
