/* pair_table.h -- a hash table that maps pairs of token ids to an index; it grows but never
 * shrinks. */
#ifndef DATA_TOKENIZER_PAIR_TABLE_H
#define DATA_TOKENIZER_PAIR_TABLE_H

#include "model/core/hash.h"

#include <stdint.h>

#define PAIR_NONE UINT64_MAX

/* A pair and its value are stored together, so that a look-up reads one cache line. */
typedef struct {
    uint64_t key; /* left << 32 | right; PAIR_NONE if the slot is free */
    int32_t value;
    int32_t other; /* a second value for the pair, free for the caller's use */
} PairSlot;

typedef struct {
    PairSlot *slot;
    int64_t slots, used; /* slots is a power of two */
    /* (8 * slots bits) A pair's bit is set if the table has this pair, or another one with the same
     * bit. Most pairs of a text are not in the table; for these, the bits are enough, and they fit
     * into a cache that is too small for the slots. */
    uint64_t *bit;
} PairTable;

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline int32_t pair_key_left(uint64_t key)
{
    return (int32_t)(key >> 32);
}

static inline int32_t pair_key_right(uint64_t key)
{
    return (int32_t)(key & UINT32_MAX);
}

/* Initialises the table with room for `expected` pairs. */
void pair_table_init(PairTable *t, int64_t expected);
void pair_table_free(PairTable *t);

static inline uint64_t pair_hash(uint64_t key)
{
    return hash_mix(0, key) >> 20;
}

/* Returns the number of the slot that holds `key`, or of the free slot where it belongs. */
static inline int64_t pair_table_slot(const PairTable *t, uint64_t key)
{
    int64_t mask = t->slots - 1, at = (int64_t)pair_hash(key) & mask;
    while (t->slot[at].key != key && t->slot[at].key != PAIR_NONE)
        at = (at + 1) & mask;
    return at;
}

/* Returns the slot of a pair, or NULL if it is not in the table. */
static inline const PairSlot *pair_table_find(const PairTable *t, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right), bit = pair_hash(key) & (uint64_t)(8 * t->slots - 1);
    if ((t->bit[bit / 64] >> bit % 64 & 1) == 0) return NULL;
    const PairSlot *s = &t->slot[pair_table_slot(t, key)];
    return s->key == key ? s : NULL;
}

/* Returns the value of a pair, or -1 if it is not in the table. */
static inline int32_t pair_table_get(const PairTable *t, int32_t left, int32_t right)
{
    const PairSlot *s = pair_table_find(t, left, right);
    return s ? s->value : -1;
}

/* Sets the value (>= 0) of a pair, and its second value to 0. */
void pair_table_set(PairTable *t, int32_t left, int32_t right, int32_t value);
/* Sets the value (>= 0) and the second value of a pair. */
void pair_table_set_both(PairTable *t, int32_t left, int32_t right, int32_t value, int32_t other);

#endif
