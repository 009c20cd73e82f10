/* zero_grid.c -- runs the parameter store on a grid and checks its results (see zero_grid.h). */
#include "tests/support/grid/zero_grid_work.h"

#include "model/core/check.h"
#include "model/param/extents.h"
#include "optim/grad_norm.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void zero_grid_wrong(ZeroGridWork *w, const char *fmt, ...)
{
    va_list args;
    if (w->rank->wrong[0]) return;
    int n = snprintf(w->rank->wrong, sizeof w->rank->wrong, "rank %d: ", w->world->rank);
    va_start(args, fmt);
    vsnprintf(w->rank->wrong + n, sizeof w->rank->wrong - (size_t)n, fmt, args);
    va_end(args);
}

/* Lists a step's uses: for every micro-batch, the layers of this stage forward, then backward. */
static void list_uses(ZeroGridWork *w)
{
    int layer[16], n = zero_grid_layers(w->c, &w->table, w->grid.at.pp, layer);
    for (int64_t m = 0; m < w->c->micros; m++) {
        for (int i = 0; i < n; i++)
            w->use[w->n_uses++] = (Use){.unit = layer[i], .weight = true};
        for (int i = n; i-- > 0;)
            w->use[w->n_uses++] = (Use){.unit = layer[i], .weight = true, .gradient = true};
    }
}

/* ---- gradients by element -------------------------------------------------------------------- */

/* Sets the tensor-parallel ranks [first, first + n) whose addends make up a row's gradient. */
static void addends_of(const ZeroGridWork *w, const Param *p, int tp, int *first, int *n)
{
    bool partial = p->tp_grad == TP_GRAD_PARTIAL ||
                   (p->tp_grad == TP_GRAD_PARTIAL_IF_SP && w->c->zero.sequence_parallel);
    int sharers = w->c->kv < w->c->size.tp ? w->c->size.tp / w->c->kv : 1;
    *first = 0;
    *n = partial ? w->c->size.tp : 1;
    if (p->tp_grad != TP_GRAD_SUBGROUP) return;
    *first = tp / sharers * sharers;
    *n = sharers;
}

/* Returns one addend of an element's gradient: that of a data-parallel rank, a micro-batch, a use
 * of the unit (0: by the embedding; 1: by the head) and a tensor-parallel rank. */
static double addend(const ZeroGridWork *w, int param, int64_t element, int dp, int64_t micro,
                     int use, int tp)
{
    uint64_t stream = (uint64_t)(((param * 8 + dp) * 8 + (int)micro) * 2 + use) * 8 + (uint64_t)tp;
    double x = drawn_uniform(stream * ZERO_GRID_STEPS + (uint64_t)w->step, element) - 0.5;
    return w->c->drawn ? x : floor(17 * x);
}

static double sum_of(const ZeroGridWork *w, int param, int64_t element, int tp)
{
    const Param *p = &w->table.param[param];
    int first, n, uses = w->c->tied && p->unit == 0 ? 2 : 1;
    double sum = 0;
    addends_of(w, p, tp, &first, &n);
    for (int use = 0; use < uses; use++)
        for (int dp = 0; dp < w->c->size.dp; dp++)
            for (int64_t m = 0; m < w->c->micros; m++)
                for (int r = first; r < first + n; r++)
                    sum += addend(w, param, element, dp, m, use, r);
    return sum;
}

/* Writes or accumulates the unit's gradient of one micro-batch and one use. */
static void write_gradient(ZeroGridWork *w, int unit, int64_t micro, int use, bool accumulate)
{
    const Unit *rows = &w->table.unit[unit];
    const GridPlace *at = &w->grid.at;
    for (int i = rows->first; i < rows->first + rows->count; i++) {
        const Param *p = &w->table.param[i];
        Tensor g = w->params->grad(w->params, i, 1);
        int first, n;
        int64_t begin = param_part_first(p, at);
        addends_of(w, p, at->tp, &first, &n);
        for (int64_t e = 0; e < p->local[0] * p->local[1]; e++) {
            int64_t whole = part_element(begin, p->local[1], p->dim[1], e);
            double x = whole < param_count(p)
                           ? addend(w, i, whole, at->dp, micro, use, n > 1 ? at->tp : first)
                           : 0;
            dtype_set(g.dtype, g.data, e, x + (accumulate ? dtype_get(g.dtype, g.data, e) : 0));
        }
    }
}

