/* search_none.c -- says why a search finds nothing, and finds the nearest alternative; see
 * search.h. */
#include "parallel/plan/search.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/min_max.h"
#include "parallel/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- no layout is legal ---------------------------------------------------------------------- */

/* Moves `l` to the next grid for the candidate's number of ranks, in the order of search_space; if
 * `l` is {0}, to the first grid. Returns false after the last grid. */
static bool next_grid(const Candidate *base, int64_t most_tensor, PlanLayout *l)
{
    int64_t ranks = base->value[CANDIDATE_RANKS], layers = base->value[CANDIDATE_LAYERS];
    if (l->tensor == 0) *l = (PlanLayout){.tensor = 1, .chunks = 1, .micro = 1};
    for (; l->tensor <= min_i64(ranks, most_tensor); l->tensor++, l->pipeline = 0)
        for (l->pipeline++; l->pipeline <= min_i64(ranks / l->tensor, layers); l->pipeline++)
            if (ranks % (l->tensor * l->pipeline) == 0) return true;
    return false;
}

/* Returns whether `ranks` ranks have a legal layout. Only layouts with one chunk, micro-batches of
 * one sequence and ZeRO stage 0 are tried: if a grid has any legal layout, that one is legal. */
static bool have_legal(const Candidate *base, int64_t ranks, int64_t most_tensor)
{
    Candidate c = *base;
    PlanLayout l = {0};
    c.value[CANDIDATE_RANKS] = ranks;
    while (next_grid(&c, most_tensor, &l))
        if (search_legal(&c, &l, ALL_RULES)) return true;
    return false;
}

SearchNearest search_nearest(const Candidate *base, int64_t most_tensor)
{
    SearchNearest near = {0};
    PlanLayout l = {0};
    double least = INFINITY;
    int64_t ranks = base->value[CANDIDATE_RANKS], batch = base->value[CANDIDATE_BATCH];
    /* Only the rule for the batch can exclude all grids, because the grid with one rank per copy of
     * the model breaks no other rule. `ratio` is the factor by which the batch would have to
     * change. If several grids have the smallest ratio, the last one is taken, which has the most
     * tensor-parallel ranks. */
    while (next_grid(base, most_tensor, &l)) {
        if (!search_legal(base, &l, ALL_RULES & ~RULE_BIT(RULE_BATCH))) continue;
        int64_t dp = ranks / (l.tensor * l.pipeline), below = batch / dp * dp, above = below + dp;
        double ratio = (double)above / (double)batch;
        if (below > 0) ratio = fmin(ratio, (double)batch / (double)below);
        if (ratio > least) continue;
        least = ratio;
        near = (SearchNearest){.layout = l, .dp = dp, .batch = {below, above}};
    }
    for (int64_t n = ranks - 1; n > 0 && near.ranks[0] == 0; n--)
        if (have_legal(base, n, most_tensor)) near.ranks[0] = n;
    for (int64_t n = ranks + 1; n <= CONFIG_MAX_RANKS && near.ranks[1] == 0; n++)
        if (have_legal(base, n, most_tensor)) near.ranks[1] = n;
    return near;
}

/* ---- no layout fits -------------------------------------------------------------------------- */

PlanLayout search_smallest(const Config *config, const Candidate *base, int64_t most_tensor)
{
    PlanLayout *layout, smallest = {0};
    double least = INFINITY;
    int64_t ranks = base->value[CANDIDATE_RANKS], n = search_space(base, most_tensor, &layout);
    for (int64_t i = 0; i < n; i++) {
        if (!plan_gathers_pairs(config, &layout[i], ranks)) continue;
        double bytes = plan_estimate_bytes(config, &layout[i], ranks);
        if (bytes >= least) continue;
        least = bytes;
        smallest = layout[i];
    }
    free(layout);
    return smallest;
}

/* ---- in words -------------------------------------------------------------------------------- */

/* Writes the two numbers as "A or B"; if one of them is 0, only the other. */
static const char *either(const int64_t value[2], char *buf, size_t n)
{
    if (value[0] > 0 && value[1] > 0)
        snprintf(buf, n, "%lld or %lld", (long long)value[0], (long long)value[1]);
    else
        snprintf(buf, n, "%lld", (long long)max_i64(value[0], value[1]));
    return buf;
}

char *plan_search_nothing(const PlanSearch *s, const Config *settled)
{
    const SearchNearest *near = &s->nearest;
    char batch[64], ranks[64], grid[128];
    snprintf(grid, sizeof grid, "parallel.tensor %lld and parallel.pipeline %lld",
             (long long)near->layout.tensor, (long long)near->layout.pipeline);
    if (s->space == 0)
        return text_format(
            "no layout is legal, because the data-parallel ranks must divide train_batch_size "
            "%lld; the nearest, %s, leaves %s; write train_batch_size %s, or --world %s",
            (long long)settled->train_batch_size, grid,
            figure_of(near->dp, "data-parallel rank").text,
            either(near->batch, batch, sizeof batch), either(near->ranks, ranks, sizeof ranks));
    return text_format(
        "no layout%s fits into memory%s; the smallest by an estimate, %s with ZeRO stage %lld, "
        "needs "
        "%s of the %s that %s may use (memory_margin %g); write a larger --world, or make the "
        "batch or the model smaller",
        s->left > 0 ? " that was planned" : "",
        s->on_host ? ", with states of the optimizer on the host neither" : "", grid,
        (long long)near->layout.zero, figure_bytes((double)near->needed).text,
        figure_bytes((double)near->room).text, near->of_node ? "a node" : "a rank",
        settled->memory_margin);
}
