/* test_ops_copy.c -- tests the ops that accept any type: op_copy and op_fill. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { COPIED = 304 };

/* Copies n elements, among them special values and ties, and compares them with the scalar
 * conversions. */
static void check_copy(TestDevice *d, DType from, DType to, int n)
{
    static const double special[] = {0,      -0.0,    1,        65504,    65520,     1e-8,
                                     3e-6,   -6.1e-5, 0x1.01p0, 0x1.03p0, 0x1.002p0, 0x1.006p0,
                                     3.4e38, 1e30,    HUGE_VAL, -HUGE_VAL};
    const int n_special = (int)(sizeof special / sizeof *special);
    double x[COPIED], y[COPIED] = {0};
    for (int k = 0; k < n; k++)
        dtype_set(from, x, k, k < n_special ? special[k] : drawn_normal(15, k));
    Tensor far_x = device_put(&d->device, tensor_1d(x, from, n));
    Tensor far_y = device_put(&d->device, tensor_1d(y, to, n));
    op_copy(&d->device, far_y, far_x);
    device_take(&d->device, tensor_1d(y, to, n), far_y);
    device_drop(&d->device, far_x);
    for (int k = 0; k < n; k++) {
        double expected;
        dtype_set(to, &expected, 0, dtype_get(from, x, k));
        if (dtype_get(to, y, k) != dtype_get(to, &expected, 0))
            fail_msg("%s: %s to %s, element %d of %d: %a becomes %a, not %a", d->name,
                     dtype_name(from), dtype_name(to), k, n, dtype_get(from, x, k),
                     dtype_get(to, y, k), dtype_get(to, &expected, 0));
    }
}

/* Copies between any two float types, in whole packs of 16 bytes and in single elements. */
static void copy_converts_between_all_types(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (DType from = F64; from <= F16; from++)
            for (DType to = F64; to <= F16; to++) {
                TestDevice *d = &devices.item[i];
                if (!device_has_storage(&d->device, from) || !device_has_storage(&d->device, to))
                    continue;
                check_copy(d, from, to, COPIED);
                check_copy(d, from, to, COPIED - 3);
            }
}

static void fill_writes_every_type(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (DType t = F64; t < DTYPE_COUNT; t++) {
            double buffer[19] = {0};
            Device *dev = &devices.item[i].device;
            if (!device_has_storage(dev, t)) continue;
            Tensor near = tensor_1d(buffer, t, 19), far = device_put(dev, near);
            op_fill(dev, far, 3);
            device_take(dev, near, far);
            for (int k = 0; k < 19; k++)
                assert_true(dtype_get(t, buffer, k) == 3);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_converts_between_all_types),
        cmocka_unit_test(fill_writes_every_type),
    };
    return cmocka_run_group_tests_name("copies and fills", tests, devices_setup, devices_teardown);
}
