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
    CHECK(vocab_size > 0 && vocab_size <= INT32_MAX && n_merges >= 0 && n_merges <= MAX_MERGES,
          "%lld ids, %lld merges", (long long)vocab_size, (long long)n_merges);
    Tokenizer *t = must_calloc(1, sizeof *t);
    t->vocab_size = (int32_t)vocab_size;
    t->end_of_text = t->begin = -1;
    for (int i = 0; i < N_BYTES; i++)
        t->byte_id[i] = -1;
    t->merge = must_calloc((size_t)n_merges + 1, sizeof *t->merge);
    t->merged = must_calloc((size_t)n_merges + 1, sizeof *t->merged);
    t->start = must_calloc((size_t)vocab_size, sizeof *t->start);
    t->length = must_calloc((size_t)vocab_size, sizeof *t->length);
    t->kind = must_calloc((size_t)vocab_size, sizeof *t->kind);
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
    free(t->kind);
    free(t->special);
    free(t->post_processor);
    added_free(&t->added);
    splitter_free(&t->splitter);
    nfc_free(t->nfc);
    word_table_free(&t->texts);
    free(t->text_id);
    free(t->byte_pair);
    free(t);
}

void vocabulary_set_token(Tokenizer *t, int32_t id, TokenKind kind, const uint8_t *bytes,
                          int64_t size)
{
    if (t->n_bytes + size > t->bytes_capacity) {
        t->bytes_capacity = 2 * (t->n_bytes + size) + 4096;
        t->bytes = must_realloc(t->bytes, (size_t)t->bytes_capacity);
    }
    memcpy(t->bytes + t->n_bytes, bytes, (size_t)size);
    t->start[id] = t->n_bytes;
    t->length[id] = (int32_t)size;
    t->kind[id] = (uint8_t)kind;
    t->n_bytes += size;
    bool byte = kind == TOKEN_BYTE || (kind == TOKEN_TEXT && !t->rules.characters);
    if (byte && size == 1) t->byte_id[bytes[0]] = id;
}

/* Returns the position of a name in the list of end-of-document names, in which the most specific
 * comes first; -1 if it is not in the list. */
