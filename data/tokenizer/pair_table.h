/* pair_table.h -- a hash table that maps pairs of token ids to an index; it grows but never
 * shrinks. */
#ifndef DATA_TOKENIZER_PAIR_TABLE_H
#define DATA_TOKENIZER_PAIR_TABLE_H

#include <stdint.h>

typedef struct {
    uint64_t *key; /* left << 32 | right; PAIR_NONE if the slot is free */
    int32_t *value;
    int64_t slots, used; /* slots is a power of two */
} PairTable;

#define PAIR_NONE UINT64_MAX

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
/* Returns the value of a pair, or -1 if it is not in the table. */
int32_t pair_table_get(const PairTable *t, int32_t left, int32_t right);
/* Sets the value (>= 0) of a pair. */
void pair_table_set(PairTable *t, int32_t left, int32_t right, int32_t value);

#endif
