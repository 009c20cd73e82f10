/* encoder.c -- encodes text to ids. If the tokenizer asks for it, text is normalized to NFC and
 * added tokens are cut out. The rest is split into words. The ids of known words are taken from a
 * cache, and the symbols of other words are merged (merger.c). */
#include "data/tokenizer/merger.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_WORD_BYTES = 64, /* longer words rarely occur again, so they are not cached */
    CACHE_WORDS = 1 << 18, /* maximum number of cached words */
    SHORT_BITS = 15,       /* log2 of the number of pairs of slots in the cache of short words */
    FEW_BITS = 8,          /* log2 of that number in an encoder for short text */
    SHORT_BYTES = 15,
    SHORT_IDS = 4,
    COUNT_BITS = 4,  /* a short word's key[1] has the number of its ids in its highest bits */
    MANY_IDS = 15,   /* the value of these bits if the slot has no room for the ids */
    SIZE_SHIFT = 56, /* from this bit of key[1] on: the number of the word's bytes */
    CACHE_LINE = 64,
    WORDS_AHEAD = 16, /* how many words ahead slots are prefetched */
};

/* A slot of the cache of short words: a word's bytes, followed by zeros, and its ids. Two slots
 * share one cache line of the processor. A word may be in either slot; the word that was looked up
 * last is in the first. */
typedef struct {
    uint64_t key[2];
    int32_t id[SHORT_IDS];
} ShortWord;

struct Encoder {
    const Tokenizer *tokenizer;
    bool specials;         /* text may produce special tokens */
    int short_bits;        /* SHORT_BITS or FEW_BITS */
    ShortWord *short_word; /* (2 << short_bits) slots, aligned to a cache line */
    void *short_words;     /* the allocated memory that contains short_word */
    WordTable words;
    TokenBuffer remembered; /* ids of all cached words, in the order of the table */
    /* (CACHE_WORDS + 1) where the ids of word w start in `remembered`; they end at first[w + 1] */
    int64_t *first;
    Merger merger;
    ByteBuffer composed, prefixed;
};

