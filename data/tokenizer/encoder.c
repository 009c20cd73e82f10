/* encoder.c -- encodes text to ids: splits it into words, takes the ids of known words from a
 * cache, and merges the bytes of the others.
 *
 * The pair with the lowest rank is merged first, the leftmost one among equals, as in training. The
 * symbols of a word are a linked list, and the pairs that may be merged are in a heap. So a word of
 * n bytes takes O(n log n) steps. Searching for the best pair after each merge would take O(n^2),
 * and some files have words of a million letters. */
#include "data/tokenizer/heap.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_WORD_BYTES = 64, /* longer words rarely occur again, so they are not cached */
    CACHE_WORDS = 1 << 18, /* maximum number of cached words */
};

/* One symbol (token so far) of the word that is being merged. */
typedef struct {
    int32_t id;
    int64_t before, after; /* adjacent symbols; -1 at the ends */
} Symbol;

struct Encoder {
    const Tokenizer *tokenizer;
    WordTable words;
    TokenBuffer remembered; /* ids of all cached words, in the order of the table */
    /* (CACHE_WORDS + 1) where the ids of word w start in `remembered`; they end at first[w + 1] */
    int64_t *first;
    Symbol *symbol;
    int64_t symbol_capacity;
    Heap heap; /* pairs that may be merged: (rank, number of the left symbol) */
};

/* Makes room for `more` ids. */
static void reserve(TokenBuffer *b, int64_t more)
{
    if (b->count + more <= b->capacity) return;
    b->capacity = 2 * (b->count + more) + 1024;
    b->id = must_realloc(b->id, (size_t)b->capacity * sizeof *b->id);
}

void token_buffer_add(TokenBuffer *b, int32_t id)
{
    reserve(b, 1);
    b->id[b->count++] = id;
}

static void add_many(TokenBuffer *b, const int32_t *id, int64_t count)
{
    reserve(b, count);
    memcpy(b->id + b->count, id, (size_t)count * sizeof *id);
    b->count += count;
}

void token_buffer_free(TokenBuffer *b)
{
    free(b->id);
    *b = (TokenBuffer){0};
}

Encoder *encoder_create(const Tokenizer *t)
{
    Encoder *e = must_calloc(1, sizeof *e);
    e->tokenizer = t;
    word_table_init(&e->words);
    e->first = must_calloc(CACHE_WORDS + 1, sizeof *e->first);
    return e;
}

void encoder_free(Encoder *e)
{
    if (e == NULL) return;
    word_table_free(&e->words);
    token_buffer_free(&e->remembered);
    free(e->first);
    free(e->symbol);
    heap_free(&e->heap);
    free(e);
}

/* Pushes the pair that begins at symbol `left` onto the heap, if there is a merge for it. */
static void offer(Encoder *e, int64_t left)
{
    if (left < 0 || e->symbol[left].after < 0) return;
    int32_t rank = pair_table_get(&e->tokenizer->rank, e->symbol[left].id,
                                  e->symbol[e->symbol[left].after].id);
    if (rank >= 0) heap_push(&e->heap, (HeapItem){.first = rank, .second = (uint64_t)left});
}

/* Merges the symbols of a word until no adjacent pair has a merge. If one symbol of a pair is
 * merged with another neighbour, the pair stays in the heap. It is skipped when it is popped,
 * because its two ids are no longer adjacent there. */
static void merge_all(Encoder *e)
{
    const Tokenizer *t = e->tokenizer;
    while (e->heap.n > 0) {
        HeapItem item = heap_pop(&e->heap);
        int64_t rank = item.first, at = (int64_t)item.second;
        Symbol *left = &e->symbol[at];
        Merge m = t->merge[rank];
        if (left->id != m.left || left->after < 0 || e->symbol[left->after].id != m.right) continue;
        Symbol *right = &e->symbol[left->after];
        left->id = t->merged[rank];
        left->after = right->after;
        if (right->after >= 0) e->symbol[right->after].before = at;
        right->id = -1; /* no longer in the list, and no longer the left symbol of a pair */
        offer(e, left->before);
        offer(e, at);
    }
}

/* Appends the ids of a word, found by merging its bytes. The first symbol always survives, because
 * merging keeps the left symbol, so walking the list from it gives all ids. */
static void encode_word(Encoder *e, const uint8_t *word, int64_t size, TokenBuffer *out)
{
    if (size > e->symbol_capacity) {
        e->symbol_capacity = 2 * size + 64;
        e->symbol = must_realloc(e->symbol, (size_t)e->symbol_capacity * sizeof *e->symbol);
    }
    for (int64_t i = 0; i < size; i++)
        e->symbol[i] = (Symbol){.id = e->tokenizer->byte_id[word[i]],
                                .before = i - 1,
                                .after = i + 1 < size ? i + 1 : -1};
    e->heap.n = 0;
    for (int64_t i = 0; i + 1 < size; i++)
        offer(e, i);
    merge_all(e);
    for (int64_t i = 0; i >= 0; i = e->symbol[i].after)
        token_buffer_add(out, e->symbol[i].id);
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
    add_many(out, e->remembered.id + e->first[w], e->first[w + 1] - e->first[w]);
}

int64_t encoder_encode_some(Encoder *e, const uint8_t *text, int64_t size, int64_t most,
                            TokenBuffer *out)
{
    int64_t at = 0;
    while (at < size && at < most) {
        int64_t length = word_length(text + at, size - at);
        if (length <= CACHE_WORD_BYTES)
            encode_remembered(e, text + at, length, out);
        else
            encode_word(e, text + at, length, out);
        at += length;
    }
    return at;
}

void encoder_encode(Encoder *e, const uint8_t *text, int64_t size, TokenBuffer *out)
{
    encoder_encode_some(e, text, size, size, out);
}

void tokenizer_encode_prompt(const Tokenizer *t, const char *prompt, TokenBuffer *out)
{
    int64_t before = out->count;
    Encoder *encoder = encoder_create(t);
    encoder_encode(encoder, (const uint8_t *)prompt, (int64_t)strlen(prompt), out);
    encoder_free(encoder);
    if (out->count == before) token_buffer_add(out, t->end_of_text >= 0 ? t->end_of_text : 0);
}
