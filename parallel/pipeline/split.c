/* split.c -- see split.h. Uses dynamic programming: fills a table over (ranges left, first block)
 * twice. First its entries are the smallest possible cost of the most expensive range; then, with
 * that as a limit, the smallest sum of squared costs. */
#include "parallel/pipeline/split.h"

#include "model/core/check.h"

#include <stdlib.h>

/* Squared costs are integers, so that equally good splits have exactly equal sums. */
typedef unsigned __int128 Square;

typedef struct {
    int64_t *before; /* [blocks + 1] cost of all layers before block i */
    int blocks, runs;
    Square *best; /* [ranges left][first block] */
} Split;

static int64_t cost_of(const LayerCost *cost, int layer, int layers, Partition by)
{
    if (by == PARTITION_UNIFORM) return layer > 0 && layer < layers - 1;
    return by == PARTITION_PARAMETERS ? cost[layer].parameters : cost[layer].flops;
}

/* Adds up the costs of blocks; the embedding counts as part of the first block, the head as part of
 * the last. */
static void add_up(Split *s, const LayerCost *cost, int layers, Partition by)
{
    /* The embedding and the head are not blocks, but their stages also do their work: the head of a
     * large vocabulary costs as much as several blocks. */
    s->before[0] = 0;
    for (int i = 0; i < s->blocks; i++) {
        int64_t c = cost_of(cost, i + 1, layers, by);
        if (i == 0) c += cost_of(cost, 0, layers, by);
        if (i == s->blocks - 1) c += cost_of(cost, layers - 1, layers, by);
        s->before[i + 1] = s->before[i] + c;
    }
}

static Square *best_at(const Split *s, int runs, int first)
{
    return &s->best[(size_t)runs * (size_t)(s->blocks + 1) + (size_t)first];
}

static const Square NEVER = ~(Square)0;

/* Fills the table entry for splitting the blocks from `first` on into `runs` ranges, trying all
 * ends of the first range. limit < 0: computes the smallest possible cost of the most expensive
 * range; otherwise the smallest sum of squares of ranges that cost at most `limit`. */
static void fill(const Split *s, int runs, int first, int64_t limit)
{
    Square best = NEVER;
    /* Each of the remaining ranges needs at least one block. Longer first ranges cost at least as
     * much, so the search ends where the first range alone is not cheaper than the best split. */
    for (int end = first + 1; end <= s->blocks - (runs - 1); end++) {
        Square run = (Square)(s->before[end] - s->before[first]), rest = *best_at(s, runs - 1, end);
        if ((limit >= 0 && run > (Square)limit) || (limit >= 0 ? run * run : run) >= best) break;
        if (rest == NEVER) continue;
        Square value = limit >= 0 ? run * run + rest : run > rest ? run : rest;
        if (value < best) best = value;
    }
    *best_at(s, runs, first) = best;
}

static void fill_all(const Split *s, int64_t limit)
{
    for (int first = 0; first <= s->blocks; first++)
        *best_at(s, 0, first) = first == s->blocks ? 0 : NEVER;
    for (int runs = 1; runs <= s->runs; runs++)
        for (int first = 0; first <= s->blocks; first++)
            fill(s, runs, first, limit);
}

void pipeline_split(const LayerCost *cost, int layers, int runs, Partition by, int *border)
{
    Split s = {.blocks = layers - 2, .runs = runs};
    CHECK(runs >= 1 && s.blocks >= runs, "%d blocks in %d runs", s.blocks, runs);
    s.before = must_calloc((size_t)s.blocks + 1, sizeof *s.before);
    s.best = must_calloc((size_t)(runs + 1) * (size_t)(s.blocks + 1), sizeof *s.best);
    add_up(&s, cost, layers, by);
    /* First minimises the cost of the most expensive range, because a pipeline is as fast as its
     * slowest stage. Then takes the most even of these splits, in which the other stages wait
     * least. */
    fill_all(&s, -1);
    int64_t limit = (int64_t)*best_at(&s, runs, 0);
    fill_all(&s, limit);
    border[0] = 0;
    for (int r = 0, first = 0; r < runs; r++) {
        /* Tries short ranges first, so that among equally good splits the one with short first
         * ranges is taken. */
        int end = first + 1;
        for (;; end++) {
            Square run = (Square)(s.before[end] - s.before[first]),
                   rest = *best_at(&s, runs - 1 - r, end);
            if (rest != NEVER && run <= (Square)limit &&
                run * run + rest == *best_at(&s, runs - r, first))
                break;
        }
        first = end;
        border[r + 1] = first + 1; /* + 1: the embedding is layer 0 */
    }
    border[runs] = layers;
    free(s.before);
    free(s.best);
}

void pipeline_split_blocks(const int64_t *blocks, int runs, int *border)
{
    border[0] = 0;
    for (int r = 0; r < runs; r++) {
        CHECK(blocks[r] > 0, "run %d of %lld blocks", r, (long long)blocks[r]);
        border[r + 1] = border[r] + (r == 0) + (int)blocks[r];
    }
    border[runs]++; /* the head */
}
