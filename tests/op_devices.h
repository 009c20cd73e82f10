/* op_devices.h -- the CPU devices that op tests run on: every level this machine has, with and
 * without OpenBLAS, one to three threads. */
#ifndef TESTS_OP_DEVICES_H
#define TESTS_OP_DEVICES_H

#include "model/core/device.h"

enum { DEVICE_LEVELS = 3, DEVICE_PRODUCTS = 2, DEVICE_THREADS = 3 };

typedef struct {
    Device device;
    int level, threads;
    bool openblas;
    char name[160];
} TestDevice;

typedef struct {
    TestDevice item[DEVICE_LEVELS * DEVICE_PRODUCTS * DEVICE_THREADS];
    int count;
} TestDevices;

/* Opens all that there are and prints by name those that are not. At least one is. */
void devices_open(TestDevices *all);
void devices_close(TestDevices *all);

#endif
