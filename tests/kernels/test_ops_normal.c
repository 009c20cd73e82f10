/* test_ops_normal.c -- tests of the random numbers for initial weights: published test vectors, the
 * same bits on every device and for every split, and a normal distribution. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void philox_reproduces_its_published_test_vectors(void **state)
{
    (void)state;
    static const uint32_t v[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(v[i], v[i] + 4, out);
        assert_memory_equal(out, v[i] + 6, sizeof out);
    }
}

enum { NORMALS = 5003 };

/* The bits of normals 0 to 7 of seed 42, stream 7, and a hash of the first NORMALS ones. */
static const uint64_t golden_normal[8] = {
    0xbff1197f79546c8d, 0x3ffd6b7f681a4e08, 0x3fdc82780285efc3, 0x3feb92114e174f39,
    0x3ff0f2232f8bafbd, 0xc000d3834d0ef3b8, 0x3ff2992b801f0b6e, 0xbfb71a5d3a98249b};
static const uint64_t golden_hash = 0x77cd9be126d2c0e4;

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Computes x = normals of stream 7 from number `first` on, on the device. */
static void normals(Device *dev, Tensor x, int64_t first)
{
    Tensor far = device_put(dev, x);
    op_normal(dev, far, 42, &(Segment){.stream = 7, .first = first}, 1);
    device_take(dev, x, far);
}

static void normals_have_the_same_bits_on_every_device(void **state)
{
    (void)state;
    static double wide[NORMALS];
    static float narrow[NORMALS];
    static uint16_t half[2][NORMALS];
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        /* A device without f64 leaves the CPU's numbers in `wide`, with which its own are
         * compared. */
        if (dev->ops_f64) normals(dev, tensor_1d(wide, F64, NORMALS), 0);
        normals(dev, tensor_1d(narrow, F32, NORMALS), 0);
        normals(dev, tensor_1d(half[0], BF16, NORMALS), 0);
        normals(dev, tensor_1d(half[1], F16, NORMALS), 0);
        for (int k = 0; k < 8; k++) {
            uint64_t bits;
            memcpy(&bits, &wide[k], sizeof bits);
            if (bits != golden_normal[k])
                fail_msg("%s: normal %d is %a (0x%016llx)", devices.item[i].name, k, wide[k],
                         (unsigned long long)bits);
        }
        uint64_t h = hash_of(wide, sizeof wide);
        if (h != golden_hash)
            fail_msg("%s: hash 0x%016llx", devices.item[i].name, (unsigned long long)h);
        for (int k = 0; k < NORMALS; k++) {
            assert_true(narrow[k] == (float)wide[k]);
            assert_true(half[0][k] == bf16_from_f32((float)wide[k]));
            assert_true(half[1][k] == f16_from_f32((float)wide[k]));
        }
        /* A part computed alone, even from an odd index on, has the same bits. */
        static float part[301];
        normals(dev, tensor_1d(part, F32, 301), 517);
        assert_memory_equal(part, narrow + 517, sizeof part);
        static double wide_part[301];
        if (dev->ops_f64 == NULL) continue;
        normals(dev, tensor_1d(wide_part, F64, 301), 517);
        assert_memory_equal(wide_part, wide + 517, sizeof wide_part);
    }
}

enum { ROWS = 23, WHOLE = 90, GUARD = 3 };

/* Returns element e of the whole parameter in the type: op_normal in f64, then scalar rounding. */
static double whole_normal(const double *whole, DType type, int64_t e)
{
    double cell;
    dtype_set(type, &cell, 0, type == F64 ? whole[e] : (double)(float)whole[e]);
    return dtype_get(type, &cell, 0);
}

/* Computes columns [first, first + cols) of a parameter of ROWS x WHOLE in pieces of `step`
 * elements. The memory before and after must not change. */
