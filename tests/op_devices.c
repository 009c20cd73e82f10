/* op_devices.c -- see op_devices.h. */
#include "tests/op_devices.h"

#include "model/core/check.h"

#include <stdio.h>

void devices_open(TestDevices *all)
{
    all->count = 0;
    for (int level = 1; level <= DEVICE_LEVELS; level++) {
        for (int blas = 1; blas <= DEVICE_PRODUCTS; blas++) {
            for (int threads = 1; threads <= DEVICE_THREADS; threads++) {
                TestDevice *d = &all->item[all->count];
                DeviceOptions options = {
                    .threads = threads, .local_ranks = 1, .level = level, .blas = blas};
                char err[256];
                if (!device_open(&d->device, "cpu", &options, err, sizeof err)) {
                    if (threads == 1) printf("skipped: level %d: %s\n", level, err);
                    break;
                }
                d->level = level;
                d->threads = threads;
                d->openblas = blas == 1;
                device_describe(&d->device, d->name, sizeof d->name);
                all->count++;
            }
        }
    }
    CHECK(all->count > 0, "no CPU device of %d can be opened", DEVICE_LEVELS * DEVICE_PRODUCTS);
}

void devices_close(TestDevices *all)
{
    for (int i = 0; i < all->count; i++)
        device_close(&all->item[i].device);
    all->count = 0;
}
