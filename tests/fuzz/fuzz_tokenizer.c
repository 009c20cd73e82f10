/* fuzz_tokenizer.c -- fuzz target: reads any bytes as a tokenizer file. An accepted tokenizer must
 * decode what it encodes to the same text, and must be unchanged after it is written and read
 * again. */
#include "data/tokenizer/tokenizer.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <stdlib.h>
#include <string.h>

static void check_round_trip(const Tokenizer *t, const char *text, size_t size)
{
    Encoder *e = encoder_create(t);
    TokenBuffer ids = {0};
    int64_t back_size;
    encoder_encode(e, (const uint8_t *)text, (int64_t)size, &ids);
    char *back = tokenizer_decode(t, ids.id, ids.count, false, &back_size);
    CHECK(back_size == (int64_t)size && memcmp(back, text, size) == 0,
          "%zu bytes came back as %lld", size, (long long)back_size);
    free(back);
    token_buffer_free(&ids);
    encoder_free(e);
}

/* Checks that a tokenizer that is written as JSON is read back as the same tokenizer. */
static void check_written(const Tokenizer *t)
{
    char err[512] = "", *json = tokenizer_to_json(t);
    Tokenizer *again;
    bool good = tokenizer_parse("again", json, strlen(json), &again, err, sizeof err);
    CHECK(good && tokenizer_hash(again) == tokenizer_hash(t), "%s\n%s", err, json);
    tokenizer_free(again);
    free(json);
}

int fuzz_tokenizer(const uint8_t *data, size_t size)
{
    static const char text[] =
        "the beginning of the heaven and it's 1234\n\n  caf\303\251 \377\376";
    Tokenizer *t;
    char err[512];
    if (!tokenizer_parse("fuzz", (const char *)data, size, &t, err, sizeof err)) return 0;
    check_round_trip(t, text, sizeof text - 1);
    check_round_trip(t, (const char *)data, size < 300 ? size : 300);
    check_written(t);
    tokenizer_free(t);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_tokenizer(data, size);
}
