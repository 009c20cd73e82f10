/* heap.h -- a binary heap of pairs of numbers, smallest first; BPE training and encoding use it to
 * find the next merge. */
#ifndef DATA_TOKENIZER_HEAP_H
#define DATA_TOKENIZER_HEAP_H

#include <stdint.h>

/* Ordered by `first`; items with equal `first` are ordered by `second`. */
typedef struct {
    int64_t first;
    uint64_t second;
} HeapItem;

/* Initialise it with {0}. Setting n = 0 empties it and keeps the memory. */
typedef struct {
    HeapItem *item; /* (n) item[i] is not greater than item[2 i + 1] and item[2 i + 2] */
    int64_t n, capacity;
} Heap;

void heap_push(Heap *h, HeapItem item);
/* Removes and returns the smallest item; n must be above 0. */
HeapItem heap_pop(Heap *h);
void heap_free(Heap *h);

#endif
