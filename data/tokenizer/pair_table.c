/* pair_table.c -- a hash table with open addressing and linear probing; see pair_table.h. */
#include "data/tokenizer/pair_table.h"

#include "model/core/check.h"

#include <stdlib.h>

static void allocate(PairTable *t, int64_t slots)
{
    t->slots = slots;
    t->used = 0;
    t->slot = must_alloc((size_t)slots * sizeof *t->slot);
    memset(t->slot, 0xFF, (size_t)slots * sizeof *t->slot);
    t->bit = must_calloc((size_t)(8 * slots / 64), sizeof *t->bit);
}

static void put(PairTable *t, PairSlot pair)
{
    uint64_t bit = pair_hash(pair.key) & (uint64_t)(8 * t->slots - 1);
    PairSlot *s = &t->slot[pair_table_slot(t, pair.key)];
    if (s->key == PAIR_NONE) t->used++;
    *s = pair;
    t->bit[bit / 64] |= (uint64_t)1 << bit % 64;
}

void pair_table_init(PairTable *t, int64_t expected)
{
    int64_t slots = 64;
    while (2 * slots < 3 * expected)
        slots *= 2;
    allocate(t, slots);
}

void pair_table_free(PairTable *t)
{
    free(t->slot);
    free(t->bit);
    *t = (PairTable){0};
}

/* Doubles the number of slots, so that at most two thirds are used and searches stay short. */
static void grow(PairTable *t)
{
    PairTable old = *t;
    allocate(t, 2 * old.slots);
    for (int64_t i = 0; i < old.slots; i++)
        if (old.slot[i].key != PAIR_NONE) put(t, old.slot[i]);
    pair_table_free(&old);
}

void pair_table_set_both(PairTable *t, int32_t left, int32_t right, int32_t value, int32_t other)
{
    if (3 * (t->used + 1) > 2 * t->slots) grow(t);
    put(t, (PairSlot){.key = pair_key(left, right), .value = value, .other = other});
}

void pair_table_set(PairTable *t, int32_t left, int32_t right, int32_t value)
{
    pair_table_set_both(t, left, right, value, 0);
}
