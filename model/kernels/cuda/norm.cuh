/* norm.cuh -- how the norms give groups to threads, shared by forward and backward.
 *
 * A group (a row, or a head of it) has a team of threads that hold it in registers: a power of two
 * of lanes, several teams to a warp, where a warp can hold it, else a whole block. */
#ifndef MODEL_KERNELS_CUDA_NORM_CUH
#define MODEL_KERNELS_CUDA_NORM_CUH

#include "model/kernels/cuda/rows.cuh"

typedef struct {
    int64_t groups; /* N * K */
    int per_row;    /* K */
    int width;      /* W, elements of a group */
    int packs;      /* of a group */
    int lanes;      /* of a team */
    int threads;    /* of a block: a whole number of teams and of warps */
} Teams;

enum { TEAM_BLOCK = 256 };

/* Teams for groups of w's length in the rows of x: packs of n elements, `held` packs a thread, at
 * most `most` threads a group. */
static inline Teams teams_of(Tensor x, Tensor w, int n, int held, int most)
{
    int64_t width = tensor_count(w), packs = width / n;
    CHECK(packs <= (int64_t)most * held, "a norm over %lld elements: CUDA's take at most %lld",
          (long long)width, (long long)most * held * n);
    Teams t = {tensor_rows(x) * (tensor_cols(x) / width),
               (int)(tensor_cols(x) / width),
               (int)width,
               (int)packs,
               1,
               TEAM_BLOCK};
    if (packs > (int64_t)WARP * held) {
        t.lanes = t.threads = (int)ceil_div(packs, (int64_t)held * WARP) * WARP;
        return t;
    }
    while (t.lanes < WARP && t.lanes < packs)
        t.lanes *= 2;
    return t;
}

static inline bool team_is_block(Teams t)
{
    return t.lanes > WARP;
}

/* The row and first column of a group. */
static __device__ __forceinline__ void group_place(Teams t, int64_t group, int64_t *row,
                                                   int64_t *col)
{
    *row = t.per_row == 1 ? group : group / t.per_row;
    *col = t.per_row == 1 ? 0 : (group - *row * t.per_row) * t.width;
}

#endif
