/* fuzz_events.c -- fuzz target: reads any bytes as a TensorBoard event file that is to be cut back.
 * The part that is kept must be kept again. The checksums of the first record are corrected first,
 * so that the parser behind them is reached. */
#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "parallel/report/tensorboard.h"

#include <stdlib.h>
#include <string.h>

static void put_checksum(uint8_t *to, const uint8_t *data, size_t n)
{
    uint32_t sum = crc32c(0, data, n);
    sum = (sum >> 15 | sum << 17) + 0xa282ead8u;
    memcpy(to, &sum, sizeof sum);
}

static void check_cut(const uint8_t *data, size_t size)
{
    size_t last = 0;
    for (int64_t samples = 0; samples < 1000; samples += 100) {
        size_t kept = events_until(data, size, samples);
        CHECK(kept <= size && kept >= last, "%zu after %zu of %zu bytes", kept, last, size);
        CHECK(events_until(data, kept, samples) == kept, "%zu bytes", kept);
        last = kept;
    }
}

int fuzz_events(const uint8_t *data, size_t size);
int fuzz_events(const uint8_t *data, size_t size)
{
    check_cut(data, size);
    if (size < 16) return 0;
    uint8_t *copy = must_alloc(size);
    uint64_t length = size - 16;
    memcpy(copy, data, size);
    memcpy(copy, &length, sizeof length);
    put_checksum(copy + 8, copy, 8);
    put_checksum(copy + size - 4, copy + 12, length);
    check_cut(copy, size);
    free(copy);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_events(data, size);
    return 0;
}
