/* arena.c -- see arena.h. */
#include "model/core/arena.h"

#include "model/core/check.h"

void *arena_take(Arena *arena, size_t bytes)
{
    size_t padded, end;
    bool over = __builtin_add_overflow(bytes, ARENA_ALIGNMENT - 1, &padded);
    padded -= padded % ARENA_ALIGNMENT;
    over |= __builtin_add_overflow(arena->used, padded, &end);
    CHECK(!over, "an arena of %zu bytes cannot grow by %zu", arena->used, bytes);
    CHECK(arena->base == NULL || end <= arena->size, "%zu of %zu bytes used, %zu more asked for",
          arena->used, arena->size, bytes);
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
        bool over = dim[i] < 0 || __builtin_mul_overflow(bytes, (size_t)dim[i], &bytes);
        CHECK(!over, "a tensor dimension of %lld", (long long)dim[i]);
    }
    void *data = arena_take(arena, bytes);
    Tensor t = ndim == 1   ? tensor_1d(data, dtype, d0)
               : ndim == 2 ? tensor_2d(data, dtype, d0, d1)
                           : tensor_3d(data, dtype, d0, d1, d2);
    t.place = arena->place;
    return t;
}
