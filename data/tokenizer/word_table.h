/* word_table.h -- a hash table of distinct byte strings, numbered in the order in which they were
 * added. */
#ifndef DATA_TOKENIZER_WORD_TABLE_H
#define DATA_TOKENIZER_WORD_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t start; /* offset of its bytes in WordTable.bytes */
    int64_t size;
    uint64_t hash;
} Word;

/* Most searches end at the first slot: it stores a part of the hash, so other words are recognized
 * without reading their bytes. */
typedef struct {
    uint32_t hash;
    int32_t word; /* number of the word; -1 if free */
} WordSlot;

typedef struct {
    Word *word;
    int64_t n_words, words_capacity;
    uint8_t *bytes;
    int64_t n_bytes, bytes_capacity;
    WordSlot *slot;
    int64_t slots; /* a power of two */
} WordTable;

void word_table_init(WordTable *t);
void word_table_free(WordTable *t);
/* Removes all words but keeps the memory. */
void word_table_clear(WordTable *t);
/* Returns the number of a string, or -1 if it is not in the table. */
int64_t word_table_find(const WordTable *t, const uint8_t *bytes, int64_t size);
/* Returns the number of a string, which is added if it is new; *added (may be NULL) is set to
 * whether it was. */
int64_t word_table_add(WordTable *t, const uint8_t *bytes, int64_t size, bool *added);

#endif
