/* fuzz_tokenizer.c -- fuzz target: reads any bytes as a tokenizer file. An accepted tokenizer must
 * decode what it encodes to the same text, must encode in parts as it encodes at once, and must be
 * unchanged after it is written and read again. */
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <stdlib.h>
#include <string.h>

/* Appends the text that ids of `text` decode to: what is left after the changes that the tokenizer
 * makes before it encodes. */
static void append_changed(const Tokenizer *t, const uint8_t *text, int64_t size, ByteBuffer *out)
{
    ByteBuffer composed = {0};
    if (t->nfc)
        nfc_compose(t->nfc, text, size, &composed);
    else
        byte_buffer_add(&composed, text, size);
    for (int64_t at = 0; at < composed.size; at++) {
        const uint8_t *s = composed.byte + at;
        bool mark =
            t->rules.characters && composed.size - at >= 3 && memcmp(s, "\342\226\201", 3) == 0;
        if (mark) byte_buffer_add(out, " ", 1);
        if (mark) at += 2;
        if (!mark && t->byte_id[*s] >= 0) byte_buffer_add(out, s, 1);
    }
    free(composed.byte);
}

/* Spaces are put before text, and added tokens may take white space with them: then only the number
 * of ids of both ways of encoding is compared. */
static bool keeps_text(const Tokenizer *t)
{
    return t->rules.prefix == PREFIX_NONE && !t->added.plain[0] && !t->added.plain[1];
}

static void check_round_trip(const Tokenizer *t, const uint8_t *text, int64_t size)
{
    Encoder *e = encoder_create(t);
    TokenBuffer ids = {0}, parts = {0};
    ByteBuffer changed = {0};
    int64_t back_size;
    encoder_encode(e, text, size, &ids);
    for (int64_t at = 0, end; at < size; at = end) {
        end = encoder_cut(e, text, size, at + 5);
        encoder_encode_part(e, text, at, end, &parts);
    }
    CHECK(ids.count == parts.count &&
              memcmp(ids.id, parts.id, (size_t)ids.count * sizeof *ids.id) == 0,
          "%lld ids at once, %lld in parts", (long long)ids.count, (long long)parts.count);
    char *back = tokenizer_decode(t, ids.id, ids.count, false, &back_size);
    append_changed(t, text, size, &changed);
    CHECK(!keeps_text(t) ||
              (back_size == changed.size && memcmp(back, changed.byte, (size_t)back_size) == 0),
          "%lld bytes came back as %lld", (long long)size, (long long)back_size);
    free(back);
    free(changed.byte);
    token_buffer_free(&ids);
    token_buffer_free(&parts);
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

static void check_tokenizer(Tokenizer *t, const uint8_t *data, size_t size)
{
    static const uint8_t text[] =
        "the beginning of the heaven and it's 1234\n\n  caf\303\251 e\314\201 \377\376<s>";
    check_round_trip(t, text, sizeof text - 1);
    check_round_trip(t, data, size < 300 ? (int64_t)size : 300);
    check_written(t);
    tokenizer_free(t);
}

int fuzz_tokenizer(const uint8_t *data, size_t size)
{
    static const SpecialName end = {END_OF_TEXT, 300};
    const TokenizerRules rules = {.split = SPLIT_LLAMA3};
    Tokenizer *t;
    char err[512];
    const char *chars = (const char *)data;
    if (tokenizer_parse("fuzz", chars, size, &t, err, sizeof err)) check_tokenizer(t, data, size);
    /* The smallest .tiktoken file of a known size has a megabyte, so its lines are read as any. */
    if (tiktoken_recognised(chars, size) &&
        tiktoken_parse_as("fuzz", chars, size, rules, &end, 1, &t, err, sizeof err))
        check_tokenizer(t, data, size);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_tokenizer(data, size);
}
