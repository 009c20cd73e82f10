/* query_walk.cuh -- finds the tiles of queries that a block which owns keys loops over, when it
 * computes dk and dv. */
#ifndef MODEL_KERNELS_CUDA_QUERY_WALK_CUH
#define MODEL_KERNELS_CUDA_QUERY_WALK_CUH

#include "model/kernels/cuda/attention.cuh"

/* A block's position in its loop over tiles of queries. */
typedef struct {
    int head, heads_end; /* query head; end of the heads of the group */
    int t;               /* first query of the tile */
} QueryWalk;

/* Finds the next tile of queries, starting with (head, t) itself, in which some query sees one of
 * the keys [key, key + n). Goes through the heads of the group, and the queries of each head, in
 * ascending order. If there is none, head becomes heads_end. All warps get the same result. */
template <int WALKED>
static __device__ __forceinline__ void walk_find(QueryWalk &w, const AttentionShape &s, int b,
                                                 int key, int n)
{
    for (;; w.t += WALKED) {
        if (w.t >= s.tq) {
            w.head++;
            w.t = max(key - s.offset, 0) / WALKED * WALKED;
        }
        if (!s.first_key || w.head >= w.heads_end) return;
        int first, end;
        keys_seen_by(s, b, w.t, WALKED, &first, &end);
        if (first < key + n) return;
    }
}

/* Returns the first tile of the walk of a block that owns the n keys from at.row on. The walk is
 * empty if even the last query is too early to see the first of these keys. Otherwise the search
 * begins at the tile with the first query that is late enough. */
template <int WALKED>
static __device__ __forceinline__ QueryWalk walk_begin(const AttentionShape &s,
                                                       const BlockPlace &at, int n)
{
    QueryWalk w = {at.head, at.head + s.group, max(at.row - s.offset, 0) / WALKED * WALKED};
    if (at.row >= s.tq + s.offset) w.head = w.heads_end;
    walk_find<WALKED>(w, s, (int)at.b, at.row, n);
    return w;
}

#endif
