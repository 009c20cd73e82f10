/* fuzz_tokens.c -- fuzz target: reads any bytes as the header of a token shard. An accepted header
 * must match the size of the file. */
#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

int fuzz_tokens(const uint8_t *data, size_t size)
{
    TokenFileHeader header;
    char err[512];
    if (token_file_parse_header("fuzz", data, (int64_t)size, &header, err, sizeof err))
        CHECK(token_file_offset(header.width, header.n_tokens) == (int64_t)size,
              "%lld tokens of %d bytes in %zu", (long long)header.n_tokens, header.width, size);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_tokens(data, size);
}
