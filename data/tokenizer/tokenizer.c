/* tokenizer.c -- builds a vocabulary from merges, answers queries about it, and decodes ids to
 * text. */
#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "model/core/check.h"
#include "model/core/hash.h"

#include <stdlib.h>
#include <string.h>

int byte_of_order(int k)
{
    if (k < 94) return 33 + k;
    if (k < 106) return 161 + (k - 94);
    if (k < 188) return 174 + (k - 106);
    k -= 188;
    if (k < 33) return k;
    return k < 67 ? 127 + (k - 33) : 173;
}

uint32_t char_of_byte(int byte)
{
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (printable) return (uint32_t)byte;
    if (byte <= 32) return 256 + (uint32_t)byte;
    return byte == 173 ? 256 + 67 : 256 + 33 + (uint32_t)(byte - 127);
}

Tokenizer *vocabulary_create(int64_t vocab_size, int64_t n_merges)
{
    CHECK(vocab_size > 0 && vocab_size <= INT32_MAX && n_merges >= 0 && n_merges <= vocab_size,
          "%lld ids, %lld merges", (long long)vocab_size, (long long)n_merges);
    Tokenizer *t = must_calloc(1, sizeof *t);
    t->vocab_size = (int32_t)vocab_size;
    t->end_of_text = -1;
    for (int i = 0; i < N_BYTES; i++)
        t->byte_id[i] = -1;
    t->merge = must_calloc((size_t)n_merges + 1, sizeof *t->merge);
    t->merged = must_calloc((size_t)n_merges + 1, sizeof *t->merged);
    t->start = must_calloc((size_t)vocab_size, sizeof *t->start);
    t->length = must_calloc((size_t)vocab_size, sizeof *t->length);
    t->special = must_calloc((size_t)vocab_size, sizeof *t->special);
    pair_table_init(&t->rank, n_merges);
    return t;
}

void tokenizer_free(Tokenizer *t)
{
    if (t == NULL) return;
    for (int32_t i = 0; i < t->vocab_size; i++)
        free(t->special[i]);
    pair_table_free(&t->rank);
    free(t->merge);
    free(t->merged);
    free(t->bytes);
    free(t->start);
    free(t->length);
    free(t->special);
    free(t);
}

void vocabulary_set_token(Tokenizer *t, int32_t id, const uint8_t *bytes, int64_t size)
{
    if (t->n_bytes + size > t->bytes_capacity) {
        t->bytes_capacity = 2 * (t->n_bytes + size) + 4096;
        t->bytes = must_realloc(t->bytes, (size_t)t->bytes_capacity);
    }
    memcpy(t->bytes + t->n_bytes, bytes, (size_t)size);
    t->start[id] = t->n_bytes;
    t->length[id] = (int32_t)size;
    t->n_bytes += size;
    if (size == 1) t->byte_id[bytes[0]] = id;
}

bool vocabulary_add_merge(Tokenizer *t, int32_t left, int32_t right, int32_t merged)
{
    if (pair_table_get(&t->rank, left, right) >= 0) return false;
    pair_table_set(&t->rank, left, right, t->n_merges);
    t->merge[t->n_merges] = (Merge){.left = left, .right = right};
    t->merged[t->n_merges++] = merged;
    return true;
}

/* Sets token `id` to the joined bytes of two others. Returns false if `seen` already has a token
 * with the same bytes. */
static bool set_joined(Tokenizer *t, WordTable *seen, int32_t id, Merge m)
{
    int64_t size = (int64_t)t->length[m.left] + t->length[m.right];
    uint8_t *joined = must_alloc((size_t)size);
    memcpy(joined, t->bytes + t->start[m.left], (size_t)t->length[m.left]);
    memcpy(joined + t->length[m.left], t->bytes + t->start[m.right], (size_t)t->length[m.right]);
    bool added;
    word_table_add(seen, joined, size, &added);
    if (added) vocabulary_set_token(t, id, joined, size);
    free(joined);
    return added;
}

static bool add_merges(Tokenizer *t, WordTable *seen, const Merge *merge, int64_t n_merges,
                       char *err, size_t n)
{
    for (int64_t i = 0; i < n_merges; i++) {
        int32_t id = (int32_t)(N_BYTES + i);
        Merge m = merge[i];
        if (m.left < 0 || m.right < 0 || m.left >= id || m.right >= id)
            return error_set(err, n, "merge %lld joins ids %d and %d, but only ids below %d exist",
                             (long long)i, m.left, m.right, id);
        /* Limit the length, so that a malicious file cannot double a token's length with every
         * merge. */
        if ((int64_t)t->length[m.left] + t->length[m.right] > MAX_TOKEN_BYTES)
            return error_set(err, n, "merge %lld makes a token of more than %d bytes", (long long)i,
                             (int)MAX_TOKEN_BYTES);
        if (!set_joined(t, seen, id, m))
            return error_set(err, n, "merge %lld makes a token that is already there",
                             (long long)i);
        vocabulary_add_merge(t, m.left, m.right, id);
    }
    return true;
}

