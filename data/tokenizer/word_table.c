/* word_table.c -- a hash table with open addressing; slots hold indices into an array of words; see
 * word_table.h. */
#include "data/tokenizer/word_table.h"

#include "model/core/check.h"
#include "model/core/hash.h"

#include <stdlib.h>

static void clear_slots(WordTable *t, int64_t slots)
{
    t->slots = slots;
    memset(t->slot, 0xFF, (size_t)slots * sizeof *t->slot);
}

void word_table_init(WordTable *t)
{
    *t = (WordTable){0};
    t->slot = must_alloc(1024 * sizeof *t->slot);
    clear_slots(t, 1024);
}

void word_table_free(WordTable *t)
{
    free(t->word);
    free(t->bytes);
    free(t->slot);
    *t = (WordTable){0};
}

void word_table_clear(WordTable *t)
{
    t->n_words = t->n_bytes = 0;
    clear_slots(t, t->slots);
}

/* Returns the part of a hash that is stored in a slot; the other part selects the slot. */
static uint32_t hash_in_slot(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

/* Returns the slot that holds the string, or the free slot where it belongs. */
static WordSlot *slot_of(const WordTable *t, uint64_t hash, const uint8_t *bytes, int64_t size)
{
    int64_t mask = t->slots - 1, at = (int64_t)hash & mask;
    for (; t->slot[at].word >= 0; at = (at + 1) & mask) {
        if (t->slot[at].hash != hash_in_slot(hash)) continue;
        const Word *w = &t->word[t->slot[at].word];
        if (w->hash == hash && w->size == size &&
            memcmp(t->bytes + w->start, bytes, (size_t)size) == 0)
            break;
    }
    return &t->slot[at];
}

static uint64_t hash_word(const uint8_t *bytes, int64_t size)
{
    uint64_t h = hash_bytes(0, bytes, size);
    return h ^ (h >> 32);
}

int64_t word_table_find(const WordTable *t, const uint8_t *bytes, int64_t size)
{
    return slot_of(t, hash_word(bytes, size), bytes, size)->word;
}

/* Doubles the number of slots, so that at most half are used and searches stay short. Words keep
 * their numbers. Their hashes are stored, so their bytes need not be read again. */
static void grow_slots(WordTable *t)
{
    t->slot = must_realloc(t->slot, (size_t)(2 * t->slots) * sizeof *t->slot);
    clear_slots(t, 2 * t->slots);
    for (int64_t i = 0; i < t->n_words; i++) {
        int64_t mask = t->slots - 1, at = (int64_t)t->word[i].hash & mask;
        while (t->slot[at].word >= 0)
            at = (at + 1) & mask;
        t->slot[at] = (WordSlot){.hash = hash_in_slot(t->word[i].hash), .word = (int32_t)i};
    }
}

static void append(WordTable *t, uint64_t hash, const uint8_t *bytes, int64_t size)
{
    if (t->n_words == t->words_capacity) {
        t->words_capacity = t->words_capacity ? 2 * t->words_capacity : 1024;
        t->word = must_realloc(t->word, (size_t)t->words_capacity * sizeof *t->word);
    }
    if (t->n_bytes + size > t->bytes_capacity) {
        t->bytes_capacity = 2 * (t->n_bytes + size) + 4096;
        t->bytes = must_realloc(t->bytes, (size_t)t->bytes_capacity);
    }
    memcpy(t->bytes + t->n_bytes, bytes, (size_t)size);
    t->word[t->n_words++] = (Word){.start = t->n_bytes, .size = size, .hash = hash};
    t->n_bytes += size;
}

int64_t word_table_add(WordTable *t, const uint8_t *bytes, int64_t size, bool *added)
{
    uint64_t hash = hash_word(bytes, size);
    WordSlot *slot = slot_of(t, hash, bytes, size);
    if (added) *added = slot->word < 0;
    if (slot->word >= 0) return slot->word;
    if (2 * (t->n_words + 1) > t->slots) {
        grow_slots(t);
        slot = slot_of(t, hash, bytes, size);
    }
    CHECK(t->n_words < INT32_MAX, "%lld words", (long long)t->n_words);
    append(t, hash, bytes, size);
    *slot = (WordSlot){.hash = hash_in_slot(hash), .word = (int32_t)(t->n_words - 1)};
    return slot->word;
}
