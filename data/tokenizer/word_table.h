/* word_table.h -- a hash table of distinct byte strings, numbered in the order of their first
 * appearance. */
#ifndef DATA_TOKENIZER_WORD_TABLE_H
#define DATA_TOKENIZER_WORD_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t start; /* of its bytes in WordTable.bytes */
    int64_t size;
    uint64_t hash;
} Word;

typedef struct {
    Word *word;
    int64_t n_words, words_capacity;
    uint8_t *bytes;
    int64_t n_bytes, bytes_capacity;
    int64_t *slot; /* number of a word, -1 where free */
    int64_t slots; /* a power of two */
} WordTable;

void word_table_init(WordTable *t);
void word_table_free(WordTable *t);
/* Forgets all words, keeps the memory. */
void word_table_clear(WordTable *t);
/* The number of a string, -1 if it is not there. */
int64_t word_table_find(const WordTable *t, const uint8_t *bytes, int64_t size);
/* The same, adding it if needed; *added (may be NULL) says whether it was new. */
int64_t word_table_add(WordTable *t, const uint8_t *bytes, int64_t size, bool *added);

#endif
