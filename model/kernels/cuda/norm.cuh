/* norm.cuh -- assigns the groups of a norm to threads, for forward and backward.
 *
 * A group is what is normalised together: a row, or one head of a row. The threads that work on one
 * group are called a team here; they hold the group's elements in registers. If a warp has enough
 * threads for a group, the team is a power of two of the warp's lanes, and a warp may consist of
 * several teams. Otherwise the team is a whole block. */
#ifndef MODEL_KERNELS_CUDA_NORM_CUH
#define MODEL_KERNELS_CUDA_NORM_CUH

#include "model/kernels/cuda/rows.cuh"

typedef struct {
    int64_t groups; /* N * K: groups of the whole tensor */
    int per_row;    /* K: groups per row */
    int width;      /* W: elements per group */
    int packs;      /* packs per group */
    int lanes;      /* threads per team */
    int threads;    /* threads of a block: whole teams and whole warps */
    float share;    /* 1 / W: the weight of an element in a mean */
} Teams;

enum { TEAM_BLOCK = 256 };

static_assert(TEAM_BLOCK % WARP == 0, "a block holds whole teams of every power of two of lanes");

/* Returns the teams for the rows of x, with groups as long as w. n is the number of elements in a
 * pack, `held` the largest number of packs that a thread holds, `most` the largest number of
 * threads in a team. Ends the program if even the largest team cannot hold a group. */
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
               TEAM_BLOCK,
               1.0f / (float)width};
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

/* The place of a group: its row, and its first column there. */
typedef struct {
    int64_t row;
    int col;
} GroupPlace;

static __device__ __forceinline__ GroupPlace place_of(Teams t, int64_t group)
{
    int64_t row = t.per_row == 1 ? group : group / t.per_row;
    return {row, t.per_row == 1 ? 0 : (int)(group - row * t.per_row) * t.width};
}

/* Returns the place of group a + b from the places of a and b, without a division. */
static __device__ __forceinline__ GroupPlace place_after(Teams t, GroupPlace a, GroupPlace b)
{
    GroupPlace sum = {a.row + b.row, a.col + b.col};
    int cols = t.per_row * t.width;
    return sum.col < cols ? sum : GroupPlace{sum.row + 1, sum.col - cols};
}

#endif
