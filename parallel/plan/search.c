/* search.c -- lists the layouts of a space and plans the promising ones; see search.h. */
#include "parallel/plan/search.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* ---- the space ------------------------------------------------------------------------------- */

typedef struct {
    PlanLayout *item;
    int64_t n, capacity;
} Layouts;

static bool is_legal(const Candidate *base, const PlanLayout *layout)
{
    Candidate c = *base;
    c.value[CANDIDATE_TENSOR] = layout->tensor;
    c.value[CANDIDATE_PIPELINE] = layout->pipeline;
    c.value[CANDIDATE_CHUNKS] = layout->chunks;
    c.value[CANDIDATE_MICRO] = layout->micro;
    c.value[CANDIDATE_ZERO] = layout->zero;
    c.value[CANDIDATE_RECOMPUTE] = layout->recompute;
    c.value[CANDIDATE_SEQUENCE] = layout->sequence_parallel;
    c.value[CANDIDATE_SPLIT] = 0;
    c.fixed |= KEY_BIT(CANDIDATE_MICRO) | KEY_BIT(CANDIDATE_BATCH);
    c.fixed &=
        ~(KEY_BIT(CANDIDATE_DATA) | KEY_BIT(CANDIDATE_SCHEDULE) | KEY_BIT(CANDIDATE_ACCUMULATION));
    candidate_follow(&c);
    return candidate_legal(&c, ALL_RULES);
}

static void add_if_legal(Layouts *to, const Candidate *base, const PlanLayout *layout)
{
    if (!is_legal(base, layout)) return;
    if (to->n == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 256;
        to->item = must_realloc(to->item, (size_t)to->capacity * sizeof *to->item);
    }
    to->item[to->n++] = *layout;
}

/* Adds all layouts of a grid and a micro-batch. */
static void add_ways(Layouts *to, const Candidate *base, PlanLayout layout)
{
    int64_t dp = base->value[CANDIDATE_RANKS] / (layout.tensor * layout.pipeline);
    for (layout.zero = 0; layout.zero <= (dp > 1 ? 3 : 0); layout.zero++)
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++)
            for (int rows = 0; rows <= (layout.tensor > 1); rows++) {
                layout.recompute = (RecomputePolicy)policy;
                layout.sequence_parallel = rows == 1;
                add_if_legal(to, base, &layout);
            }
}

int64_t search_space(const Candidate *base, int64_t most_tensor, PlanLayout **out)
{
    /* The last place is for the config's own number, if it is another one. */
    int64_t chunks[] = {1, 2, 3, 4, 6, 8, 0}, own = base->value[CANDIDATE_CHUNKS];
    size_t n_chunks = sizeof chunks / sizeof *chunks - 1;
    bool listed = own < 1;
    for (size_t c = 0; c < n_chunks; c++)
        listed = listed || chunks[c] == own;
    if (!listed) chunks[n_chunks++] = own;
    enum { MOST_MICRO = 256 };
    Layouts all = {0};
    int64_t ranks = base->value[CANDIDATE_RANKS], layers = base->value[CANDIDATE_LAYERS];
    for (int64_t tp = 1; tp <= min_i64(ranks, most_tensor); tp++) {
        for (int64_t pp = 1; pp <= min_i64(ranks / tp, layers); pp++) {
            if (ranks % (tp * pp) != 0) continue;
            for (size_t c = 0; c < n_chunks; c++)
                for (int64_t micro = 1; micro <= MOST_MICRO; micro *= 2)
                    add_ways(
                        &all, base,
                        (PlanLayout){
                            .tensor = tp, .pipeline = pp, .chunks = chunks[c], .micro = micro});
        }
    }
    *out = all.item;
    return all.n;
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct {
    double bound, guess;
    int64_t number; /* in the space: the order of equals */
    bool done;      /* planned, or beaten */
} Prospect;

static int compare_prospects(const void *x, const void *y)
{
    const Prospect *a = x, *b = y;
    if (a->guess != b->guess) return a->guess < b->guess ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* Inserts a planned layout among the best. */
static void insert(PlanSearch *s, const PlanLayout *layout, double seconds)
{
    if (!isfinite(seconds)) return;
    int at = s->found;
    while (at > 0 && s->seconds[at - 1] > seconds)
        at--;
    if (at == SEARCH_BEST) return;
    if (s->found < SEARCH_BEST) s->found++;
    for (int i = s->found - 1; i > at; i--) {
        s->best[i] = s->best[i - 1];
        s->seconds[i] = s->seconds[i - 1];
    }
    s->best[at] = *layout;
    s->seconds[at] = seconds;
}

/* Returns whether a layout that takes at least `bound` cannot be among the best. */
static bool is_beaten(const PlanSearch *s, double bound)
{
    return s->found == SEARCH_BEST && bound > s->seconds[SEARCH_BEST - 1];
}

/* Returns in how many of their choices two layouts differ. */
static int choices_apart(const PlanLayout *a, const PlanLayout *b)
{
    return (a->tensor != b->tensor) + (a->pipeline != b->pipeline) + (a->chunks != b->chunks) +
           (a->micro != b->micro) + (a->zero != b->zero) + (a->recompute != b->recompute) +
           (a->sequence_parallel != b->sequence_parallel);
}

/* Returns the number of the next prospect to plan, or -1: by turns the first of those that differ
 * from the best layout in one choice, as far as there are any, and the first of all. So an error of
 * the guess costs less. */
static int64_t next_prospect(const PlanSearch *s, const Prospect *prospect, int64_t n,
                             const PlanLayout *layout)
{
    int64_t first = -1;
    for (int64_t i = 0; i < n; i++) {
        if (prospect[i].done) continue;
        if (first < 0) first = i;
        if (s->found == 0 || s->planned % 2 == 0) return first;
        if (choices_apart(&layout[prospect[i].number], &s->best[0]) == 1) return i;
    }
    return first;
}

PlanSearch search_layouts(const Candidate *base, int64_t most_tensor, const SearchCosts *costs,
                          int64_t most)
{
    PlanSearch s = {0};
    PlanLayout *layout;
    int64_t n = 0;
    clock_t begun = clock();
    s.space = search_space(base, most_tensor, &layout);
    Prospect *prospect = must_calloc((size_t)max_i64(s.space, 1), sizeof *prospect);
    for (int64_t i = 0; i < s.space; i++) {
        double bound = costs->bound(costs->context, &layout[i]);
        if (isfinite(bound))
            prospect[n++] = (Prospect){
                .bound = bound, .guess = costs->guess(costs->context, &layout[i]), .number = i};
    }
    s.misfits = s.space - n;
    qsort(prospect, (size_t)n, sizeof *prospect, compare_prospects);
    for (int64_t i; (i = next_prospect(&s, prospect, n, layout)) >= 0;) {
        const PlanLayout *next = &layout[prospect[i].number];
        prospect[i].done = true;
        if (is_beaten(&s, prospect[i].bound)) continue;
        double used = (double)(clock() - begun) / CLOCKS_PER_SEC;
        if (s.planned == most || (costs->time > 0 && used > costs->time)) {
            s.left++;
            continue;
        }
        s.planned++;
        insert(&s, next, costs->seconds(costs->context, next));
    }
    free(prospect);
    free(layout);
    return s;
}
