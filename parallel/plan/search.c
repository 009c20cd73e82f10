/* search.c -- lists the layouts of a space and plans the promising ones; see search.h. */
#include "parallel/plan/search.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <math.h>
#include <stdlib.h>

/* ---- the space ------------------------------------------------------------------------------- */

typedef struct {
    PlanLayout *item;
    int64_t n, capacity;
} Layouts;

bool search_legal(const Candidate *base, const PlanLayout *layout, unsigned rules)
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
    return candidate_legal(&c, rules);
}

static void add_if_legal(Layouts *to, const Candidate *base, const PlanLayout *layout)
{
    if (!search_legal(base, layout, ALL_RULES)) return;
    if (to->n == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 256;
        to->item = must_realloc(to->item, (size_t)to->capacity * sizeof *to->item);
    }
    to->item[to->n++] = *layout;
}

/* Adds all legal layouts that have the grid, the number of chunks and the micro-batch of
 * `layout`. */
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

/* Returns whether the search tries this number of chunks per stage for a pipeline. */
static bool is_tried(const Candidate *base, int64_t pipeline, int64_t chunks)
{
    int64_t layers = (base->value[CANDIDATE_LAYERS] - 1) / pipeline + 1;
    bool usual = chunks <= 4 || chunks == 6 || chunks == 8;
    return usual || layers % chunks == 0 || chunks == base->value[CANDIDATE_CHUNKS];
}

int64_t search_space(const Candidate *base, int64_t most_tensor, PlanLayout **out)
{
    enum { MOST_MICRO = 256 };
    Layouts all = {0};
    int64_t ranks = base->value[CANDIDATE_RANKS], layers = base->value[CANDIDATE_LAYERS];
    PlanLayout l = {.host = HOST_GIVEN};
    for (l.tensor = 1; l.tensor <= min_i64(ranks, most_tensor); l.tensor++)
        for (l.pipeline = 1; l.pipeline <= min_i64(ranks / l.tensor, layers); l.pipeline++) {
            if (ranks % (l.tensor * l.pipeline) != 0) continue;
            for (l.chunks = 1; l.chunks * l.pipeline <= layers; l.chunks++)
                for (l.micro = 1; l.micro <= MOST_MICRO; l.micro *= 2)
                    if (is_tried(base, l.pipeline, l.chunks)) add_ways(&all, base, l);
        }
    *out = all.item;
    return all.n;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* A layout that the search may still plan. `bound` is a lower bound of its seconds per step, and
 * `guess` an estimate of them (SearchCosts). */
typedef struct {
    double bound, guess;
    int64_t number; /* number of the layout in the space; it orders prospects with equal guesses */
    bool done;      /* the layout was planned, or left out because of its bound */
} Prospect;

static int compare_prospects(const void *x, const void *y)
{
    const Prospect *a = x, *b = y;
    if (a->guess != b->guess) return a->guess < b->guess ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

/* Inserts a planned layout among the best ones, unless it does not fit or SEARCH_BEST others are at
 * least as fast. */
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

/* Returns whether a layout whose step takes at least `bound` seconds cannot be among the best. */
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

/* Returns the first prospect that is not done, whose guess is at most `most`, and whose layout
 * differs in a single choice from one of the layouts s->best[from..to); -1: there is none. */
static int64_t first_neighbour(const PlanSearch *s, const Prospect *prospect, int64_t n,
                               const PlanLayout *layout, int from, int to, double most)
{
    for (int64_t i = 0; i < n && prospect[i].guess <= most; i++)
        for (int b = from; !prospect[i].done && b < to && b < s->found; b++)
            if (choices_apart(&layout[prospect[i].number], &s->best[b]) == 1) return i;
    return -1;
}

/* Returns the index of the next prospect to plan; -1: there is none. search.h describes the order;
 * with it, wrong guesses cost less time. `guess` is the guess for the best layout that has been
 * found so far. */
static int64_t next_prospect(const PlanSearch *s, const Prospect *prospect, int64_t n,
                             const PlanLayout *layout, double guess)
{
    enum { BEGIN = 6 };
    const double FAR = 1.5;
    int64_t first = 0, near = -1;
    while (first < n && prospect[first].done)
        first++;
    if (first == n) return -1;
    if (s->planned >= BEGIN) near = first_neighbour(s, prospect, n, layout, 0, 1, FAR * guess);
    if (s->planned >= BEGIN && near < 0 && s->planned % 2 == 1)
        near = first_neighbour(s, prospect, n, layout, 1, SEARCH_BEST, FAR * guess);
    return near >= 0 ? near : first;
}

PlanSearch search_layouts(const Candidate *base, int64_t most_tensor, const SearchCosts *costs,
                          int64_t most)
{
    PlanSearch s = {.ranks = base->value[CANDIDATE_RANKS]};
    PlanLayout *layout;
    int64_t n = 0, work = 0;
    double guess = 0; /* of the best layout so far */
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
    for (int64_t i; work < most && (i = next_prospect(&s, prospect, n, layout, guess)) >= 0;) {
        PlanLayout *next = &layout[prospect[i].number];
        prospect[i].done = true;
        if (is_beaten(&s, prospect[i].bound)) continue;
        s.planned++;
        double seconds = costs->seconds(costs->context, next, &work);
        if (isfinite(seconds) && (s.found == 0 || seconds < s.seconds[0]))
            guess = prospect[i].guess;
        insert(&s, next, seconds);
    }
    for (int64_t i = 0; i < n; i++)
        s.left += !prospect[i].done && !is_beaten(&s, prospect[i].bound);
    free(prospect);
    free(layout);
    return s;
}
