/* fuzz_meta.c -- fuzz target: reads any bytes as the meta.json of prepared tokens. If a file is
 * accepted, each split must have a checksum for every shard, or none at all. */
#include "data/text/meta.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

int fuzz_meta(const uint8_t *data, size_t size)
{
    Meta m;
    uint64_t sum = 0;
    if (!meta_parse(&m, (const char *)data, size)) return 0;
    for (int k = 0; k < SPLITS; k++) {
        const SplitSize *s = &m.split[k];
        CHECK(s->bytes >= 0 && s->tokens >= 0 && s->shards >= 0, "split %d", k);
        for (int64_t i = 0; m.checksum[k] != NULL && i < s->shards; i++)
            sum += m.checksum[k][i]; /* reads every checksum */
    }
    meta_free(&m);
    return (int)(sum & 1); /* uses the sum, so that the compiler keeps the reads */
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_meta(data, size);
    return 0;
}