static void train(ZeroGridWork *w)
{
    ParamStore *s = w->params;
    int64_t n = w->n_uses / w->c->micros;
    store_poison(w->store, &w->dev);
    s->step_begin(s, w->use, w->n_uses);
    for (int64_t i = 0; i < w->n_uses; i++) {
        const Use *use = &w->use[i];
        s->acquire(s, use->unit);
        if (use->gradient) {
            /* The head is the first layer of a backward pass. */
            bool head = use->unit == 0 && w->grid.at.pp == w->c->size.pp - 1 && i % n == n / 2;
            bool accumulate = s->grad_acquire(s, use->unit);
            write_gradient(w, use->unit, i / n, head && w->c->tied, accumulate);
            s->grad_release(s, use->unit);
        }
        s->release(s, use->unit);
    }
    s->step_end(s);
}

/* ---- checks of gradients, weights and norm --------------------------------------------------- */

typedef void (*SeeElement)(ZeroGridWork *w, const Shard *shard, int64_t at, int param,
                           int64_t element);

static void walk(ZeroGridWork *w, Purpose purpose, SeeElement see)
{
    Shard shard[256];
    ParamExtent extent[ZERO_GRID_ROWS];
    int n = w->params->shards(w->params, purpose, shard, 256);
    for (int i = 0; i < n; i++) {
        int extents = param_extents(&w->table, &w->grid.at, shard[i].unit, shard[i].offset,
                                    shard[i].count, extent, ZERO_GRID_ROWS);
        for (int r = 0; r < extents; r++)
            for (int64_t e = 0; e < extent[r].count; e++)
                see(w, &shard[i], extent[r].offset - shard[i].offset + e, extent[r].param,
                    param_extent_element(&extent[r], e));
    }
}

static void see_sum(ZeroGridWork *w, const Shard *shard, int64_t at, int param, int64_t element)
{
    double sum = sum_of(w, param, element, w->grid.at.tp),
           got = dtype_get(shard->grad.dtype, shard->grad.data, at),
           bound = w->c->drawn ? 1e-14 * (double)(w->c->micros * ZERO_GRID_RANKS) : 0;
    if (!(fabs(got - sum) <= bound))
        zero_grid_wrong(w, "element %lld of %s: gradient %.17g, not %.17g", (long long)element,
                        w->table.param[param].name, got, sum);
}

static void see_counted(ZeroGridWork *w, const Shard *shard, int64_t at, int param, int64_t element)
{
    int64_t to = w->before[param] + element;
    w->rank->seen[to]++;
    w->rank->gradient[to] = dtype_get(shard->grad.dtype, shard->grad.data, at);
}

/* Updates a weight by storing its gradient in it. */
static void update(ZeroGridWork *w, const Shard *shard, int64_t at, int param, int64_t element)
{
    (void)w, (void)param, (void)element;
    dtype_set(shard->weight.dtype, shard->weight.data, at,
              dtype_get(shard->grad.dtype, shard->grad.data, at));
}

/* Publishes the updated weights and compares them with the expected sums. It reads them as an
 * evaluation does, without gradients. */
static void check_weights(ZeroGridWork *w)
{
    ParamStore *s = w->params;
    Use use[ZERO_GRID_USES];
    int64_t n = 0;
    for (int u = 0; u < w->table.n_units; u++) {
        if (zero_grid_here(&w->table, u, &w->grid.at)) use[n++] = (Use){.unit = u, .weight = true};
        s->publish(s, u, NULL);
    }
    s->step_begin(s, use, n);
    for (int u = 0; u < w->table.n_units; u++) {
        const Unit *rows = &w->table.unit[u];
        if (!zero_grid_here(&w->table, u, &w->grid.at)) continue;
        s->acquire(s, u);
        for (int i = rows->first; i < rows->first + rows->count; i++) {
            const Param *p = &w->table.param[i];
            Tensor x = s->weight(s, i, 1);
            int64_t begin = param_part_first(p, &w->grid.at);
            Shard one = {.grad = x};
            for (int64_t e = 0; e < p->local[0] * p->local[1]; e++) {
                int64_t whole = part_element(begin, p->local[1], p->dim[1], e);
                if (whole < param_count(p)) see_sum(w, &one, e, i, whole);
            }
        }
        s->release(s, u);
    }
    s->step_end(s);
}