static Encoder *create(const Tokenizer *t, int short_bits)
{
    Encoder *e = must_calloc(1, sizeof *e);
    e->tokenizer = t;
    word_table_init(&e->words);
    /* `first` is not cleared, because this would take longer than encoding a prompt: each entry is
     * set when its word is added. */
    e->first = must_alloc((CACHE_WORDS + 1) * sizeof *e->first);
    e->first[0] = 0;
    e->short_bits = short_bits;
    e->short_words = must_calloc(((size_t)2 << short_bits) + 2, sizeof *e->short_word);
    uintptr_t at = (uintptr_t)e->short_words;
    e->short_word = (ShortWord *)((at + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    return e;
}

Encoder *encoder_create(const Tokenizer *t)
{
    return create(t, SHORT_BITS);
}

Encoder *encoder_create_small(const Tokenizer *t)
{
    return create(t, FEW_BITS);
}

void encoder_allow_specials(Encoder *e)
{
    e->specials = true;
}

void encoder_free(Encoder *e)
{
    if (e == NULL) return;
    word_table_free(&e->words);
    token_buffer_free(&e->remembered);
    free(e->first);
    free(e->short_words);
    free(e->composed.byte);
    free(e->prefixed.byte);
    merger_free(&e->merger);
    free(e);
}

/* Sets the word's symbols to its bytes, except those without a token. Returns their number. */
static int64_t start_from_bytes(const Tokenizer *t, const uint8_t *word, int64_t size, int32_t *id)
{
    int64_t count = 0;
    for (int64_t i = 0; i < size; i++) {
        id[count] = t->byte_id[word[i]];
        count += id[count] >= 0;
    }
    return count;
}

/* Sets the word's symbols to its characters, and to the bytes of characters that have no token. A
 * space is looked up as U+2581. */
static int64_t start_from_characters(const Tokenizer *t, const uint8_t *word, int64_t size,
                                     int32_t *id)
{
    int64_t count = 0;
    for (int64_t at = 0; at < size;) {
        uint32_t code;
        int length = utf8_decode(word + at, size - at, &code);
        bool space = length > 0 && code == 0x2581;
        int64_t found = length == 0
                            ? -1
                            : word_table_find(&t->texts, space ? (const uint8_t *)" " : word + at,
                                              space ? 1 : length);
        if (length == 0) length = 1;
        if (found >= 0)
            id[count++] = t->text_id[found];
        else
            count += start_from_bytes(t, word + at, length, id + count);
        at += length;
    }
    return count;
}

static void merge_symbols(Encoder *e, const uint8_t *word, int64_t size, TokenBuffer *out)
{
    const Tokenizer *t = e->tokenizer;
    merger_reserve(&e->merger, size + 1);
    int64_t count = t->rules.characters ? start_from_characters(t, word, size, e->merger.id)
                                        : start_from_bytes(t, word, size, e->merger.id);
    bool bytes = !t->rules.characters && count == size;
    if (count > 0) merger_run(&e->merger, t, bytes ? word : NULL, count, out);
}

/* Appends the ids of a word by merging its symbols. A long word is cut between two bytes that are
 * adjacent in no token: no merge joins them, and short words are merged faster. */
static void merge_word(Encoder *e, const uint8_t *word, int64_t size, TokenBuffer *out)
{
    const Tokenizer *t = e->tokenizer;
    int64_t from = 0;
    for (int64_t at = 1; size > CACHE_WORD_BYTES && !t->rules.characters && at < size; at++)
        if (!vocabulary_joins(t, word[at - 1], word[at])) {
            merge_symbols(e, word + from, at - from, out);
            from = at;
        }
    merge_symbols(e, word + from, size - from, out);
}

bool encoder_merges_to(Encoder *e, const uint8_t *word, int64_t size, int32_t id)
{
    e->remembered.count = 0;
    merge_word(e, word, size, &e->remembered);
    bool same = e->remembered.count == 1 && e->remembered.id[0] == id;
    e->remembered.count = 0;
    return same;
}

/* Appends the ids of a word that is in no cache. */
static void encode_word(Encoder *e, const uint8_t *word, int64_t size, TokenBuffer *out)
{
    const Tokenizer *t = e->tokenizer;
    bool search = t->rules.ignore_merges && t->texts.n_words > 0;
    int64_t whole = search ? word_table_find(&t->texts, word, size) : -1;
    if (whole >= 0)
        token_buffer_add(out, t->text_id[whole]);
    else
        merge_word(e, word, size, out);
}

/* Appends the ids of a short word, from the cache if it is there; otherwise encodes it and caches
 * it. A full cache is cleared completely: common words are soon cached again, and no look-up has to
 * record when a word was last used. */
static void encode_remembered(Encoder *e, const uint8_t *word, int64_t size, TokenBuffer *out)
{
    if (e->words.n_words == CACHE_WORDS) {
        word_table_clear(&e->words);
        e->remembered.count = 0;
    }
    bool added;
    int64_t w = word_table_add(&e->words, word, size, &added);
    if (added) {
        encode_word(e, word, size, &e->remembered);
        e->first[w + 1] = e->remembered.count;
    }
    token_buffer_append(out, e->remembered.id + e->first[w], e->first[w + 1] - e->first[w]);
}

/* Sets `key` to the key of a word of at most SHORT_BYTES bytes. `readable` bytes at `word` may be
 * read. */
static inline void short_key(const uint8_t *word, int64_t size, int64_t readable, uint64_t key[2])
{
    uint8_t bytes[16] = {0};
    if (readable >= 16)
        memcpy(bytes, word, 16); /* a copy of known size is one instruction */
    else
        memcpy(bytes, word, (size_t)size);
    memcpy(key, bytes, 16);
    uint64_t low = size >= 8 ? UINT64_MAX : ((uint64_t)1 << 8 * size) - 1,
             high = size <= 8 ? 0 : ((uint64_t)1 << 8 * (size - 8)) - 1;
    key[0] &= low;
    key[1] = (key[1] & high) | (uint64_t)size << SIZE_SHIFT;
}

static inline bool has_key(const ShortWord *s, const uint64_t key[2])
{
    return s->key[0] == key[0] && (s->key[1] ^ key[1]) << COUNT_BITS == 0;
}

/* A word of the text. */
typedef struct {
    const uint8_t *bytes;
    int64_t size;
    uint64_t key[2]; /* for a short word: its key */
    ShortWord *slot; /* for a short word: it may be in this slot or the next */
} TextWord;

/* Sets up a word, of which `readable` bytes may be read, and prefetches its slots. */
static inline void find_slots(const Encoder *e, TextWord *w, const uint8_t *bytes, int64_t size,
                              int64_t readable)
{
    w->bytes = bytes;
    w->size = size;
    if (size > SHORT_BYTES) return;
    short_key(bytes, size, readable, w->key);
    uint64_t hash = hash_mix(hash_mix(0, w->key[0]), w->key[1]);
    w->slot = &e->short_word[hash >> (64 - e->short_bits) << 1];
    __builtin_prefetch(w->slot);
}

/* Appends the ids of a cached word. */
static inline void append_short(Encoder *e, const ShortWord *s, const TextWord *w, TokenBuffer *out)
{
    int64_t count = (int64_t)(s->key[1] >> (64 - COUNT_BITS));
    if (count == MANY_IDS) {
        encode_remembered(e, w->bytes, w->size, out);
        return;
    }
    memcpy(out->id + out->count, s->id, sizeof s->id);
    out->count += count;
}

/* Appends the ids of a short word. If it is in neither slot, it is merged and put into the first. A
 * word with too many ids for a slot is looked up in the other cache the next time. */
static inline void encode_short(Encoder *e, const TextWord *w, TokenBuffer *out)
{
    ShortWord *s = w->slot;
    if (out->count + SHORT_IDS > out->capacity) token_buffer_reserve(out, SHORT_IDS);
    if (has_key(s, w->key)) {
        append_short(e, s, w, out);
        return;
    }
    ShortWord found = s[1];
    if (has_key(&found, w->key)) {
        append_short(e, &found, w, out);
    } else {
        int64_t before = out->count;
        encode_word(e, w->bytes, w->size, out);
        uint64_t count = (uint64_t)(out->count - before);
        bool many = count > SHORT_IDS;
        found.key[0] = w->key[0];
        found.key[1] = w->key[1] | (many ? MANY_IDS : count) << (64 - COUNT_BITS);
        if (!many) memcpy(found.id, out->id + before, (size_t)count * sizeof *found.id);
    }
    s[1] = s[0];
    s[0] = found;
}

/* Appends the ids of a word that find_slots has set up. */
static inline void encode_cached(Encoder *e, const TextWord *w, TokenBuffer *out)
{
    if (w->size <= SHORT_BYTES)
        encode_short(e, w, out);
    else if (w->size <= CACHE_WORD_BYTES)
        encode_remembered(e, w->bytes, w->size, out);
    else
        encode_word(e, w->bytes, w->size, out);
}

/* Encodes text without added tokens, which is split into words. With `prefix`, a space is put
 * before the first of them. */
static void encode_words(Encoder *e, const uint8_t *s, int64_t n, bool prefix, TokenBuffer *out)
{
    const Splitter *splitter = &e->tokenizer->splitter;
    int64_t at = 0;
    TextWord word[WORDS_AHEAD];
    if (prefix && n > 0) {
        at = word_length(splitter, s, n);
        e->prefixed.size = 0;
        byte_buffer_add(&e->prefixed, " ", 1);
        byte_buffer_add(&e->prefixed, s, at);
        find_slots(e, &word[0], e->prefixed.byte, e->prefixed.size, e->prefixed.size);
        encode_cached(e, &word[0], out);
    }
    while (at < n) {
        int count = 0;
        for (int64_t length; count < WORDS_AHEAD && at < n; at += length) {
            length = word_length(splitter, s + at, n - at);
            find_slots(e, &word[count++], s + at, length, n - at);
        }
        for (int i = 0; i < count; i++)
            encode_cached(e, &word[i], out);
    }
}

/* Returns whether a space is put before this text; `first`: it begins a document. */
static bool wants_prefix(const Tokenizer *t, const uint8_t *s, int64_t n, bool first)
{
    bool space = n > 0 && (s[0] == ' ' || (n >= 3 && memcmp(s, "\xE2\x96\x81", 3) == 0));
    switch (t->rules.prefix) {
    case PREFIX_NONE: break;
    case PREFIX_ALWAYS: return true;
    case PREFIX_EACH: return !space;
    case PREFIX_FIRST: return first && !space;
    }
    return false;
}

/* Encodes text in two passes. The first (`composed` is false) cuts out the added tokens that are
 * found before NFC, and normalizes the text between them. The second cuts out those found after NFC
 * and encodes the words between them. `begins`: s follows an added token or begins a document;
 * `first`: it begins a document. */
static void encode_text(Encoder *e, const uint8_t *s, int64_t n, bool composed, bool begins,
                        bool first, TokenBuffer *out)
{
    const Tokenizer *t = e->tokenizer;
    bool search = added_active(&t->added, composed, e->specials);
    for (int64_t at = 0; at < n;) {
        AddedMatch match;
        bool found = search && added_find(&t->added, composed, e->specials, s, n, at, &match);
        int64_t end = found ? match.from : n;
        if (end > at && !composed) {
            const uint8_t *part = s + at;
            int64_t size = end - at;
            if (t->nfc && nfc_first_change(t->nfc, part, size) < size) {
                e->composed.size = 0;
                nfc_compose(t->nfc, part, size, &e->composed);
                part = e->composed.byte;
                size = e->composed.size;
            }
            encode_text(e, part, size, true, begins || at > 0, first && at == 0, out);
        } else if (end > at) {
            bool starts = begins || at > 0;
            encode_words(e, s + at, end - at,
                         starts && wants_prefix(t, s + at, end - at, first && at == 0), out);
        }
        if (found) token_buffer_add(out, match.token->id);
        at = found ? match.to : n;
    }
}

/* Returns whether composition changes nothing at s[at] or next to it. */
static bool is_settled(const Nfc *nfc, const uint8_t *s, int64_t n, int64_t at)
{
    int64_t from = at > 4 ? at - 4 : 0, size = (at + 4 < n ? at + 4 : n) - from;
    return nfc_first_change(nfc, s + from, size) == size;
}

int64_t encoder_cut(const Encoder *e, const uint8_t *text, int64_t size, int64_t at)
{
    const Tokenizer *t = e->tokenizer;
    bool composed = added_active(&t->added, true, e->specials);
    bool added = composed || added_active(&t->added, false, e->specials);
    if (composed && t->nfc && t->added.composes) return size;
    for (; at > 0 && at < size; at++)
        if (word_border(&t->splitter, text, size, at) &&
            (t->nfc == NULL || is_settled(t->nfc, text, size, at)) &&
            !(added && added_across(&t->added, text, size, at)))
            return at;
    return at < size ? at : size;
}

void encoder_encode_part(Encoder *e, const uint8_t *text, int64_t from, int64_t to,
                         TokenBuffer *out)
{
    encode_text(e, text + from, to - from, false, from == 0, from == 0, out);
}

void encoder_encode(Encoder *e, const uint8_t *text, int64_t size, TokenBuffer *out)
{
    encoder_encode_part(e, text, 0, size, out);
}

void tokenizer_encode_prompt(const Tokenizer *t, const char *prompt, TokenBuffer *out)
{
    int64_t before = out->count;
    if (t->begin >= 0) token_buffer_add(out, t->begin);
    Encoder *encoder = encoder_create_small(t);
    encoder_encode(encoder, (const uint8_t *)prompt, (int64_t)strlen(prompt), out);
    encoder_free(encoder);
    if (out->count == before) token_buffer_add(out, t->end_of_text >= 0 ? t->end_of_text : 0);
}
