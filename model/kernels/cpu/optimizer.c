/* optimizer.c -- the gradient norm, the step's decision, AdamW and SGD, each in one pass over flat
 * ranges. */
#include "model/kernels/cpu/spans.h"
#include "model/kernels/cpu/vmath.h"

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct {
    Tensor x; /* flat */
    double *partial;
    int64_t tasks;
} NormJob;

/* Sixteen sums in double, as many registers as that takes: the order is the same for every type and
 * level. */
enum { SUMS = 16, DOUBLES = __BIGGEST_ALIGNMENT__ / sizeof(double), REGISTERS = SUMS / DOUBLES };
typedef double Doubles __attribute__((vector_size(DOUBLES * sizeof(double))));
typedef real Reals
    __attribute__((vector_size(DOUBLES * sizeof(real)), aligned(sizeof(real)), may_alias));

static double square_sum(const real *x, int64_t n)
{
    Doubles sum[REGISTERS] = {{0}};
    double lane[SUMS];
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS) {
        for (int r = 0; r < REGISTERS; r++) {
            Doubles a = __builtin_convertvector(*(const Reals *)(x + i + r * DOUBLES), Doubles);
            sum[r] += a * a;
        }
    }
    memcpy(lane, sum, sizeof lane);
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lane[k] += lane[k + half];
    for (; i < n; i++)
        lane[0] += (double)x[i] * (double)x[i];
    return lane[0];
}

static void sq_norm_body(void *context, int64_t task, int worker)
{
    const NormJob *job = context;
    int64_t n = tensor_count(job->x);
    int64_t at = pool_cut(n, job->tasks, SQ_NORM_BLOCK, task);
    int64_t end = pool_cut(n, job->tasks, SQ_NORM_BLOCK, task + 1);
    real buffer[SQ_NORM_BLOCK];
    (void)worker;
    for (; at < end; at += SQ_NORM_BLOCK) {
        Span s = {.row = 0, .col = at, .n = end - at < SQ_NORM_BLOCK ? end - at : SQ_NORM_BLOCK};
        job->partial[at / SQ_NORM_BLOCK] = square_sum(span_load(job->x, s, buffer), s.n);
    }
}

void CPU(sq_norm)(Device *dev, Tensor stats, Tensor x)
{
    int64_t n = tensor_count(x), blocks = (n + SQ_NORM_BLOCK - 1) / SQ_NORM_BLOCK;
    double *sum = stats.data;
    NormJob job = {.x = tensor_flat(x), .tasks = tasks_for(dev, n)};
    job.partial = pool_workspace(dev->pool, 0, sizeof(double) * (size_t)blocks);
    pool_run(dev->pool, job.tasks, sq_norm_body, &job);
    for (int64_t i = 0; i < blocks; i++)
        *sum += job.partial[i];
}

/* ---- decision -------------------------------------------------------------------------------- */

/* DeepSpeed's dynamic loss scaler, one step. After an overflow that the hysteresis does not forgive
 * the scale halves; `scale_window` steps after the last overflow, and every window from there, it
 * doubles. */
static void scale_advance(StepState *state, const StepRules *rules, bool overflow)
{
    if (overflow) {
        if (state->hysteresis > 1) {
            state->hysteresis--;
        } else if (state->loss_scale <= rules->min_scale) {
            state->stop = 1;
        } else {
            state->loss_scale = fmax(state->loss_scale / 2.0, rules->min_scale);
        }
        state->last_overflow = state->scale_steps;
    } else {
        int64_t good = state->scale_steps - state->last_overflow - 1;
        if (rules->consecutive_hysteresis) state->hysteresis = rules->hysteresis;
        if (good > 0 && good % rules->scale_window == 0) {
            state->loss_scale *= 2.0;
            if (!rules->consecutive_hysteresis) state->hysteresis = rules->hysteresis;
        }
    }
    state->scale_steps++;
}

