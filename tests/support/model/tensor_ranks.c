/* tensor_ranks.c -- implements tensor_ranks.h: runs a small GPT on tensor-parallel ranks and
 * compares it with one rank. */
#include "tests/support/model/tensor_ranks.h"

#include "model/core/check.h"
#include "tests/support/model/model_inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

GptShape ranked_shape(void)
{
    GptShape s = fixture_shape();
    s.H = s.G = 12;
    s.D = 4;
    s.F = 48;
    s.Vp = 384;
    return s;
}

/* ---- used with one rank and with several ----------------------------------------------------- */

/* Called with the extents in a shard and the shard's values. */
typedef void (*VisitShard)(Fixture *f, const Shard *shard, const ParamExtent *extent, int extents,
                           Tensor values, void *context);

static void visit_shards(Fixture *f, bool gradients, VisitShard shard_of, void *context)
{
    Shard shards[512];
    ParamExtent extent[64];
    int n = f->params->shards(f->params, PURPOSE_UPDATE, shards, 512);
    for (int i = 0; i < n; i++) {
        const Shard *s = &shards[i];
        int extents =
            param_extents(&f->table, &f->grid.at, s->unit, s->offset, s->count, extent, 64);
        Tensor values = fixture_fetch(f, gradients ? s->grad : s->weight);
        shard_of(f, s, extent, extents, values, context);
        if (!gradients) fixture_store(f, s->weight, values);
        free(values.data);
    }
}

typedef struct {
    VisitExtent extent_of;
    void *context;
} EachExtent;

static void each_extent(Fixture *f, const Shard *shard, const ParamExtent *extent, int extents,
                        Tensor values, void *context)
{
    const EachExtent *each = context;
    for (int r = 0; r < extents; r++)
        each->extent_of(f, shard, &extent[r], values, each->context);
}

void visit_extents(Fixture *f, bool gradients, VisitExtent extent_of, void *context)
{
    visit_shards(f, gradients, each_extent, &(EachExtent){extent_of, context});
}

static void change_extent(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                          void *context)
{
    const RankedCase *c = context;
    for (int64_t i = extent->offset - shard->offset;
         i < extent->offset - shard->offset + extent->count; i++) {
        double weight = dtype_get(values.dtype, values.data, i);
        c->change(&f->table.param[extent->param], &weight);
        dtype_set(values.dtype, values.data, i, weight);
    }
}

static void change_weights(Fixture *f, const RankedCase *c)
{
    if (c->change == NULL) return;
    RankedCase changing = *c;
    visit_extents(f, false, change_extent, &changing);
    for (int u = 0; u < f->table.n_units; u++)
        f->params->publish(f->params, u, NULL);
}

static Tensor logits_of(Fixture *f)
{
    const GptShape *s = &f->layers.whole;
    int64_t N = f->B * f->T;
    Tensor logits = tensor_2d(must_calloc((size_t)(N * s->Vp), sizeof(double)), s->dtype, N, s->Vp);
    fixture_logits(f, 0, logits);
    return logits;
}

/* ---- reference on one rank ------------------------------------------------------------------- */

/* Losses and gradients of a model on one rank. */
typedef struct {
    double loss, evaluated;
    ParamTable table;    /* of the single rank */
    double **gradient;   /* logical elements, one array per row of the table */
    double rms, largest; /* over all rows */
    double *logits;      /* (B T, V) of the first micro-batch */
} WholeModel;

static void keep(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                 void *context)
{
    WholeModel *m = context;
    (void)f;
    for (int64_t i = 0; i < extent->count; i++)
        m->gradient[extent->param][param_extent_element(extent, i)] =
            dtype_get(values.dtype, values.data, extent->offset - shard->offset + i);
}

