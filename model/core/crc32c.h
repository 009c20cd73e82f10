/* crc32c.h -- the Castagnoli checksum (RFC 3720), by the CPU's own instruction where it has one.
 *
 * Every flip of up to three bits and every burst of up to 32 bits within a chunk changes it. */
#ifndef MODEL_CORE_CRC32C_H
#define MODEL_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Goes on from `crc` (0 at the start) over n bytes; crc32c(crc32c(0, a), b) is the sum of a
 * followed by b. crc32c(0, "123456789", 9) is e3069283. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* The same without the instruction: what it is tested against, and what older CPUs run. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);

#endif
