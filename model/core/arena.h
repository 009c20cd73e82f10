/* arena.h -- bump allocation of tensors from one block of memory. An arena whose base is NULL only
 * measures, so the same layout code first counts bytes for the memory plan and later hands out
 * addresses. */
#ifndef MODEL_CORE_ARENA_H
#define MODEL_CORE_ARENA_H

#include "model/core/tensor.h"

typedef struct {
    char *base;  /* NULL while the arena only measures */
    size_t size; /* bytes at base; ignored while measuring */
    size_t used, peak;
    Place place; /* host or device, for the block and its tensors */
} Arena;

/* Alignment of every tensor: enough for the widest vector loads and for cuBLASLt's heuristics. */
#define ARENA_ALIGNMENT ((size_t)256)

static inline Arena arena_measuring(void)
{
    return (Arena){0};
}

static inline Arena arena_over(void *base, size_t size)
{
    return (Arena){.base = (char *)base, .size = size};
}

/* Takes `bytes` from the arena and returns their aligned address. While measuring, returns an
 * address that is not NULL and must not be touched, and ends the program with EXIT_NO_MEMORY if the
 * sum exceeds the address space. Taking more than the arena's size is a bug: the memory plan was
 * wrong. */
void *arena_take(Arena *arena, size_t bytes);
/* Takes a dense, uninitialised tensor from the arena. Dimensions beyond ndim are ignored. */
Tensor arena_tensor(Arena *arena, DType dtype, int ndim, int64_t d0, int64_t d1, int64_t d2);
/* arena_mark returns the number of bytes in use; arena_rewind, given that number, frees everything
 * taken since. Used for scratch that lives for one layer. */
static inline size_t arena_mark(const Arena *arena)
{
    return arena->used;
}
static inline void arena_rewind(Arena *arena, size_t mark)
{
    arena->used = mark;
}

#endif
