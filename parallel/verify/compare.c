/* compare.c -- computes the bounds and compares captures of a step. See compare.h. */
#include "parallel/verify/compare.h"

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

/* Returns half of the smallest positive number of a 16-bit type. */
static double half_smallest(DType type)
{
    return type == F16 ? 0x1p-25 : 0x1p-134;
}

CompareWire compare_wire(DType kept, DType wire, int64_t addends, int64_t sums)
{
    if (wire == kept || dtype_size(wire) != 2) return (CompareWire){0};
    return (CompareWire){.relative = dtype_info[wire].roundoff *
                                     (sqrt((double)addends) + sqrt((double)sums)),
                         .absolute = half_smallest(wire) * (double)(addends + sums)};
}

CompareWire compare_regions(DType storage, int64_t ranks)
{
    return ranks > 1 ? compare_wire(F32, storage, ranks, 1) : (CompareWire){0};
}

CompareWire compare_additions(DType type, int64_t ranks, int64_t sums)
{
    double partial = 0;
    if (dtype_size(type) != 2 || ranks <= 2) return (CompareWire){0};
    for (int64_t j = 2; j < ranks; j++)
        partial += sqrt((double)j / (double)ranks);
    return (CompareWire){.relative = dtype_info[type].roundoff * sqrt((double)sums) * partial,
                         .absolute = half_smallest(type) * (double)((ranks - 2) * sums)};
}

static void add_wire(CompareWire *to, CompareWire more)
{
    to->relative += more.relative;
    to->absolute += more.absolute;
}

/* sums: of how many separate sums over the data-parallel ranks a gradient consists: with ZeRO
 * stages 2 and 3 of one per micro-batch, otherwise of a single one. If each tensor-parallel rank
 * has only a part of a gradient (`partial`), the parts are summed over the data-parallel ranks
 * first, and then over the tensor-parallel ranks. The gradients of a tied table are also summed
 * over the first and the last stage. */
CompareWire compare_grid(const Config *c, bool each)
{
    int64_t dp = c->parallel.data, tp = c->parallel.tensor;
    int64_t sums = c->zero_optimization.stage < 2 ? 1 : c->gradient_accumulation_steps;
    DType kept = config_grad_dtype(c), wire = config_communication_dtype(c);
    bool partial =
        c->parallel.sequence_parallel || c->model.qk_norm || c->model.num_key_value_heads < tp;
    CompareWire all = compare_regions(config_dtype(c), tp);
    /* Each of the tp partial sums has already been rounded by its own data-parallel sums. */
    if (partial) sums *= tp;
    if (c->model.tie_word_embeddings && c->parallel.pipeline > 1) sums *= 2;
    if (dp > 1) add_wire(&all, compare_wire(kept, wire, dp * sums, sums));
    if (!each) return all;
    add_wire(&all, compare_additions(config_dtype(c), tp, 1));
    add_wire(&all, compare_additions(wire, dp, sums));
    if (partial) add_wire(&all, compare_additions(kept, tp, 1));
    return all;
}

