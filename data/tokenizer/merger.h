/* merger.h -- merges the symbols of one word: always the pair with the lowest rank next, and of
 * several such pairs the leftmost one. */
#ifndef DATA_TOKENIZER_MERGER_H
#define DATA_TOKENIZER_MERGER_H

#include "data/tokenizer/heap.h"
#include "data/tokenizer/vocabulary.h"

/* One symbol of a long word, in a linked list. `before` and `after` are positions in Merger.symbol;
 * NO_SYMBOL: there is none. Positions of symbols and of pairs are unsigned, because a word may have
 * more than 2^31 of each. */
typedef struct {
    int32_t id;
    uint32_t before, after;
} Symbol;

/* Two adjacent symbols that may be merged. */
typedef struct {
    uint32_t left; /* the left symbol */
    uint32_t next; /* the next pair of the same rank */
} SymbolPair;

/* Initialise it with {0}. */
typedef struct {
    int32_t *id; /* (capacity) ids of the word's symbols; the caller sets them */
    int64_t capacity;
    Symbol *symbol; /* (symbols_capacity) symbols of a long word */
    int64_t symbols_capacity;
    SymbolPair *pair;
    int64_t n_pairs, pairs_capacity;
    uint32_t *head, *tail; /* (merges) first and last pair of each rank; NO_SYMBOL if it has none */
    Heap ranks;            /* the ranks that have pairs */
} Merger;

#define NO_SYMBOL UINT32_MAX

/* Makes room for `count` symbols in m->id. */
void merger_reserve(Merger *m, int64_t count);
/* Merges the first `count` >= 1 symbols of m->id, and appends the remaining ids to `out`. `bytes`:
 * if each symbol is the token of one byte, these bytes; otherwise NULL. */
void merger_run(Merger *m, const Tokenizer *t, const uint8_t *bytes, int64_t count,
                TokenBuffer *out);
void merger_free(Merger *m);

#endif
