/* heap.h -- a binary heap of pairs of numbers, the smallest first: what training and encoding take
 * their next merge from. */
#ifndef DATA_TOKENIZER_HEAP_H
#define DATA_TOKENIZER_HEAP_H

#include <stdint.h>

/* Ordered by `first`, equals by `second`. */
typedef struct {
    int64_t first;
    uint64_t second;
} HeapItem;

/* Start from {0}; n = 0 empties it and keeps the memory. */
typedef struct {
    HeapItem *item; /* (n) item[i] comes before item[2 i + 1] and item[2 i + 2], or is equal */
    int64_t n, capacity;
} Heap;

void heap_push(Heap *h, HeapItem item);
/* Takes the smallest item out; n must be above 0. */
HeapItem heap_pop(Heap *h);
void heap_free(Heap *h);

#endif