/* Every step counts in samples, tokens and steps. steps = updates + skipped; skips_in_row counts
 * non-finite steps since the last update: a step without a single target is skipped too, but is no
 * sign of divergence. */
void CPU(step_decide)(Device *dev, StepState *state, StepStats *stats, StepDecision *decision,
                      Tensor lr_table, const StepRules *rules)
{
    const double *lr = lr_table.data;
    int64_t last = tensor_count(lr_table) - 1;
    bool overflow = !isfinite(stats->sq_norm), empty = !(stats->targets > 0.0);
    double correction = empty ? 0.0 : rules->nominal_targets / stats->targets / state->loss_scale;
    double norm = empty && !overflow ? 0.0 : sqrt(stats->sq_norm) * correction, clip = 1.0;
    (void)dev;
    if (rules->max_norm > 0.0 && rules->max_norm / (norm + 1e-6) < 1.0)
        clip = rules->max_norm / (norm + 1e-6);
    *decision = (StepDecision){
        .apply = !empty && !(overflow && rules->skip_nonfinite),
        .update = state->updates + 1,
        .lr = lr[state->updates < last ? state->updates : last],
        .grad_scale = clip * correction,
        .grad_norm = norm,
        .loss = empty ? 0.0 : stats->nats / stats->targets,
        .loss_scale = state->loss_scale,
    };
    state->samples += rules->samples;
    state->tokens += rules->tokens;
    state->steps++;
    if (decision->apply) {
        state->updates++;
        state->skips_in_row = 0;
    } else {
        state->skipped++;
        state->skips_in_row += overflow;
    }
    if (rules->dynamic_scale) scale_advance(state, rules, overflow);
    state->loss_seed = state->loss_scale / rules->nominal_targets;
    *stats = (StepStats){0};
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Constants of one update, rounded to reals once. */
typedef struct {
    real grad_scale, lr, decay, l2;
    real beta1, rest1, beta2, rest2, step, root_correction, epsilon; /* AdamW */
    real momentum, rest_dampening;                                   /* SGD */
    bool first, nesterov;
} Constants;

typedef struct {
    Tensor weight, grad, master, slot1, slot2; /* slots: m and v; momentum */
    Constants c;
    int64_t tasks;
} UpdateJob;

/* m and v in place, p (which may be q) to q. Products and sums in this order and uncontracted on
 * every device. */
static void adamw_run(real *q, const real *p, const real *grad, real *m, real *v,
                      const Constants *c, int64_t n)
{
    const Constants k = *c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        real g = grad[i] * k.grad_scale + k.l2 * p[i];
        real m_new = k.beta1 * m[i] + k.rest1 * g;
        real v_new = k.beta2 * v[i] + k.rest2 * (g * g);
        m[i] = m_new;
        v[i] = v_new;
        real update = k.step * (m_new / (real_sqrt(v_new) * k.root_correction + k.epsilon));
        q[i] = p[i] - (update + k.decay * p[i]);
    }
}

static void sgd_run(real *q, const real *p, const real *grad, real *buffer, const Constants *c,
                    int64_t n)
{
    const Constants k = *c;
    const real keep = k.first ? (real)0 : k.momentum, fresh = k.first ? (real)1 : k.rest_dampening;
    const real ahead = k.nesterov ? (real)1 : (real)0, back = k.nesterov ? k.momentum : (real)1;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        real g = grad[i] * k.grad_scale + k.l2 * p[i];
        real b = keep * buffer[i] + fresh * g;
        buffer[i] = b;
        q[i] = p[i] - k.lr * (ahead * g + back * b);
    }
}

static void sgd_plain_run(real *q, const real *p, const real *grad, const Constants *c, int64_t n)
{
    const Constants k = *c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        q[i] = p[i] - k.lr * (grad[i] * k.grad_scale + k.l2 * p[i]);
}

