/* test_crc32c.c -- tests the CRC-32C checksum, with and without the CPU's instruction, whole and in
 * pieces. */
#include "model/core/crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_crc32c_gives_the_published_check_values(void **state)
{
    (void)state;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c_portable(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(0, "", 0), 0);
    unsigned char zeros[32] = {0}; /* RFC 3720, appendix B.4 */
    assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aa);
}

static void test_crc32c_in_pieces_or_without_the_cpu_instruction_is_the_same(void **state)
{
    (void)state;
    unsigned char data[257];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + (i >> 3));
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof data; n += 1 + n / 7) {
            uint32_t whole = crc32c(0, data + from, n);
            assert_int_equal(whole, crc32c_portable(0, data + from, n));
            for (size_t cut = 0; cut <= n; cut += 1 + n / 5)
                assert_int_equal(whole,
                                 crc32c(crc32c(0, data + from, cut), data + from + cut, n - cut));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_gives_the_published_check_values),
        cmocka_unit_test(test_crc32c_in_pieces_or_without_the_cpu_instruction_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
