/* test_ops_hash.c -- tests op_hash against a hash written down here, on every device: every type,
 * any number of bytes, unaligned addresses, parts, and every single changed bit. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300000 };

/* Returns the hash that op_hash must give. Unlike the op, reads single bytes, and from the last
 * word to the first. */
static uint64_t oracle(const uint8_t *bytes, size_t n, uint64_t first)
{
    const uint64_t factor = 0xD6E8FEB86659FD93u;
    uint64_t sum = 0;
    for (size_t word = (n + 7) / 8; word-- > 0;) {
        uint64_t x = 0;
        for (size_t i = 8 * word; i < n && i < 8 * word + 8; i++)
            x += (uint64_t)bytes[i] << (8 * (i % 8));
        x ^= (first + word + 1) * 0x9E3779B97F4A7C15u;
        for (int round = 0; round < 2; round++)
            x = (x ^ (x >> 32)) * factor;
        sum += x ^ (x >> 32);
    }
    return sum;
}

static uint8_t *drawn_bytes(uint64_t seed)
{
    uint8_t *bytes = must_alloc(MOST);
    for (int i = 0; i < MOST; i++)
        bytes[i] = (uint8_t)(drawn_uniform(seed, i) * 256);
    return bytes;
}

/* Returns the hash of `x`, which is on the device, added to `before`. */
static uint64_t hash_of(Device *dev, uint64_t before, Tensor x, int64_t first)
{
    Tensor sum = device_put(dev, tensor_1d(&before, I64, 1));
    op_hash(dev, sum, x, first);
    device_take(dev, tensor_1d(&before, I64, 1), sum);
    return before;
}

static void expect_hash(const TestDevice *d, uint64_t got, uint64_t want, const char *what,
                        int64_t n)
{
    if (got != want)
        fail_msg("%s: the hash of %lld %s is %016llx, not %016llx", d->name, (long long)n, what,
                 (unsigned long long)got, (unsigned long long)want);
}

static void hashes_equal_the_oracle_for_every_type_and_size(void **state)
{
    static const int64_t size[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 1023, 4096, 4097, MOST / 8};
    (void)state;
    uint8_t *bytes = drawn_bytes(71);
    for (int i = 0; i < devices.count; i++)
        for (DType t = F64; t < DTYPE_COUNT; t++)
            for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
                Device *dev = &devices.item[i].device;
                Tensor x = device_put(dev, tensor_1d(bytes, t, size[k]));
                uint64_t got = hash_of(dev, 5, x, 0), again = hash_of(dev, 5, x, 0);
                expect_hash(&devices.item[i], got, 5 + oracle(bytes, tensor_bytes(x), 0),
                            dtype_name(t), size[k]);
                assert_true(got == again);
                device_drop(dev, x);
            }
    free(bytes);
}

/* On a device, packs of two words are read only from addresses that are multiples of 16, so some
 * parts here begin at other multiples of 8. */
static void the_hash_of_a_tensor_is_the_sum_of_the_hashes_of_its_parts(void **state)
{
    static const int64_t cut[] = {0, 8, 24, 4096, 100008, 299992, MOST - 1};
    enum { PARTS = sizeof cut / sizeof *cut - 1 };
    (void)state;
    uint8_t *bytes = drawn_bytes(72);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        Tensor x = device_put(dev, tensor_1d(bytes, U8, MOST));
        uint64_t sum = 0, far = 0;
        for (int k = PARTS; k-- > 0;) {
            Tensor part = tensor_slice_rows(x, cut[k], cut[k + 1] - cut[k]);
            sum = hash_of(dev, sum, part, cut[k] / 8);
            far = hash_of(dev, far, part, ((int64_t)1 << 40) + cut[k] / 8);
        }
        expect_hash(&devices.item[i], sum, oracle(bytes, MOST - 1, 0), "bytes in parts", MOST - 1);
        expect_hash(&devices.item[i], far, oracle(bytes, MOST - 1, (uint64_t)1 << 40),
                    "bytes far behind", MOST - 1);
        device_drop(dev, x);
    }
    free(bytes);
}

/* Flips each bit of some words, zeros and random ones, and then exchanges two words. The hash must
 * change each time. */
static void every_flipped_bit_and_every_exchange_of_words_changes_the_hash(void **state)
{
    enum { WORDS = 5 };
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (int kind = 0; kind < 2; kind++) {
            Device *dev = &devices.item[i].device;
            uint64_t word[WORDS] = {0};
            for (int k = 0; k < WORDS && kind; k++)
                word[k] = (uint64_t)(drawn_uniform(73, k) * 0x1p53);
            Tensor x = device_put(dev, tensor_1d(word, I64, WORDS));
            uint64_t whole = hash_of(dev, 0, x, 0);
            device_drop(dev, x);
            for (int bit = 0; bit < 64 * WORDS; bit++) {
                word[bit / 64] ^= (uint64_t)1 << (bit % 64);
                x = device_put(dev, tensor_1d(word, I64, WORDS));
                if (hash_of(dev, 0, x, 0) == whole)
                    fail_msg("%s: bit %d does not change the hash", devices.item[i].name, bit);
                device_drop(dev, x);
                word[bit / 64] ^= (uint64_t)1 << (bit % 64);
            }
            uint64_t third = word[2];
            word[2] = word[3];
            word[3] = third;
            x = device_put(dev, tensor_1d(word, I64, WORDS));
            assert_true((hash_of(dev, 0, x, 0) == whole) == (word[2] == word[3]));
            device_drop(dev, x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_equal_the_oracle_for_every_type_and_size),
        cmocka_unit_test(the_hash_of_a_tensor_is_the_sum_of_the_hashes_of_its_parts),
        cmocka_unit_test(every_flipped_bit_and_every_exchange_of_words_changes_the_hash),
    };
    return cmocka_run_group_tests_name("hashes", tests, devices_setup, devices_teardown);
}