/* Says which number is compared. Its name is formatted only if it will be printed. */
typedef struct {
    const char *kind;
    const Param *param; /* NULL: a number of the whole step */
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

/* Checks that |got - want| <= tolerance * scale and records the result. */
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

/* Returns whether both sides made the update. If both skipped it, their gradients are not finite
 * and cannot be compared. */
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

/* Returns the scale to which the tolerance of a tensor's gradient is relative. */
static double gradient_scale(double tensor, double all, DType dtype, double tolerance)
{
    double scale = fmax(tensor, 1e-6 * all);
    return fmax(scale, 32 * dtype_info[dtype].roundoff * all / tolerance);
}

/* Checks a tensor whose elements may differ by rounding: its rms difference must be at most
 * `bound`. */
static void add_tensor(Comparison *c, const Param *param, int64_t step, double distance,
                       double bound)
{
    if (distance <= bound || c->differs) return;
    snprintf(c->difference, sizeof c->difference,
             "gradient of %s, step %lld: in rms %.6g from a single rank's; bound %.3g", param->name,
             (long long)step, distance, bound);
    c->differs = true;
}

static double rms_distance(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* Compares the loss and the gradient norm of a step. */
static void add_numbers(Comparison *c, const Capture *got, const Capture *want,
                        const CompareBounds *b)
{
    Spot spot = {.kind = "loss", .step = want->step};
    double norm = want->grad_norm, root = sqrt((double)want->n);
    /* off: how far rounding of sent gradients may change the norm. moved: how far it may change the
     * loss through the updates so far. See compare.h. */
    double off = b->wire.relative * norm;
    if (b->wire.absolute > 0) off += b->wire.absolute / want->loss_scale * root;
    double moved = 2 * (double)(want->step - 1) * b->lr * fmax(root, norm) * off;
    add_number(c, &spot, got->loss, want->loss, fabs(want->loss),
               b->tolerance + moved / fabs(want->loss));
    spot.kind = "norm of the gradients";
    add_number(c, &spot, got->grad_norm, norm, norm,
               b->tolerance + (off > 0 ? (double)want->step * off / norm : 0));
}

bool compare_captures(Comparison *c, const ParamTable *table, DType dtype, const Capture *got,
                      const Capture *want, const CompareBounds *b)
{
    Spot spot = {.step = want->step};
    double all = rms(want->gradient, want->n), absolute = 0;
    int64_t at = 0;
    if (!both_applied(c, got, want)) return !c->differs;
    add_numbers(c, got, want, b);
    if (b->wire.absolute > 0) absolute = b->wire.absolute / want->loss_scale;
    /* The bounds are per tensor, so a tensor of small numbers is checked as strictly as one of
     * large numbers. */
    for (int p = 0; p < table->n_params; p++) {
        int64_t n = param_count(&table->param[p]);
        const double *x = want->gradient + at, *w = want->weight + at;
        double gradient = gradient_scale(rms(x, n), all, dtype, b->tolerance);
        double element = b->tolerance;
        if (absolute > 0) element += (b->wire.relative * largest(x, n) + absolute) / gradient;
        double weight = fmax(rms(w, n), b->lr);
        spot.param = &table->param[p];
        for (int64_t i = 0; i < n; i++) {
            spot.element = i;
            spot.kind = "gradient";
            if (b->gradients) add_number(c, &spot, got->gradient[at + i], x[i], gradient, element);
            spot.kind = "weight";
            if (b->weights) add_number(c, &spot, got->weight[at + i], w[i], weight, b->tolerance);
        }
        /* The bound of an element allows for the largest rounding error, which not all elements can
         * have at once, so the whole tensor has a tighter bound. */
        if (b->gradients && absolute > 0)
            add_tensor(c, spot.param, want->step, rms_distance(got->gradient + at, x, n),
                       b->tolerance * gradient + b->wire.relative * rms(x, n) + absolute);
        at += n;
        c->gradients += b->gradients;
    }
    return !c->differs;
}

/* The distance that compare_distance returns, the part of it that rounding of sent data explains,
 * and the number of tensors that were compared. */
typedef struct {
    double distance, rounding;
    int64_t tensors;
} Distance;

static Distance distance_of(const ParamTable *table, const Capture *got, const Capture *exact,
                            const CompareWire *wire)
{
    double all = rms(exact->gradient, exact->n), sum = 0, rounded = 0;
    int64_t at = 0, tensors = 0;
    for (int p = 0; p < table->n_params; p++) {
        int64_t n = param_count(&table->param[p]);
        double size = rms(exact->gradient + at, n),
               distance = rms_distance(got->gradient + at, exact->gradient + at, n);
        at += n;
        if (size < 1e-4 * all) continue;
        double rounding = wire->relative;
        if (wire->absolute > 0) rounding += wire->absolute / got->loss_scale / size;
        sum += distance / size * (distance / size);
        rounded += rounding * rounding;
        tensors++;
    }
    double n = fmax((double)tensors, 1);
    return (Distance){sqrt(sum / n), sqrt(rounded / n), tensors};
}

double compare_distance(const ParamTable *table, const Capture *got, const Capture *exact)
{
    return distance_of(table, got, exact, &(CompareWire){0}).distance;
}

bool compare_distances(Comparison *c, const ParamTable *table, const Capture *got,
                       const Capture *single, const Capture *exact, const CompareWire *wire)
{
    if (!both_applied(c, got, single)) return !c->differs;
    Distance grid = distance_of(table, got, exact, wire);
    double d = grid.distance, alone = compare_distance(table, single, exact),
           most = 1.5 * alone + grid.rounding;
    c->gradients += grid.tensors;
    if (!(d <= c->worst)) {
        c->worst = d;
        snprintf(c->where, sizeof c->where, "gradients beside f32, step %lld",
                 (long long)exact->step);
    }
    if (!(d <= most) && !c->differs) {
        snprintf(c->difference, sizeof c->difference,
                 "gradients of step %lld: %.3g from those in f32, in units of each tensor's rms; "
                 "a single rank is %.3g away, and 1.5 times that%s is the bound",
                 (long long)exact->step, d, alone,
                 grid.rounding > 0 ? " and the rounding of what travels" : "");
        c->differs = true;
    }
    return !c->differs;
}
