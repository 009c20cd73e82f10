/* op_devices.c -- opens the devices on which the tests of ops run, and copies test data to and from
 * them. */
#include "tests/support/device/op_devices.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestDevices devices;

static bool open_one(TestDevices *all, const char *backend, const DeviceOptions *options, char *err,
                     size_t n)
{
    TestDevice *d = &all->item[all->count];
    *d = (TestDevice){0};
    if (!device_open(&d->device, backend, options, err, n)) return false;
    d->level = options->level;
    d->threads = options->threads;
    d->openblas = options->blas == BLAS_OPENBLAS;
    d->cuda = strcmp(backend, "cuda") == 0;
    device_describe(&d->device, d->name, sizeof d->name);
    all->count++;
    return true;
}

static void open_cpus(void)
{
    bool one = getenv("TEST_DEVICE") != NULL, sample = getenv("TEST_SAMPLE") != NULL;
    for (CpuLevel level = CPU_LEVEL_BASELINE; level < CPU_LEVEL_COUNT; level++) {
        for (BlasChoice blas = BLAS_OPENBLAS; blas <= BLAS_BUILTIN; blas++) {
            for (int threads = 1; threads <= DEVICE_THREADS; threads++) {
                DeviceOptions options = {
                    .threads = threads, .local_ranks = 1, .level = level, .blas = blas};
                char err[256];
                if (one && (level > CPU_LEVEL_BASELINE || blas == BLAS_OPENBLAS || threads > 1))
                    continue;
                if (sample && threads == 2) continue;
                if (open_one(&devices, "cpu", &options, err, sizeof err)) continue;
                if (threads == 1) printf("skipped: level %d: %s\n", (int)level, err);
                break;
            }
        }
    }
}

int devices_setup(void **state)
{
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    char err[256];
    (void)state;
    devices.count = 0;
    open_cpus();
    CHECK(devices.count > 0, "no CPU device of %d can be opened", DEVICE_LEVELS * DEVICE_PRODUCTS);
    if (!open_one(&devices, "cuda", &options, err, sizeof err)) printf("skipped: cuda: %s\n", err);
    return 0;
}

int devices_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        device_close(&devices.item[i].device);
    devices.count = 0;
    return 0;
}

int devices_calls(void)
{
    return getenv("TEST_SAMPLE") != NULL ? 1 : 2;
}

bool device_asked_for(const TestDevice *d)
{
    const char *named = getenv("TEST_DEVICE");
    return named == NULL || d->cuda == (strcmp(named, "cuda") == 0);
}

bool device_has_storage(const Device *dev, DType storage)
{
    return storage != F64 || dev->ops_f64 != NULL;
}

static Tensor bytes_of(const void *data, size_t bytes)
{
    return tensor_1d((void *)data, U8, (int64_t)bytes);
}

void *device_put_bytes(Device *dev, const void *host, size_t bytes)
{
    void *p = device_alloc(dev, bytes, "test data");
    device_copy(dev, bytes_of(p, bytes), bytes_of(host, bytes));
    return p;
}

void device_take_bytes(Device *dev, void *host, void *on_device, size_t bytes)
{
    device_copy(dev, bytes_of(host, bytes), bytes_of(on_device, bytes));
    device_synchronize(dev);
    device_release(dev, on_device, bytes);
}

Tensor device_put(Device *dev, Tensor host)
{
    if (!tensor_present(host)) return host;
    host.data = device_put_bytes(dev, host.data, tensor_bytes(host));
    host.place = dev->backend->place;
    return host;
}

void device_take(Device *dev, Tensor host, Tensor on_device)
{
    if (tensor_present(host)) device_take_bytes(dev, host.data, on_device.data, tensor_bytes(host));
}

void device_drop(Device *dev, Tensor on_device)
{
    if (!tensor_present(on_device)) return;
    device_synchronize(dev);
    device_release(dev, on_device.data, tensor_bytes(on_device));
}