static void check_part(TestDevice *d, DType type, const double *whole, int64_t first, int64_t cols,
                       int64_t step)
{
    double host[ROWS * WHOLE + 2 * GUARD];
    for (int64_t at = 0; at < ROWS * cols; at += step) {
        int64_t n = at + step < ROWS * cols ? step : ROWS * cols - at;
        Segment part = {
            .stream = 7, .start = -at, .first = first, .cols = cols, .whole_cols = WHOLE};
        Tensor here = tensor_1d(memset(host, 0, sizeof host), type, n + 2 * GUARD),
               far = device_put(&d->device, here);
        op_normal(&d->device,
                  tensor_1d((char *)far.data + GUARD * (int64_t)dtype_size(type), type, n), 42,
                  &part, 1);
        device_take(&d->device, here, far);
        for (int64_t i = 0; i < n + 2 * GUARD; i++) {
            int64_t k = at + i - GUARD, e = first + k / cols * WHOLE + k % cols;
            bool inside = i >= GUARD && i < n + GUARD;
            double want = inside ? whole_normal(whole, type, e) : 0, got = dtype_get(type, host, i);
            if (got != want)
                fail_msg("%s: %s, columns %lld + %lld, run of %lld at %lld, place %lld: %a, not %a",
                         d->name, dtype_name(type), (long long)first, (long long)cols, (long long)n,
                         (long long)at, (long long)(i - GUARD), got, want);
        }
    }
}

/* A rank with some of the columns, computed in pieces that begin and end within rows, gets the same
 * numbers as a rank with all columns. */
static void normals_do_not_depend_on_how_a_parameter_is_split(void **state)
{
    (void)state;
    static double whole[ROWS * WHOLE];
    const int64_t step[] = {13, 64, 251, ROWS * WHOLE};
    normals(&devices.item[0].device, tensor_1d(whole, F64, ROWS * WHOLE), 0);
    for (int i = 0; i < devices.count; i++)
        for (DType type = F64; type <= F16; type++)
            for (int ranks = 1; ranks <= 5; ranks += 1 + ranks / 2)
                for (size_t s = 0; s < sizeof step / sizeof *step; s++) {
                    int64_t cols = WHOLE / ranks;
                    bool rare = type > F32 || devices.item[i].cuda;
                    if (!device_has_storage(&devices.item[i].device, type)) continue;
                    if (rare && s < 1)
                        continue; /* pieces of step[0] elements would take too many calls */
                    for (int rank = 0; rank < ranks; rank++)
                        check_part(&devices.item[i], type, whole, rank * cols, cols, step[s]);
                }
}

/* The mean, variance, fourth moment and products of neighbours are within four standard deviations
 * of those of a normal distribution. */
static void normals_have_the_moments_of_a_normal_distribution(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    double *x = must_alloc(COUNT * sizeof *x), sum[4] = {0}, n = COUNT;
    op_normal(&devices.item[0].device, tensor_1d(x, F64, COUNT), 1, &(Segment){.stream = 2}, 1);
    for (int i = 0; i < COUNT; i++) {
        sum[0] += x[i];
        sum[1] += x[i] * x[i];
        sum[2] += x[i] * x[i] * x[i] * x[i];
        if (i > 0) sum[3] += x[i] * x[i - 1];
    }
    free(x);
    assert_true(fabs(sum[0] / n) < 4 / sqrt(n));
    assert_true(fabs(sum[1] / n - 1) < 4 * sqrt(2 / n));
    assert_true(fabs(sum[2] / n - 3) < 4 * sqrt(96 / n));
    assert_true(fabs(sum[3] / n) < 4 / sqrt(n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_reproduces_its_published_test_vectors),
        cmocka_unit_test(normals_have_the_same_bits_on_every_device),
        cmocka_unit_test(normals_do_not_depend_on_how_a_parameter_is_split),
        cmocka_unit_test(normals_have_the_moments_of_a_normal_distribution),
    };
    return cmocka_run_group_tests_name("random numbers", tests, devices_setup, devices_teardown);
}
