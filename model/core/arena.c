/* arena.c -- implements arena.h: allocates tensors from one block, or only counts their bytes. */
#include "model/core/arena.h"

#include "model/core/check.h"
#include "model/core/device.h"

/* Ends the program because the requested sizes add up to more bytes than an address can count. Only
 * an arena that measures can get here; for an arena with memory this is a bug. */
static void beyond_memory(const Arena *arena)
{
    CHECK(arena->base == NULL, "more than 2^63 bytes of %zu", arena->size);
    fail(EXIT_NO_MEMORY, "tensors of more than 2^63 bytes are asked for; " MEMORY_ADVICE);
}

void *arena_take(Arena *arena, size_t bytes)
{
    size_t padded, end;
    bool over = __builtin_add_overflow(bytes, ARENA_ALIGNMENT - 1, &padded);
    padded -= padded % ARENA_ALIGNMENT;
    over |= __builtin_add_overflow(arena->used, padded, &end) || end > PTRDIFF_MAX;
    if (over) beyond_memory(arena);
    CHECK(arena->base == NULL || end <= arena->size, "%zu of %zu bytes used, %zu more asked for",
          arena->used, arena->size, bytes);
    /* While measuring, return an aligned address that is not NULL, so that the tensor counts as
     * present. It must not be read or written. */
    char *p = (arena->base ? arena->base : (char *)ARENA_ALIGNMENT) + arena->used;
    arena->used = end;
    if (end > arena->peak) arena->peak = end;
    return p;
}

Tensor arena_tensor(Arena *arena, DType dtype, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    int64_t dim[3] = {d0, d1, d2};
    size_t bytes = dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        CHECK(dim[i] >= 0, "a tensor dimension of %lld", (long long)dim[i]);
        if (__builtin_mul_overflow(bytes, (size_t)dim[i], &bytes)) beyond_memory(arena);
    }
    void *data = arena_take(arena, bytes);
    Tensor t = ndim == 1   ? tensor_1d(data, dtype, d0)
               : ndim == 2 ? tensor_2d(data, dtype, d0, d1)
                           : tensor_3d(data, dtype, d0, d1, d2);
    t.place = arena->place;
    return t;
}
