/* prefetch.c -- see prefetch.h.
 *
 * Stays and points are defined in prefetch.h. At first every use is a separate stay of two points.
 * Then stays of the same unit are joined over short gaps, shortest first, if this does not exceed
 * the limit of live elements. Then each stay, in order, begins as early as the limit and the bucket
 * allow. Positions in the buffer are assigned first come, first fit. Gaps between positions may
 * make the buffer longer than the limit. Then everything is repeated with a smaller limit, and in
 * the last attempt with at most two stays at a time, one at each end of the buffer. */
#include "parallel/zero/prefetch.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <stdlib.h>

/* A plan that is being made. */
typedef struct {
    const int64_t *size;
    const GatherLimits *limits;
    int64_t n;      /* number of points */
    int *unit;      /* the unit used at each point */
    int64_t *next;  /* the point of the same unit's next use; n: none */
    int64_t *live;  /* elements in the buffer at each point, and at one point after the last */
    int64_t *ahead; /* of these, elements gathered but not used yet */
    bool *joined;   /* whether the unit is kept from this use to its next one */
} Draft;

static int64_t size_at(const Draft *d, int64_t point)
{
    return d->size[d->unit[point]];
}

static Draft draft_create(const int64_t *size, const Use *uses, int64_t n_uses,
                          const GatherLimits *limits)
{
    Draft d = {.size = size, .limits = limits};
    int units = 0;
    for (int64_t i = 0; i < n_uses; i++) {
        d.n += uses[i].weight;
        if (uses[i].unit >= units) units = uses[i].unit + 1;
    }
    d.unit = must_calloc((size_t)d.n + 1, sizeof *d.unit);
    d.next = must_calloc((size_t)d.n + 1, sizeof *d.next);
    d.live = must_calloc((size_t)d.n + 2, sizeof *d.live);
    d.ahead = must_calloc((size_t)d.n + 2, sizeof *d.ahead);
    d.joined = must_calloc((size_t)d.n + 1, sizeof *d.joined);
    int64_t *later = must_calloc((size_t)units + 1, sizeof *later), point = d.n;
    for (int u = 0; u < units; u++)
        later[u] = d.n;
    for (int64_t i = n_uses; i-- > 0;) {
        if (!uses[i].weight) continue;
        d.unit[--point] = uses[i].unit;
        d.next[point] = later[uses[i].unit];
        later[uses[i].unit] = point;
    }
    free(later);
    return d;
}

static void draft_free(Draft *d)
{
    free(d->unit);
    free(d->next);
    free(d->live);
    free(d->ahead);
    free(d->joined);
}

/* ---- joining stays --------------------------------------------------------------------------- */

/* Makes every use a separate stay, which lasts for the use's point and the next one. */
static void start_alone(Draft *d)
{
    for (int64_t p = 0; p <= d->n; p++) {
        bool again = p > 0 && p < d->n && d->unit[p] == d->unit[p - 1];
        d->live[p] = (p < d->n ? size_at(d, p) : 0) + (p > 0 && !again ? size_at(d, p - 1) : 0);
        d->ahead[p] = 0;
        if (p < d->n) d->joined[p] = d->next[p] == p + 1; /* not released in between */
    }
}

typedef struct {
    int64_t point, distance;
} Gap;

static int shorter_first(const void *a, const void *b)
{
    const Gap *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return x->point < y->point ? -1 : 1;
}

/* Joins the use at `point` with the unit's next use if `limit` has room for the unit in between. */
static void join(Draft *d, int64_t point, int64_t limit)
{
    int64_t size = size_at(d, point);
    for (int64_t p = point + 2; p < d->next[point]; p++)
        if (d->live[p] + size > limit) return;
    for (int64_t p = point + 2; p < d->next[point]; p++)
        d->live[p] += size;
    d->joined[point] = true;
}

static void join_stays(Draft *d, int64_t limit)
{
    Gap *gap = must_calloc((size_t)d->n + 1, sizeof *gap);
    int64_t n = 0;
    for (int64_t i = 0; i < d->n; i++) {
        int64_t distance = 0;
        if (size_at(d, i) == 0 || d->joined[i] || d->next[i] == d->n) continue;
        for (int64_t p = i + 1; p < d->next[i] && distance <= d->limits->max_reuse_distance; p++)
            distance += size_at(d, p);
        if (distance <= d->limits->max_reuse_distance) gap[n++] = (Gap){i, distance};
    }
    qsort(gap, (size_t)n, sizeof *gap, shorter_first);
    for (int64_t i = 0; i < n; i++)
        join(d, gap[i].point, limit);
    free(gap);
}

/* ---- gathering ahead ------------------------------------------------------------------------- */

/* Returns the earliest point, not before `earliest`, at which the stay whose first use is `first`
 * can be gathered. */
static int64_t begin_earlier(Draft *d, int64_t first, int64_t earliest, int64_t limit)
{
    int64_t size = size_at(d, first), at = first;
    while (at > earliest && d->ahead[at - 1] + size <= d->limits->prefetch_bucket_size &&
           d->live[at - 1] + size <= limit) {
        at--;
        d->ahead[at] += size;
        d->live[at] += size;
    }
    return at;
}

