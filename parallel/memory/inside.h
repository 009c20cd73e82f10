/* inside.h -- functions that memory_plan.c and fits.c share; private to this folder. */
#ifndef PARALLEL_MEMORY_INSIDE_H
#define PARALLEL_MEMORY_INSIDE_H

#include "parallel/memory/memory_plan.h"

/* Returns a + b, or SIZE_MAX if the sum does not fit into 64 bits; no device has that much
 * memory. */
static inline size_t memory_plus(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

/* Gathers the `bytes` bytes at `mine` from each rank of this machine, and returns them in rank
 * order; the caller frees them. Sets `ranks` to the number of these ranks. All ranks of `world`
 * must call it. */
void *memory_gather_here(Comm *world, const void *mine, size_t bytes, int *ranks);
/* Returns how much of the available memory of the device the plan may use. */
size_t memory_device_room(const MemoryRoom *room);
/* Writes to `text` which ranks the plan is for, in words ("" for a single rank), and returns
 * `text`. */
char *memory_whose(const MemoryPlan *plan, char *text, size_t n);

#endif
