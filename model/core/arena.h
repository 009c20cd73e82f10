/* arena.h -- bump allocation of tensors from one block. With base NULL it only measures, so the
 * same layout code first counts bytes for the memory plan and then hands out addresses. */
#ifndef MODEL_CORE_ARENA_H
#define MODEL_CORE_ARENA_H

#include "model/core/tensor.h"

typedef struct {
    char *base;  /* NULL: measuring */
    size_t size; /* bytes at base; ignored while measuring */
    size_t used, peak;
    Place place; /* of the block, and so of its tensors */
} Arena;

/* Start of every tensor: what the widest vector and cuBLASLt's heuristics want. */
#define ARENA_ALIGNMENT ((size_t)256)

static inline Arena arena_measuring(void)
{
    return (Arena){0};
}

static inline Arena arena_over(void *base, size_t size)
{
    return (Arena){.base = (char *)base, .size = size};
}

/* `bytes` from the arena, aligned; while measuring returns a non-NULL address that must not be
 * touched, and ends the run with EXIT_NO_MEMORY where no address counts the bytes. Running over
 * the size is a bug (the plan was wrong). */
void *arena_take(Arena *arena, size_t bytes);
/* A dense tensor from the arena, uninitialised. dims beyond ndim are ignored. */
Tensor arena_tensor(Arena *arena, DType dtype, int ndim, int64_t d0, int64_t d1, int64_t d2);
/* Marks and rewinds, for scratch that lives for one layer. */
static inline size_t arena_mark(const Arena *arena)
{
    return arena->used;
}
static inline void arena_rewind(Arena *arena, size_t mark)
{
    arena->used = mark;
}

#endif