/* Lists the stays in order of their first use; with `ahead` they begin as early as possible. */
static void list_stays(Draft *d, GatherPlan *plan, bool ahead, int64_t limit)
{
    /* For the first point of each stay: the earliest point at which its gather may begin. */
    int64_t *free_at = must_calloc((size_t)d->n + 1, sizeof *free_at);
    bool *begun = must_calloc((size_t)d->n + 1, sizeof *begun);
    int64_t earliest = 0;
    plan->n = 0;
    for (int64_t i = 0; i < d->n; i++) {
        if (size_at(d, i) == 0 || begun[i]) continue;
        Gather g = {.unit = d->unit[i], .at = i, .first = i, .last = i};
        while (d->joined[g.last]) {
            g.last = d->next[g.last];
            begun[g.last] = true;
        }
        /* The unit's next stay must not begin before this one ends. */
        if (d->next[g.last] < d->n) free_at[d->next[g.last]] = g.last + 2;
        if (earliest < free_at[i]) earliest = free_at[i];
        if (ahead) g.at = begin_earlier(d, i, earliest, limit);
        earliest = g.at;
        plan->gather[plan->n++] = g;
    }
    free(begun);
    free(free_at);
}

/* ---- positions ----------------------------------------------------------------------------------
 */

/* The stays that are in the buffer, in order of their positions. */
typedef struct {
    int64_t *stay, n;
} Placed;

/* Removes the stays that have ended when `point` begins. */
static void take_out_ended(const GatherPlan *plan, Placed *placed, int64_t point)
{
    int64_t n = 0;
    for (int64_t k = 0; k < placed->n; k++)
        if (plan->gather[placed->stay[k]].last + 2 > point) placed->stay[n++] = placed->stay[k];
    placed->n = n;
}

/* Assigns each stay the first free range that is long enough. */
static void place_all(const Draft *d, GatherPlan *plan)
{
    Placed placed = {.stay = must_calloc((size_t)plan->n + 1, sizeof(int64_t))};
    plan->elements = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        Gather *g = &plan->gather[i];
        int64_t at = 0, k = 0;
        take_out_ended(plan, &placed, g->at);
        for (; k < placed.n; k++) {
            const Gather *other = &plan->gather[placed.stay[k]];
            if (at + d->size[g->unit] <= other->offset) break;
            at = other->offset + d->size[other->unit];
        }
        for (int64_t m = placed.n++; m > k; m--)
            placed.stay[m] = placed.stay[m - 1];
        placed.stay[k] = i;
        g->offset = at;
        if (at + d->size[g->unit] > plan->elements) plan->elements = at + d->size[g->unit];
    }
    free(placed.stay);
}

/* Places at most two stays at a time: one at the beginning of the buffer, the other at its end. */
static void place_at_the_ends(const Draft *d, GatherPlan *plan, int64_t elements)
{
    const Gather *low = NULL;
    plan->elements = elements;
    for (int64_t i = 0; i < plan->n; i++) {
        Gather *g = &plan->gather[i];
        bool taken = low != NULL && low->last + 2 > g->at;
        g->offset = taken ? elements - d->size[g->unit] : 0;
        if (!taken) low = g;
    }
}

/* ---- the plan -------------------------------------------------------------------------------- */

int64_t gathers_least(const int64_t *size, const Use *uses, int64_t n_uses)
{
    int64_t least = 0;
    Draft d = draft_create(size, uses, n_uses, NULL);
    start_alone(&d);
    for (int64_t p = 0; p <= d.n; p++)
        if (d.live[p] > least) least = d.live[p];
    draft_free(&d);
    return least;
}

GatherPlan gathers_plan(const int64_t *size, const Use *uses, int64_t n_uses,
                        const GatherLimits *limits)
{
    int64_t most = limits->max_live_parameters, least = gathers_least(size, uses, n_uses);
    Draft d = draft_create(size, uses, n_uses, limits);
    GatherPlan plan = {.gather = must_calloc((size_t)d.n + 1, sizeof *plan.gather)};
    CHECK(most >= least, "%lld elements for gathers that need %lld", (long long)most,
          (long long)least);
    /* At most all units together can be live, so a larger limit has no effect. */
    int64_t all = 0;
    for (int64_t i = 0; i < d.n; i++)
        if (d.next[i] == d.n) all += size_at(&d, i);
    most = min_i64(most, all > least ? all : least);
    for (int eighths = 8; eighths >= 0; eighths--) {
        int64_t limit = least + (most - least) / 8 * eighths;
        if (eighths == 8) limit = most;
        /* The last attempt neither joins stays nor prefetches, so it has at most two stays at a
         * time. */
        start_alone(&d);
        if (eighths > 0) join_stays(&d, limit);
        list_stays(&d, &plan, eighths > 0, limit);
        place_all(&d, &plan);
        if (plan.elements <= limits->max_live_parameters) break;
        if (eighths == 0) place_at_the_ends(&d, &plan, least);
    }
    draft_free(&d);
    plan.gather = must_realloc(plan.gather, (size_t)(plan.n + 1) * sizeof *plan.gather);
    return plan;
}

void gathers_free(GatherPlan *plan)
{
    free(plan->gather);
    *plan = (GatherPlan){0};
}