bool tokenizer_from_merges(const Merge *merge, int64_t n_merges, Tokenizer **out, char *err,
                           size_t n)
{
    *out = NULL;
    if (n_merges < 1 || n_merges > MAX_VOCAB - N_BYTES - 1)
        return error_set(err, n, "%lld merges: a tokenizer needs between 1 and %d",
                         (long long)n_merges, (int)(MAX_VOCAB - N_BYTES - 1));
    Tokenizer *t = vocabulary_create(N_BYTES + n_merges + 1, n_merges);
    WordTable seen;
    word_table_init(&seen);
    for (int32_t k = 0; k < N_BYTES; k++) {
        uint8_t byte = (uint8_t)byte_of_order(k);
        vocabulary_set_token(t, k, &byte, 1);
        word_table_add(&seen, &byte, 1, NULL);
    }
    bool good = add_merges(t, &seen, merge, n_merges, err, n);
    word_table_free(&seen);
    if (!good) {
        tokenizer_free(t);
        return false;
    }
    t->end_of_text = t->vocab_size - 1;
    t->special[t->end_of_text] = must_strdup(END_OF_TEXT);
    *out = t;
    return true;
}

int32_t tokenizer_vocab_size(const Tokenizer *t)
{
    return t->vocab_size;
}

int64_t tokenizer_merge_count(const Tokenizer *t)
{
    return t->n_merges;
}

Merge tokenizer_merge(const Tokenizer *t, int64_t k)
{
    CHECK(k >= 0 && k < t->n_merges, "merge %lld of %d", (long long)k, t->n_merges);
    return t->merge[k];
}

int32_t tokenizer_merged(const Tokenizer *t, int64_t k)
{
    CHECK(k >= 0 && k < t->n_merges, "merge %lld of %d", (long long)k, t->n_merges);
    return t->merged[k];
}

const char *tokenizer_pattern_name(const Tokenizer *t)
{
    (void)t;
    return "gpt-2";
}

TokenKind tokenizer_kind(const Tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->vocab_size) return TOKEN_UNUSED;
    if (t->special[id] != NULL) return TOKEN_SPECIAL;
    return t->length[id] > 0 ? TOKEN_TEXT : TOKEN_UNUSED;
}

char *tokenizer_spelling(const Tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->vocab_size) return must_strdup("");
    return t->special[id] ? must_strdup(t->special[id]) : chars_of_token(t, id);
}

int32_t tokenizer_end_of_text(const Tokenizer *t)
{
    return t->end_of_text;
}

const uint8_t *tokenizer_token(const Tokenizer *t, int32_t id, int64_t *size)
{
    *size = 0;
    if (id < 0 || id >= t->vocab_size || t->length[id] == 0) return NULL;
    *size = t->length[id];
    return t->bytes + t->start[id];
}

const char *tokenizer_special(const Tokenizer *t, int32_t id)
{
    return id < 0 || id >= t->vocab_size ? NULL : t->special[id];
}

const int32_t *tokenizer_token_bytes(const Tokenizer *t)
{
    return t->length;
}

uint64_t tokenizer_hash(const Tokenizer *t)
{
    uint64_t h = hash_bytes(1, &t->vocab_size, sizeof t->vocab_size);
    h = hash_bytes(h, t->byte_id, sizeof t->byte_id);
    h = hash_bytes(h, t->merge, t->n_merges * (int64_t)sizeof *t->merge);
    h = hash_bytes(h, t->merged, t->n_merges * (int64_t)sizeof *t->merged);
    for (int32_t i = 0; i < t->vocab_size; i++)
        if (t->special[i]) {
            h = hash_mix(h, (uint64_t)i);
            h = hash_bytes(h, t->special[i], (int64_t)strlen(t->special[i]));
        }
    return h;
}

char *tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t count, bool with_specials,
                       int64_t *size)
{
    int64_t total = 0;
    /* The first pass computes the length, the second copies the bytes. */
    for (int pass = 0;; pass++) {
        char *text = pass ? must_alloc((size_t)total + 1) : NULL;
        total = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t length;
            const void *bytes = tokenizer_token(t, ids[i], &length);
            const char *special = with_specials ? tokenizer_special(t, ids[i]) : NULL;
            if (special) {
                bytes = special;
                length = (int64_t)strlen(special);
            }
            if (text && length > 0) memcpy(text + total, bytes, (size_t)length);
            total += length;
        }
        if (text) {
            text[total] = 0;
            if (size) *size = total;
            return text;
        }
    }
}