static int end_of_text_place(const char *name)
{
    static const char *const names[] = {END_OF_TEXT, "<|end_of_text|>", "</s>"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

void vocabulary_set_special(Tokenizer *t, int32_t id, const char *name)
{
    t->special[id] = must_strdup(name);
    t->kind[id] = TOKEN_SPECIAL;
    int place = end_of_text_place(name);
    if (place >= 0 && (t->end_of_text < 0 || place < end_of_text_place(t->special[t->end_of_text])))
        t->end_of_text = id;
}

bool vocabulary_add_merge(Tokenizer *t, int32_t left, int32_t right, int32_t merged)
{
    if (pair_table_get(&t->rank, left, right) >= 0) return false;
    pair_table_set_both(&t->rank, left, right, t->n_merges, merged);
    t->merge[t->n_merges] = (Merge){.left = left, .right = right};
    t->merged[t->n_merges++] = merged;
    return true;
}

void vocabulary_add_special(Tokenizer *t, int32_t id, const char *name)
{
    vocabulary_set_special(t, id, name);
    added_append(&t->added, &(AddedToken){.content = t->special[id], .id = id, .special = true});
}

/* Returns whether a token has a space after something else, so that it lies across two words of
 * SPLIT_SPACES. */
static bool has_space_inside(const Tokenizer *t, int32_t id)
{
    const uint8_t *s = t->bytes + t->start[id];
    for (int32_t i = 1; i < t->length[id]; i++)
        if (s[i] == ' ' && s[i - 1] != ' ') return true;
    return false;
}

/* Fills t->texts. With `characters`, all tokens are in it, because a character may be any of them.
 * With `ignore_merges`, only words that merges do not make need a look-up; few vocabularies have
 * any. */
static void fill_texts(Tokenizer *t)
{
    Encoder *e = encoder_create_small(t);
    word_table_init(&t->texts);
    t->text_id = must_alloc((size_t)t->vocab_size * sizeof *t->text_id);
    for (int32_t id = 0; id < t->vocab_size; id++) {
        const uint8_t *bytes = t->bytes + t->start[id];
        if (t->kind[id] != TOKEN_TEXT) continue;
        if (!t->rules.characters && encoder_merges_to(e, bytes, t->length[id], id)) continue;
        t->text_id[word_table_add(&t->texts, bytes, t->length[id], NULL)] = id;
    }
    encoder_free(e);
}

static void fill_inside(Tokenizer *t)
{
    for (int32_t id = 0; id < t->vocab_size; id++) {
        const uint8_t *bytes = t->bytes + t->start[id];
        for (int32_t i = 0; t->kind[id] == TOKEN_TEXT && i + 1 < t->length[id]; i++) {
            unsigned bit = 256u * bytes[i] + bytes[i + 1];
            t->inside[bit / 64] |= (uint64_t)1 << bit % 64;
        }
    }
}

static void fill_byte_pairs(Tokenizer *t)
{
    t->byte_pair = must_alloc((size_t)N_BYTES * N_BYTES * sizeof *t->byte_pair);
    for (int a = 0; a < N_BYTES; a++)
        for (int b = 0; b < N_BYTES; b++) {
            const PairSlot *s = pair_table_find(&t->rank, t->byte_id[a], t->byte_id[b]);
            t->byte_pair[N_BYTES * a + b] =
                s ? (BytePair){.rank = s->value, .made = s->other} : (BytePair){.rank = -1};
        }
}

void vocabulary_finish(Tokenizer *t)
{
    fill_inside(t);
    fill_byte_pairs(t);
    /* SPLIT_SPACES cuts text before spaces. If a token has a space after something else, this would
     * cut the token's text in two, so the whole text becomes one word. */
    for (int32_t id = 0; t->rules.split == SPLIT_SPACES && id < t->vocab_size; id++)
        if (t->kind[id] == TOKEN_TEXT && has_space_inside(t, id)) t->rules.split = SPLIT_WHOLE;
    if (t->rules.ignore_merges || t->rules.characters) fill_texts(t);
    if (t->rules.compose) t->nfc = nfc_create();
    splitter_init(&t->splitter, t->rules.split);
    added_finish(&t->added, t->nfc);
}

/* Sets token `id` to the joined bytes of two other tokens. Returns false if `seen` already has a
 * token with the same bytes. */
static bool set_joined(Tokenizer *t, WordTable *seen, int32_t id, Merge m)
{
    int64_t size = (int64_t)t->length[m.left] + t->length[m.right];
    uint8_t *joined = must_alloc((size_t)size);
    memcpy(joined, t->bytes + t->start[m.left], (size_t)t->length[m.left]);
    memcpy(joined + t->length[m.left], t->bytes + t->start[m.right], (size_t)t->length[m.right]);
    bool added;
    word_table_add(seen, joined, size, &added);
    if (added) vocabulary_set_token(t, id, TOKEN_TEXT, joined, size);
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

bool vocabulary_from_merges(const Merge *merge, int64_t n_merges, SplitPattern split,
                            Tokenizer **out, char *err, size_t n)
{
    *out = NULL;
    if (n_merges < 1 || n_merges > MAX_VOCAB - N_BYTES - 1)
        return error_set(err, n, "%lld merges: a tokenizer needs between 1 and %d",
                         (long long)n_merges, (int)(MAX_VOCAB - N_BYTES - 1));
    Tokenizer *t = vocabulary_create(N_BYTES + n_merges + 1, n_merges);
    t->rules.split = split;
    WordTable seen;
    word_table_init(&seen);
    for (int32_t k = 0; k < N_BYTES; k++) {
        uint8_t byte = (uint8_t)byte_of_order(k);
        vocabulary_set_token(t, k, TOKEN_TEXT, &byte, 1);
        word_table_add(&seen, &byte, 1, NULL);
    }
    bool good = add_merges(t, &seen, merge, n_merges, err, n);
    word_table_free(&seen);
    if (!good) {
        tokenizer_free(t);
        return false;
    }
    vocabulary_add_special(t, t->vocab_size - 1, END_OF_TEXT);
    vocabulary_finish(t);
    *out = t;
    return true;
}

bool tokenizer_from_merges(const Merge *merge, int64_t n_merges, Tokenizer **out, char *err,
                           size_t n)
{
    return vocabulary_from_merges(merge, n_merges, SPLIT_GPT2, out, err, n);
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
    static const char *const names[SPLIT_PATTERNS] = {
        [SPLIT_GPT2] = "gpt-2",
        [SPLIT_LLAMA3] = "llama-bpe",
        [SPLIT_QWEN2] = "qwen2",
        [SPLIT_SMOLLM] = "smollm",
    };
    return names[t->rules.split];
}

bool tokenizer_joins_characters(const Tokenizer *t, bool *space)
{
    *space = t->rules.prefix != PREFIX_NONE;
    return t->rules.characters;
}

TokenKind tokenizer_kind(const Tokenizer *t, int32_t id)
{
    return id < 0 || id >= t->vocab_size ? TOKEN_UNUSED : (TokenKind)t->kind[id];
}

char *tokenizer_spelling(const Tokenizer *t, int32_t id)
{
    TokenKind kind = tokenizer_kind(t, id);
    if (kind == TOKEN_UNUSED) return must_strdup("");
    if (kind == TOKEN_SPECIAL) return must_strdup(t->special[id]);
    const uint8_t *bytes = t->bytes + t->start[id];
    if (kind == TOKEN_BYTE) return text_format("<0x%02X>", bytes[0]);
    if (kind == TOKEN_ADDED) return text_format("%.*s", t->length[id], (const char *)bytes);
    return chars_of_token(t, id);
}

int32_t tokenizer_end_of_text(const Tokenizer *t)
{
    return t->end_of_text;
}

int32_t tokenizer_begin_of_text(const Tokenizer *t)
{
    return t->begin;
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

/* Continues the hash over the rules, and over tokens that only matter under some rules. For a
 * tokenizer that encodes like GPT-2's it adds nothing, so the hashes that older versions stored
 * stay valid. */
static uint64_t hash_rules(const Tokenizer *t, uint64_t h)
{
    const TokenizerRules *r = &t->rules;
    uint64_t rules = (uint64_t)r->split | (uint64_t)r->compose << 8 |
                     (uint64_t)r->ignore_merges << 9 | (uint64_t)r->characters << 10 |
                     (uint64_t)r->prefix << 11;
    if (rules != 0) h = hash_mix(h, rules);
    if (t->begin >= 0) h = hash_mix(hash_mix(h, 1), (uint64_t)t->begin);
    /* Without these two rules, the bytes of a token follow from the merges, which the caller has
     * hashed. */
    for (int32_t i = 0; (r->ignore_merges || r->characters) && i < t->vocab_size; i++)
        h = hash_bytes(hash_mix(h, t->kind[i]), t->bytes + t->start[i], t->length[i]);
    for (int i = 0; i < t->added.count; i++) {
        const AddedToken *a = &t->added.token[i];
        if (a->special) continue;
        h = hash_mix(h, (uint64_t)a->id << 3 | (uint64_t)a->normalized << 2 |
                            (uint64_t)a->lstrip << 1 | (uint64_t)a->rstrip);
        h = hash_bytes(h, a->content, (int64_t)strlen(a->content));
    }
    return h;
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
    return hash_rules(t, h);
}

int64_t tokenizer_unknown_byte(const Tokenizer *t, const uint8_t *text, int64_t size)
{
    bool whole = true;
    for (int b = 0; b < N_BYTES; b++)
        whole = whole && t->byte_id[b] >= 0;
    for (int64_t at = 0; !whole && at < size; at++)
        if (t->byte_id[text[at]] < 0) return at;
    return size;
}
