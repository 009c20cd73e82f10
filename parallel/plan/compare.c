/* compare.c -- see compare.h. */
#include "parallel/plan/compare.h"

#include <math.h>
#include <stdio.h>

CompareBounds compare_bounds(DType dtype, double lr, int64_t step)
{
    bool exact = dtype == F64;
    return (CompareBounds){.tolerance = exact ? 1e-12 : 2e-5,
                           .lr = lr,
                           .gradients = exact || step == 1,
                           .weights = exact};
}

/* Adds one number; what it is stands in `what`, which is only made where it is needed. */
typedef struct {
    const char *kind;
    const Param *param; /* NULL: of the whole step */
    int64_t element, step;
} Spot;

static void name_spot(char *out, size_t n, const Spot *p)
{
    if (p->param)
        snprintf(out, n, "%s of %s[%lld], step %lld", p->kind, p->param->name,
                 (long long)p->element, (long long)p->step);
    else
        snprintf(out, n, "%s, step %lld", p->kind, (long long)p->step);
}

/* |got - want| <= tolerance * scale. */
static void add_number(Comparison *c, const Spot *spot, double got, double want, double scale,
                       double tolerance)
{
    double size = fabs(got - want) / scale;
    bool good = got == want || size <= tolerance; /* false for NaN */
    if (got != want && !(size <= c->worst)) {
        c->worst = size;
        name_spot(c->where, sizeof c->where, spot);
    }
    if (good || c->differs) return;
    char what[160];
    name_spot(what, sizeof what, spot);
    snprintf(c->difference, sizeof c->difference, "%s: %.17g, a single rank has %.17g; bound %.3g",
             what, got, want, tolerance * scale);
    c->differs = true;
}

/* Whether both made the update, or both skipped it: then their gradients are not finite, and there
 * is nothing to compare. */
static bool both_applied(Comparison *c, const Capture *got, const Capture *want)
{
    if (got->applied != want->applied && !c->differs) {
        snprintf(c->difference, sizeof c->difference, "step %lld is %s, a single rank has %s it",
                 (long long)want->step, got->applied ? "made" : "skipped",
                 want->applied ? "made" : "skipped");
        c->differs = true;
    }
    if (!got->applied && !want->applied && c->skipped == 0) c->skipped = want->step;
    return got->applied && want->applied;
}

static double rms(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

/* What a gradient of this tensor is measured by. */
static double gradient_scale(double tensor, double all, DType dtype, double tolerance)
{
    double scale = fmax(tensor, 1e-6 * all);
    return fmax(scale, 32 * dtype_info[dtype].roundoff * all / tolerance);
}

bool compare_captures(Comparison *c, const ParamTable *table, DType dtype, const Capture *got,
                      const Capture *want, const CompareBounds *b)
{
    Spot spot = {.kind = "loss", .step = want->step};
    double all = rms(want->gradient, want->n);
    int64_t at = 0;
    if (!both_applied(c, got, want)) return !c->differs;
    add_number(c, &spot, got->loss, want->loss, fabs(want->loss), b->tolerance);
    spot.kind = "norm of the gradients";
    add_number(c, &spot, got->grad_norm, want->grad_norm, want->grad_norm, b->tolerance);
    for (int p = 0; p < table->n_params; p++) {
        int64_t n = param_count(&table->param[p]);
        const double *x = want->gradient + at, *w = want->weight + at;
        double gradient = gradient_scale(rms(x, n), all, dtype, b->tolerance);
        double weight = fmax(rms(w, n), b->lr);
        spot.param = &table->param[p];
        for (int64_t i = 0; i < n; i++) {
            spot.element = i;
            spot.kind = "gradient";
            if (b->gradients)
                add_number(c, &spot, got->gradient[at + i], x[i], gradient, b->tolerance);
            spot.kind = "weight";
            if (b->weights) add_number(c, &spot, got->weight[at + i], w[i], weight, b->tolerance);
        }
        at += n;
        c->gradients += b->gradients;
    }
    return !c->differs;
}

/* compare_distance, and how many tensors it is of. */
static double distance_of(const ParamTable *table, const Capture *got, const Capture *exact,
                          int64_t *counted)
{
    double all = rms(exact->gradient, exact->n), sum = 0;
    int64_t at = 0, tensors = 0;
    for (int p = 0; p < table->n_params; p++) {
        int64_t n = param_count(&table->param[p]);
        double size = rms(exact->gradient + at, n), distance = 0;
        for (int64_t i = at; i < at + n; i++) {
            double d = got->gradient[i] - exact->gradient[i];
            distance += d * d / (double)n;
        }
        at += n;
        if (size < 1e-4 * all) continue;
        sum += distance / (size * size);
        tensors++;
    }
    *counted = tensors;
    return tensors > 0 ? sqrt(sum / (double)tensors) : 0;
}

double compare_distance(const ParamTable *table, const Capture *got, const Capture *exact)
{
    int64_t tensors;
    return distance_of(table, got, exact, &tensors);
}

bool compare_distances(Comparison *c, const ParamTable *table, const Capture *got,
                       const Capture *single, const Capture *exact)
{
    if (!both_applied(c, got, single)) return !c->differs;
    int64_t tensors;
    double d = distance_of(table, got, exact, &tensors),
           most = 1.5 * compare_distance(table, single, exact);
    c->gradients += tensors;
    if (!(d <= c->worst)) {
        c->worst = d;
        snprintf(c->where, sizeof c->where, "gradients beside f32, step %lld",
                 (long long)exact->step);
    }
    if (!(d <= most) && !c->differs) {
        snprintf(c->difference, sizeof c->difference,
                 "gradients of step %lld: %.3g from those in f32, in units of each tensor's rms; "
                 "a single rank is %.3g away, and 1.5 times that is the bound",
                 (long long)exact->step, d, most / 1.5);
        c->differs = true;
    }
    return !c->differs;
}
