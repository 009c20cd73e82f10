/* fuzz_llmc.c -- fuzz target: reads any bytes as the beginning of a model file of llm.c. The size
 * of the file is once that of the input, and once what its header describes, so that the fuzzer
 * gets past the comparison of both. */
#include "tests/fuzz/fuzz_weights.h"

#include "model/core/check.h"
#include "model/weights/llmc.h"

#include <stdlib.h>
#include <string.h>

/* Checks what the reader promises of a header that it accepts. */
static void check_sound(const LlmcHeader *h, const uint8_t *data, int64_t file_bytes)
{
    unsigned char again[LLMC_HEADER_BYTES];
    int count;
    int64_t at = 0;
    llmc_header_bytes(h, again);
    CHECK(memcmp(again, data, sizeof again) == 0, "a header of %lld layers", (long long)h->layers);
    if (h->layers > 100) return;
    LlmcPlace *place = llmc_places(h, &count);
    for (int i = 0; i < count; i++) {
        CHECK(place[i].offset == at && place[i].gap >= 0, "place %d", i);
        at += place[i].tensor.dim[0] * place[i].tensor.dim[1] + place[i].gap;
    }
    CHECK(LLMC_HEADER_BYTES + at * (int64_t)dtype_size(h->dtype) == file_bytes, "%lld elements",
          (long long)at);
    free(place);
}

int fuzz_llmc(const uint8_t *data, size_t n)
{
    LlmcHeader h;
    char err[300];
    int32_t number[8];
    int accepted = llmc_parse(&h, data, n, (int64_t)n, err, sizeof err);
    if (accepted) check_sound(&h, data, (int64_t)n);
    if (n < sizeof number) return accepted;
    memcpy(number, data, sizeof number);
    for (int i = 2; i < 8; i++)
        if (number[i] < 1) return accepted;
    LlmcHeader described = {number[1] == 5 ? BF16 : F32,
                            number[2],
                            number[3],
                            number[4],
                            number[5],
                            number[6],
                            number[7]};
    int64_t bytes = llmc_file_bytes(&described);
    if (!llmc_parse(&h, data, n, bytes, err, sizeof err)) return accepted;
    check_sound(&h, data, bytes);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_llmc(data, n);
    return 0;
}