static void check_norm(ZeroGridWork *w)
{
    StepStats stats = {0};
    GradNorm norm = grad_norm_create(w->params);
    grad_norm_add(&norm, &w->dev, &stats);
    comm_all_reduce(w->world, NULL, tensor_1d(&stats.sq_norm, F64, 1), REDUCE_SUM);
    double exact = 0;
    for (int i = 0; i < w->table.n_params; i++) {
        const Param *p = &w->table.param[i];
        /* Element e of a cut row is in part e / part, which `sharers` successive ranks hold. */
        int64_t part = p->tp_dim < 0 ? INT64_MAX : p->local[0] * p->local[1];
        for (int64_t e = 0; e < param_count(p); e++)
            exact += pow(sum_of(w, i, e, (int)(e / part) * p->sharers), 2);
    }
    if (!(fabs(stats.sq_norm / exact - 1) <= (w->c->drawn ? 1e-13 : 0)))
        zero_grid_wrong(w, "the squared norm is %.17g, not %.17g", stats.sq_norm, exact);
    if (w->world->rank == 0) w->rank->result->sq_norm = stats.sq_norm;
    grad_norm_free(&norm);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static void rank_body(Comm *world, void *context)
{
    ZeroGridWork w = {.rank = (ZeroGridRank *)context + world->rank, .world = world};
    char err[256];
    w.c = w.rank->c;
    ZeroOptions options = w.c->zero;
    DeviceOptions device = {.threads = 1};
    GridGroups groups = {.kv = w.c->kv, .tied = w.c->tied, .shard = w.c->shard};
    if (!device_open(&w.dev, "cpu", &device, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    w.grid = grid_open(world, w.c->size, &groups);
    zero_grid_table(&w.table, w.c);
    if (w.c->plant) w.c->plant(&w.grid, &w.table);
    for (int i = 1; i < w.table.n_params; i++)
        w.before[i] = w.before[i - 1] + param_count(&w.table.param[i - 1]);
    list_uses(&w);
    options.uses = w.use;
    options.n_uses = w.n_uses;
    w.store = zero_create(&w.table, &w.grid, &options);
    w.params = zero_params(w.store);
    zero_allocate(w.store, &w.dev);
    zero_grid_check_stored(&w);
    for (w.step = 0; w.step < ZERO_GRID_STEPS; w.step++) {
        train(&w);
        walk(&w, PURPOSE_UPDATE, see_sum);
        walk(&w, w.c->counts, see_counted);
        check_norm(&w);
        walk(&w, PURPOSE_UPDATE, update);
        check_weights(&w);
        zero_grid_check_sent(&w);
        comm_barrier(world); /* no rank writes gradients while another still reads them */
    }
    zero_destroy(w.store);
    param_table_free(&w.table);
    grid_close(&w.grid);
    device_close(&w.dev);
}

static int64_t count_elements(const ZeroGridCase *c)
{
    ParamTable table;
    zero_grid_table(&table, c);
    int64_t n = param_table_count(&table);
    param_table_free(&table);
    return n;
}

ZeroGridResult zero_grid_run(const ZeroGridCase *c)
{
    ZeroGridResult r = {.elements = count_elements(c)};
    ZeroGridRank rank[ZERO_GRID_RANKS] = {{0}};
    int ranks = c->size.pp * c->size.dp * c->size.tp;
    size_t n = (size_t)r.elements;
    CHECK(ranks <= ZERO_GRID_RANKS, "%d ranks", ranks);
    unsigned char *seen = must_calloc(n, (size_t)ranks);
    double *gradient = must_calloc(n * (size_t)ranks, sizeof *gradient);
    r.gradient = must_calloc(n, sizeof *r.gradient);
    for (int i = 0; i < ranks; i++) {
        rank[i].c = c;
        rank[i].result = &r;
        rank[i].seen = seen + (size_t)i * n;
        rank[i].gradient = gradient + (size_t)i * n;
    }
    thread_ranks(ranks, 60, rank_body, rank);
    for (size_t e = 0; e < n; e++) {
        int times = 0;
        for (int i = 0; i < ranks; i++) {
            times += rank[i].seen[e];
            if (rank[i].seen[e]) r.gradient[e] = rank[i].gradient[e];
        }
        if (times != ZERO_GRID_STEPS && !r.wrong[0])
            snprintf(r.wrong, sizeof r.wrong, "element %zu is counted %d times in %d steps", e,
                     times, ZERO_GRID_STEPS);
    }
    for (int i = 0; i < ranks && !r.wrong[0]; i++)
        snprintf(r.wrong, sizeof r.wrong, "%s", rank[i].wrong);
    free(seen);
    free(gradient);
    return r;
}

void zero_grid_free(ZeroGridResult *r)
{
    free(r->gradient);
}

ZeroGridCase zero_grid_case(GridPlace size, int stage)
{
    int even = (size.pp + size.dp + size.tp) % 2, kv = even ? 1 : size.tp;
    return (ZeroGridCase){
        .size = size,
        .kv = size.tp == 4 ? 2 : kv,
        .tied = size.dp % 2 == 1,
        .micros = 2,
        .dtype = F64,
        .zero = {.gradients = true,
                 .grad_dtype = F64,
                 .wire_dtype = F64,
                 .stage = stage,
                 .sequence_parallel = even,
                 .gather = {.max_live_parameters = INT64_MAX}},
    };
}
