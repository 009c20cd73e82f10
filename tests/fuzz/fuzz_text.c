/* fuzz_text.c -- fuzz target: reads any bytes as plain text and as JSON lines, whole and in small
 * pieces. Accepted text must be UTF-8 without NUL and CRLF. The bytes are also unpacked, if they
 * begin like packed ones. */
#include "data/text/text.h"
#include "data/text/text_parser.h"
#include "data/text/unpack.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"
#include "model/core/utf8.h"
#include "tests/support/files/data_support.h"

#include <string.h>

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

/* Reads the bytes in pieces of 1 to 5, which must give the text or the error of reading them at
 * once. */
static void check_pieces(const char *name, const uint8_t *data, size_t size, const Text *whole,
                         bool good, const char *error, bool skip)
{
    char err[512] = "";
    Text text = {0};
    TextParser p;
    text_parser_begin(&p, &text, name, &(TextOptions){.skip_bad_lines = skip});
    bool same = true;
    for (size_t at = 0, some; same && at < size; at += some) {
        some = 1 + (at * 7 + size) % 5;
        if (some > size - at) some = size - at;
        same = text_parser_add(&p, data + at, (int64_t)some, err, sizeof err);
    }
    same = same && text_parser_end(&p, err, sizeof err);
    text_parser_free(&p);
    CHECK(same == good, "%s in pieces: %s; at once: %s", name, err, error);
    if (good)
        CHECK(text.size == whole->size && text.n_documents == whole->n_documents &&
                  memcmp(text.bytes, whole->bytes, (size_t)text.size) == 0 &&
                  text.notes.crlf == whole->notes.crlf && text.notes.marks == whole->notes.marks &&
                  text.notes.bad_lines == whole->notes.bad_lines,
              "%s in pieces is another text", name);
    else
        CHECK(strcmp(err, error) == 0, "%s in pieces: %s; at once: %s", name, err, error);
    text_free(&text);
}

static void read_both_ways(const char *name, const uint8_t *data, size_t size, bool skip)
{
    char err[512] = "";
    Text text = {0};
    bool good = text_add_file(&text, name, (const char *)data, size,
                              &(TextOptions){.skip_bad_lines = skip}, err, sizeof err);
    if (good) check_text(&text);
    check_pieces(name, data, size, &text, good, err, skip);
    text_free(&text);
}

/* Unpacks the bytes, with little room. */
static void check_unpacking(const uint8_t *data, int64_t size)
{
    char err[512];
    uint8_t out[100];
    int64_t at = 0, got = 1;
    Packed kind = unpack_kind(data, size);
    unpack_may_be_text("fuzz", data, size, err, sizeof err);
    Unpacker *u = kind == PACKED_NOT ? NULL : unpacker_open(kind, "fuzz", NULL, err, sizeof err);
    for (int i = 0; u != NULL && got > 0 && i < 1000; i++) {
        got = unpacker_run(u, data, size, &at, out, sizeof out, err, sizeof err);
        CHECK(got <= (int64_t)sizeof out && at >= 0 && at <= size, "%lld bytes, at %lld of %lld",
              (long long)got, (long long)at, (long long)size);
    }
    unpacker_close(u);
}

/* Returns the splitter of a pattern. Its table takes longer to make than most inputs to split. */
static const Splitter *splitter_of(SplitPattern pattern)
{
    static Splitter made[SPLIT_PATTERNS];
    if (made[pattern].class_of == NULL) splitter_init(&made[pattern], pattern);
    return &made[pattern];
}

/* Splits the bytes into words, and checks that one ends at each place where word_border says so. */
static void check_words(SplitPattern pattern, const uint8_t *data, int64_t size)
{
    const Splitter *splitter = splitter_of(pattern);
    for (int64_t at = 0; at < size;) {
        int64_t length = word_length(splitter, data + at, size - at);
        CHECK(length >= 1 && length <= size - at, "a word of %lld bytes", (long long)length);
        for (int64_t i = at + 1; i < at + length; i++)
            CHECK(!word_border(splitter, data, size, i), "pattern %d: a word goes on at byte %lld",
                  pattern, (long long)i);
        at += length;
    }
}

int fuzz_text(const uint8_t *data, size_t size)
{
    read_both_ways("fuzz.txt", data, size, false);
    read_both_ways("fuzz.jsonl", data, size, false);
    read_both_ways("fuzz.jsonl", data, size, true);
    check_unpacking(data, (int64_t)size);
    for (SplitPattern p = 0; p < SPLIT_PATTERNS; p++)
        check_words(p, data, (int64_t)size);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_text(data, size);
}
