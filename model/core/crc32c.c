/* crc32c.c -- implements crc32c.h. The polynomial is 0x1edc6f41; with its bits reflected,
 * 0x82f63b78. */
#include "model/core/crc32c.h"

#include <nmmintrin.h>
#include <stdbool.h>
#include <string.h>

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n)
{
    /* CRC remainders of the 16 four-bit values; each byte takes two look-ups. */
    static const uint32_t step[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                      0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                      0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                      0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const unsigned char *p = data;
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ step[crc & 15];
        crc = crc >> 4 ^ step[crc & 15];
    }
    return ~crc;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data,
                                                               size_t n)
{
    const unsigned char *p = data;
    uint64_t sum = ~crc; /* inverted at both ends, so that leading zero bytes change the sum */
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        sum = _mm_crc32_u64(sum, word);
    }
    for (; n > 0; n--, p++)
        sum = _mm_crc32_u8((uint32_t)sum, *p);
    return ~(uint32_t)sum;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
    bool native = __builtin_cpu_supports("sse4.2");
    return native ? crc32c_sse42(crc, data, n) : crc32c_portable(crc, data, n);
}