/* The masters, or the weights where those are their own, from p to q; `run` is the rule's loop. */
static void update_body(void *context, int64_t task, int worker, bool adam)
{
    const UpdateJob *job = context;
    Tensor values = tensor_present(job->master) ? job->master : job->weight;
    int64_t n = tensor_count(job->weight);
    int64_t at = pool_cut(n, job->tasks, SPAN, task), end = pool_cut(n, job->tasks, SPAN, task + 1);
    real value_buffer[SPAN], grad_buffer[SPAN], buffer1[SPAN], buffer2[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, n, &s)) {
        const real *grad = span_load(job->grad, s, grad_buffer),
                   *p = span_load(values, s, value_buffer);
        real *q = span_out(values, s, value_buffer), *slot1 = NULL;
        if (tensor_present(job->slot1)) slot1 = (real *)span_load(job->slot1, s, buffer1);
        if (adam) {
            real *slot2 = (real *)span_load(job->slot2, s, buffer2);
            adamw_run(q, p, grad, slot1, slot2, &job->c, s.n);
            span_store(job->slot2, s, slot2);
        } else if (slot1) {
            sgd_run(q, p, grad, slot1, &job->c, s.n);
        } else {
            sgd_plain_run(q, p, grad, &job->c, s.n);
        }
        if (slot1) span_store(job->slot1, s, slot1);
        span_store(values, s, q);
        if (values.data != job->weight.data)
            reals_store(job->weight.dtype, span_address(job->weight, s), q, s.n);
    }
}

static void adamw_body(void *context, int64_t task, int worker)
{
    update_body(context, task, worker, true);
}

static void sgd_body(void *context, int64_t task, int worker)
{
    update_body(context, task, worker, false);
}

/* Reads weight or master, grad, m, v; writes weight, master, m, v: bound by memory. Decay is taken
 * off as lr x decay x p, not by a factor 1 - lr x decay, which f32 would round by as much as a part
 * in a thousand of the decay. */
void CPU(adamw)(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor exp_avg,
                Tensor exp_avg_sq, const StepDecision *decision, const AdamW *hyper)
{
    if (!decision->apply) return;
    double t = (double)decision->update;
    double correction1 = hyper->bias_correction ? 1.0 - pow(hyper->beta1, t) : 1.0;
    double correction2 = hyper->bias_correction ? 1.0 - pow(hyper->beta2, t) : 1.0;
    UpdateJob job = {
        .weight = weight, .grad = grad, .master = master, .slot1 = exp_avg, .slot2 = exp_avg_sq};
    job.c = (Constants){
        .grad_scale = (real)decision->grad_scale,
        .decay = (real)(hyper->decoupled ? decision->lr * hyper->weight_decay : 0.0),
        .l2 = (real)(hyper->decoupled ? 0.0 : hyper->weight_decay),
        .beta1 = (real)hyper->beta1,
        .rest1 = (real)(1.0 - hyper->beta1),
        .beta2 = (real)hyper->beta2,
        .rest2 = (real)(1.0 - hyper->beta2),
        .step = (real)(decision->lr / correction1),
        .root_correction = (real)(1.0 / sqrt(correction2)),
        .epsilon = (real)hyper->epsilon,
    };
    job.tasks = tasks_for(dev, tensor_count(weight));
    pool_run(dev->pool, job.tasks, adamw_body, &job);
}

void CPU(sgd)(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor momentum,
              const StepDecision *decision, const Sgd *hyper)
{
    if (!decision->apply) return;
    UpdateJob job = {.weight = weight, .grad = grad, .master = master, .slot1 = momentum};
    job.c = (Constants){
        .grad_scale = (real)decision->grad_scale,
        .lr = (real)decision->lr,
        .l2 = (real)hyper->weight_decay,
        .momentum = (real)hyper->momentum,
        .rest_dampening = (real)(1.0 - hyper->dampening),
        .first = decision->update == 1,
        .nesterov = hyper->nesterov,
    };
    job.tasks = tasks_for(dev, tensor_count(weight));
    pool_run(dev->pool, job.tasks, sgd_body, &job);
}