static WholeModel whole_model(const GptShape *shape, const RankedCase *c)
{
    WholeModel m = {0};
    Fixture f;
    double squares = 0;
    int64_t count = 0, V = shape->V, N = c->B * c->T;
    fixture_open(&f, shape, c->B, c->T, c->dp * c->micros, 1, 0);
    change_weights(&f, c);
    m.loss = fixture_backward(&f);
    m.gradient = must_calloc((size_t)f.table.n_params, sizeof *m.gradient);
    for (int p = 0; p < f.table.n_params; p++)
        m.gradient[p] = must_calloc((size_t)param_count(&f.table.param[p]), sizeof(double));
    visit_extents(&f, true, keep, &m);
    for (int p = 0; p < f.table.n_params; p++)
        for (int64_t i = 0; i < param_count(&f.table.param[p]); i++, count++)
            squares += m.gradient[p][i] * m.gradient[p][i],
                m.largest = fmax(m.largest, fabs(m.gradient[p][i]));
    m.rms = sqrt(squares / (double)count);
    m.evaluated = fixture_loss(&f);
    Tensor logits = logits_of(&f);
    m.logits = must_calloc((size_t)(N * V), sizeof *m.logits);
    for (int64_t i = 0; i < N * V; i++)
        m.logits[i] = dtype_get(logits.dtype, logits.data, i / V * shape->Vp + i % V);
    free(logits.data);
    m.table = f.table;
    f.table = (ParamTable){0};
    fixture_close(&f);
    return m;
}

static void whole_model_free(WholeModel *m)
{
    for (int p = 0; p < m->table.n_params; p++)
        free(m->gradient[p]);
    free(m->gradient);
    free(m->logits);
    param_table_free(&m->table);
}

/* ---- comparison on several ranks ------------------------------------------------------------- */

typedef struct {
    const GptShape *shape;
    const RankedCase *c;
    const WholeModel *whole;
} Job;

/* State of a rank while it compares its gradients. */
typedef struct {
    const Job *job;
    Comm *world;
    int64_t *seen; /* how often each element of each row was compared */
} Seen;

/* Returns how far an element of the row may differ from the single rank's. The gradient of the key
 * bias is zero in theory without rotary positions; what remains is rounding of terms that
 * cancel. */
