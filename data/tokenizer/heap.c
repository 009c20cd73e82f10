/* heap.c -- pushes and pops items of a binary heap; see heap.h. */
#include "data/tokenizer/heap.h"

#include "model/core/check.h"

#include <stdbool.h>
#include <stdlib.h>

static bool comes_first(HeapItem a, HeapItem b)
{
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

void heap_push(Heap *h, HeapItem item)
{
    if (h->n == h->capacity) {
        h->capacity = h->capacity ? 2 * h->capacity : 256;
        h->item = must_realloc(h->item, (size_t)h->capacity * sizeof *h->item);
    }
    /* Move larger parents down, from the end of the array, until the item's place is found. */
    int64_t at = h->n++;
    for (; at > 0 && comes_first(item, h->item[(at - 1) / 2]); at = (at - 1) / 2)
        h->item[at] = h->item[(at - 1) / 2];
    h->item[at] = item;
}

HeapItem heap_pop(Heap *h)
{
    CHECK(h->n > 0, "an item is asked of an empty heap");
    /* Move smaller children up, from the top, until the place for the last item is found. */
    HeapItem top = h->item[0], last = h->item[--h->n];
    int64_t at = 0;
    for (int64_t child = 1; child < h->n; child = 2 * at + 1) {
        if (child + 1 < h->n && comes_first(h->item[child + 1], h->item[child])) child++;
        if (!comes_first(h->item[child], last)) break;
        h->item[at] = h->item[child];
        at = child;
    }
    h->item[at] = last;
    return top;
}

void heap_free(Heap *h)
{
    free(h->item);
    *h = (Heap){0};
}
