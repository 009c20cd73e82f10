/* crc32c.h -- the CRC-32C (Castagnoli) checksum of RFC 3720, computed by the CPU's own instruction
 * if it has one.
 *
 * In data of less than 2^31 bits (256 MiB), the checksum detects every change of up to three bits
 * and every burst of errors that is at most 32 bits long. */
#ifndef MODEL_CORE_CRC32C_H
#define MODEL_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues the checksum `crc` (0 at the start) over n more bytes: crc32c(crc32c(0, a), b) is the
 * checksum of a followed by b. crc32c(0, "123456789", 9) is e3069283. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* Computes the same checksum without the CPU's instruction. Older CPUs use it, and tests compare
 * crc32c with it. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);

#endif