static double bound_of(const Job *job, int row)
{
    const double *x = job->whole->gradient[row];
    int64_t n = param_count(&job->whole->table.param[row]);
    double squares = 0, all = job->whole->rms;
    for (int64_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    double bound = job->c->tolerance * fmax(sqrt(squares / (double)n), 1e-6 * all);
    return fmax(bound, 32 * dtype_info[job->shape->grad_dtype].roundoff * job->whole->largest);
}

static void compare(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                    void *context)
{
    Seen *seen = context;
    const Job *job = seen->job;
    const char *name = f->table.param[extent->param].name;
    double bound = bound_of(job, extent->param);
    for (int64_t i = 0; i < extent->count; i++) {
        int64_t element = param_extent_element(extent, i), at = extent->offset - shard->offset + i;
        double is = dtype_get(values.dtype, values.data, at),
               want = job->whole->gradient[extent->param][element];
        if (!(fabs(is - want) <= bound))
            rank_wrong(seen->world, "%s: gradient of %s[%lld] %.17g, one rank has %.17g",
                       job->c->what, name, (long long)element, is, want);
    }
    seen->seen[extent->param] += extent->count;
}

/* Checks that everything outside extents, that is gaps and the vocabulary's padding rows, is
 * zero. */
static void check_padding(Fixture *f, const Shard *shard, const ParamExtent *extent, int extents,
                          Tensor values, void *context)
{
    const Seen *seen = context;
    (void)f;
    for (int64_t e = 0; e < shard->count; e++) {
        int64_t at = shard->offset + e;
        bool logical = false;
        for (int r = 0; r < extents; r++)
            logical |= at >= extent[r].offset && at < extent[r].offset + extent[r].count;
        if (!logical && dtype_get(values.dtype, values.data, e) != 0)
            rank_wrong(seen->world, "%s: unit %d has a gradient at %lld, where nothing is",
                       seen->job->c->what, shard->unit, (long long)at);
    }
}

static void check_loss(const Seen *seen, const char *which, double is, double want)
{
    const RankedCase *c = seen->job->c;
    if (!(fabs(is - want) <= c->tolerance * fabs(want)))
        rank_wrong(seen->world, "%s: %s %.17g, one rank has %.17g", c->what, which, is, want);
}

static void check_logits(Fixture *f, const Seen *seen)
{
    const Job *job = seen->job;
    int64_t V = job->shape->V, N = f->B * f->T;
    Tensor logits = logits_of(f);
    /* All ranks compute the logits; data-parallel ranks other than 0 have other micro-batches, so
     * they are not compared. */
    for (int64_t i = 0; i < N * V && f->grid.at.dp == 0; i++) {
        double is = dtype_get(logits.dtype, logits.data, i / V * job->shape->Vp + i % V);
        if (!(fabs(is - job->whole->logits[i]) <= 10 * job->c->tolerance))
            rank_wrong(seen->world, "%s: logit %lld %.17g, one rank has %.17g", job->c->what,
                       (long long)i, is, job->whole->logits[i]);
    }
    free(logits.data);
}

/* Checks that the model used exactly the planned bytes. */
static void check_plan(const Fixture *f, const Seen *seen, const Gpt *gpt, GptMode mode)
{
    GptBytes plan = gpt_bytes(&f->layers, NULL, f->B, f->T, mode), used = model_used(gpt);
    if (plan.activations != used.activations || plan.scratch != used.scratch)
        rank_wrong(seen->world, "%s, %s: planned %zu and %zu bytes, used %zu and %zu",
                   seen->job->c->what, mode == GPT_TRAIN ? "training" : "evaluation",
                   plan.activations, plan.scratch, used.activations, used.scratch);
}

/* Checks that a model that only evaluates gives the logits of the training model. */
static void check_evaluating_model(Fixture *f, const Seen *seen)
{
    Gpt *training = f->gpt;
    f->gpt = gpt_create(&f->dev, &f->layers, f->params, &f->tp, f->B, f->T, GPT_EVALUATE, NULL);
    check_logits(f, seen);
    check_plan(f, seen, f->gpt, GPT_EVALUATE);
    gpt_destroy(f->gpt);
    f->gpt = training;
}

void ranked_open(Fixture *f, Comm *world, const GptShape *shape, const RankedCase *c)
{
    ZeroOptions zero = {.gradients = true,
                        .grad_dtype = shape->grad_dtype,
                        .wire_dtype = shape->grad_dtype,
                        .stage = c->zero_stage,
                        .reduce_bucket_size = 5000,
                        .allgather_bucket_size = 5000,
                        .gather = {.prefetch_bucket_size = 3000,
                                   .max_live_parameters = 1000000,
                                   .max_reuse_distance = 100},
                        .sequence_parallel = c->sequence_parallel};
    fixture_open_place(f, world, (GridPlace){1, c->dp, 1, c->tp}, &zero, shape, c->B, c->T,
                       c->micros);
    change_weights(f, c);
    f->poison = true;
}

/* Returns the loss summed over all data-parallel ranks. */
static double loss_of_all(Fixture *f, double loss)
{
    comm_all_reduce(&f->grid.dp, NULL, tensor_1d(&loss, F64, 1), REDUCE_SUM);
    return loss;
}

static void on_rank(Comm *world, void *context)
{
    const Job *job = context;
    Fixture f;
    ranked_open(&f, world, job->shape, job->c);
    Seen seen = {job, world, must_calloc((size_t)f.table.n_params, sizeof *seen.seen)};
    check_loss(&seen, "loss", loss_of_all(&f, fixture_backward(&f)), job->whole->loss);
    visit_extents(&f, true, compare, &seen);
    for (int p = 0; p < f.table.n_params && job->c->zero_stage == 0; p++) {
        const Param *row = &f.table.param[p];
        int64_t parts = row->tp_dim < 0 ? 1 : job->c->tp / row->sharers;
        if (row->dim[0] == row->padded[0] && seen.seen[p] * parts != param_count(row))
            rank_wrong(world, "%s: %lld elements of %s in %lld parts", job->c->what,
                       (long long)seen.seen[p], row->name, (long long)parts);
    }
    visit_shards(&f, true, check_padding, &seen);
    check_loss(&seen, "evaluated", loss_of_all(&f, fixture_loss(&f)), job->whole->evaluated);
    check_plan(&f, &seen, f.gpt, GPT_TRAIN);
    check_logits(&f, &seen);
    check_evaluating_model(&f, &seen);
    free(seen.seen);
    fixture_close(&f);
}

void check_ranked(const GptShape *shape, const RankedCase *c)
{
    WholeModel whole = whole_model(shape, c);
    Job job = {shape, c, &whole};
    thread_ranks(c->dp * c->tp, 60, on_rank, &job);
    whole_model_free(&whole);
}
