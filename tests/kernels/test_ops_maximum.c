/* test_ops_maximum.c -- tests op_maximum, the maximum over ranks: NaN, zeros, many sources, and
 * sources at unaligned addresses. */
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The maximum over three ranks is NaN if any rank has a NaN; of two zeros it is the first. */
static void a_maximum_keeps_NaN_and_the_first_of_two_zeros(void **state)
{
    (void)state;
    enum { N = 9, RANKS = 3 };
    const double held[RANKS][N] = {{NAN, 1, 1, 0.0, -0.0, -INFINITY, 3, -2, INFINITY},
                                   {1, NAN, 2, -0.0, 0.0, -INFINITY, 2, -3, NAN},
                                   {2, 3, NAN, -0.0, 0.0, -INFINITY, 1, -1, 0}};
    const double want[N] = {NAN, NAN, NAN, 0.0, -0.0, -INFINITY, 3, -1, NAN};
    for (int i = 0; i < devices.count; i++)
        for (DType type = F64; type <= F16; type++) {
            Device *dev = &devices.item[i].device;
            double host[N];
            Tensor src[RANKS], here = tensor_1d(host, type, N);
            /* f64 on every device: the numbers of a step use it even if the device has no models in
             * f64. */
            for (int r = 0; r < RANKS; r++) {
                for (int k = 0; k < N; k++)
                    dtype_set(type, host, k, held[r][k]);
                src[r] = device_put(dev, here);
            }
            op_maximum(dev, src[1], src, RANKS);
            device_take(dev, here, src[1]);
            device_drop(dev, src[0]);
            device_drop(dev, src[2]);
            for (int k = 0; k < N; k++) {
                double got = dtype_get(type, host, k);
                bool right = isnan(want[k]) ? isnan(got)
                                            : got == want[k] && signbit(got) == signbit(want[k]);
                if (!right)
                    fail_msg("%s, %s: the largest %d is %g, not %g", devices.item[i].name,
                             dtype_name(type), k, got, want[k]);
            }
        }
}

/* Each element is largest, or NaN, in another source. The result may replace any source. */
static void a_maximum_of_many_ranks_keeps_every_NaN(void **state)
{
    (void)state;
    enum { RANKS = 3 * SUM_SOURCES + 5, N = RANKS + 3 };
    for (int i = 0; i < devices.count; i++)
        for (DType type = F64; type <= F16; type++)
            for (int target = 0; target < RANKS; target += SUM_SOURCES + 2) {
                Device *dev = &devices.item[i].device;
                double host[N];
                Tensor src[RANKS], here = tensor_1d(host, type, N);
                for (int r = 0; r < RANKS; r++) {
                    for (int k = 0; k < N; k++)
                        dtype_set(type, host, k,
                                  k != r  ? -1.0 - (r + k) % 5
                                  : k % 2 ? NAN
                                          : 0.5 + k % 7);
                    src[r] = device_put(dev, here);
                }
                op_maximum(dev, src[target], src, RANKS);
                device_take(dev, here, src[target]);
                for (int r = 0; r < RANKS; r++)
                    if (r != target) device_drop(dev, src[r]);
                for (int k = 0; k < N; k++) {
                    double got = dtype_get(type, host, k), want = k >= RANKS ? -1
                                                                  : k % 2    ? NAN
                                                                             : 0.5 + k % 7;
                    if (isnan(want) ? !isnan(got) : got != want)
                        fail_msg("%s, %s: the largest %d is %g, not %g", devices.item[i].name,
                                 dtype_name(type), k, got, want);
                }
            }
}

/* At most one source begins one element after an aligned address. */
static void a_maximum_of_unaligned_sources_is_right(void **state)
{
    (void)state;
    enum { N = 64, RANKS = 3 };
    for (int i = 0; i < devices.count; i++)
        for (int off = 0; off <= RANKS; off++) {
            Device *dev = &devices.item[i].device;
            float host[RANKS][N + 1], got[N] = {0};
            Tensor held[RANKS], src[RANKS], dst = device_put(dev, tensor_1d(got, F32, N));
            for (int r = 0; r < RANKS; r++) {
                for (int k = 0; k <= N; k++)
                    host[r][k] = (float)drawn_normal(34, r * (N + 1) + k);
                held[r] = device_put(dev, tensor_1d(host[r], F32, N + 1));
                src[r] = tensor_slice_rows(held[r], r == off, N);
            }
            op_maximum(dev, dst, src, RANKS);
            device_take(dev, tensor_1d(got, F32, N), dst);
            for (int r = 0; r < RANKS; r++)
                device_drop(dev, held[r]);
            for (int k = 0; k < N; k++) {
                float want = -INFINITY;
                for (int r = 0; r < RANKS; r++)
                    want = fmaxf(want, host[r][k + (r == off)]);
                if (got[k] != want)
                    fail_msg("%s: the largest %d is %g, not %g", devices.item[i].name, k,
                             (double)got[k], (double)want);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_maximum_keeps_NaN_and_the_first_of_two_zeros),
        cmocka_unit_test(a_maximum_of_many_ranks_keeps_every_NaN),
        cmocka_unit_test(a_maximum_of_unaligned_sources_is_right),
    };
    return cmocka_run_group_tests_name("maxima of many tensors", tests, devices_setup,
                                       devices_teardown);
}
