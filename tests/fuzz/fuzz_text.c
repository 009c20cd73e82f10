/* fuzz_text.c -- fuzz target: reads any bytes as plain text and as JSON lines. Accepted text must
 * be UTF-8 without NUL and CRLF. */
#include "data/text/text.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"
#include "model/core/utf8.h"
#include "tests/support/files/data_support.h"

static void check_text(const Text *t)
{
    int64_t before = 0;
    for (int64_t d = 0; d < t->n_documents; d++) {
        for (int64_t at = before; at < t->document_end[d];) {
            uint32_t code;
            int length = utf8_decode(t->bytes + at, t->document_end[d] - at, &code);
            CHECK(length > 0 && code != 0, "byte %lld of document %lld", (long long)at,
                  (long long)d);
            bool ends = code == '\r' && at + 1 < t->document_end[d] && t->bytes[at + 1] == '\n';
            CHECK(!ends, "CRLF at byte %lld", (long long)at);
            at += length;
        }
        CHECK(t->document_end[d] >= before && t->document_end[d] <= t->size, "document %lld",
              (long long)d);
        before = t->document_end[d];
    }
    CHECK(before == t->size, "documents end at %lld of %lld", (long long)before,
          (long long)t->size);
    int64_t split = text_split(t, 0.3);
    CHECK(split >= 0 && split <= t->size, "split at %lld of %lld", (long long)split,
          (long long)t->size);
}

int fuzz_text(const uint8_t *data, size_t size)
{
    char err[512];
    Text plain = {0}, lines = {0};
    if (text_add_file(&plain, "fuzz.txt", (const char *)data, size, "text", err, sizeof err))
        check_text(&plain);
    if (text_add_file(&lines, "fuzz.jsonl", (const char *)data, size, "text", err, sizeof err))
        check_text(&lines);
    for (int64_t at = 0; at < (int64_t)size;) {
        int64_t length = word_length(data + at, (int64_t)size - at);
        CHECK(length >= 1 && length <= (int64_t)size - at, "a word of %lld bytes",
              (long long)length);
        at += length;
    }
    text_free(&plain);
    text_free(&lines);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_text(data, size);
}
