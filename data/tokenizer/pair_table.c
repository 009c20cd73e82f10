/* pair_table.c -- a hash table with open addressing and linear probing; see pair_table.h. */
#include "data/tokenizer/pair_table.h"

#include "model/core/check.h"
#include "model/core/hash.h"

#include <stdlib.h>

static void allocate(PairTable *t, int64_t slots)
{
    t->slots = slots;
    t->used = 0;
    t->key = must_alloc((size_t)slots * sizeof *t->key);
    t->value = must_alloc((size_t)slots * sizeof *t->value);
    memset(t->key, 0xFF, (size_t)slots * sizeof *t->key);
}

void pair_table_init(PairTable *t, int64_t expected)
{
    int64_t slots = 64;
    while (slots < 2 * expected)
        slots *= 2;
    allocate(t, slots);
}

void pair_table_free(PairTable *t)
{
    free(t->key);
    free(t->value);
    *t = (PairTable){0};
}

/* Returns the slot that holds `key`, or the free slot where it belongs. */
static int64_t slot_of(const PairTable *t, uint64_t key)
{
    int64_t mask = t->slots - 1, at = (int64_t)(hash_mix(0, key) >> 20) & mask;
    while (t->key[at] != key && t->key[at] != PAIR_NONE)
        at = (at + 1) & mask;
    return at;
}

int32_t pair_table_get(const PairTable *t, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    int64_t at = slot_of(t, key);
    return t->key[at] == key ? t->value[at] : -1;
}

/* Doubles the number of slots, so that at most half are used and searches stay short. */
static void grow(PairTable *t)
{
    PairTable old = *t;
    allocate(t, 2 * old.slots);
    for (int64_t i = 0; i < old.slots; i++) {
        if (old.key[i] == PAIR_NONE) continue;
        int64_t at = slot_of(t, old.key[i]);
        t->key[at] = old.key[i];
        t->value[at] = old.value[i];
        t->used++;
    }
    pair_table_free(&old);
}

void pair_table_set(PairTable *t, int32_t left, int32_t right, int32_t value)
{
    if (2 * (t->used + 1) > t->slots) grow(t);
    uint64_t key = pair_key(left, right);
    int64_t at = slot_of(t, key);
    if (t->key[at] == PAIR_NONE) t->used++;
    t->key[at] = key;
    t->value[at] = value;
}
