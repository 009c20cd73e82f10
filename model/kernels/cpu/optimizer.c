/* optimizer.c -- the optimizer ops on the CPU: gradient norm, step decision, AdamW and SGD, each in
 * one pass over a flat range. */
#include "model/kernels/cpu/spans.h"
/* Included before update_rule.h, which requires real_sqrt. */
#include "model/kernels/vmath.h"

#include "model/kernels/decision_rule.h"
#include "model/kernels/rounding_rule.h"
#include "model/kernels/update_rule.h"

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct {
    Tensor x; /* flat */
    double *partial;
    int64_t tasks;
} SquareSumJob;

/* Sixteen sums in double, in as many registers as needed: the order of addition is the same for
 * every type and level. */
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
        /* Double holds the square of a float exactly, so that nothing is lost before the
         * addition. */
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
    const SquareSumJob *job = context;
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

static void sq_norm_of(Device *dev, double *sum, Tensor x)
{
    int64_t n = tensor_count(x), blocks = (n + SQ_NORM_BLOCK - 1) / SQ_NORM_BLOCK;
    SquareSumJob job = {.x = tensor_flat(x), .tasks = tasks_for(dev, n)};
    job.partial = pool_workspace(dev->pool, 0, sizeof(double) * (size_t)blocks);
    pool_run(dev->pool, job.tasks, sq_norm_body, &job);
    /* Added here rather than in the tasks, so that the order does not depend on the threads. */
    for (int64_t i = 0; i < blocks; i++)
        *sum += job.partial[i];
}

void CPU(sq_norm)(Device *dev, Tensor stats, const Tensor *x, int n)
{
    for (int i = 0; i < n; i++)
        sq_norm_of(dev, stats.data, x[i]);
}

/* ---- decision -------------------------------------------------------------------------------- */

void CPU(step_decide)(Device *dev, StepState *state, StepStats *stats, StepDecision *decision,
                      Tensor lr_table, const StepConstants *constants)
{
    (void)dev;
    *decision = decision_rule(state, stats, lr_table.data, tensor_count(lr_table), constants);
    *stats = (StepStats){0};
}

/* ---- updates --------------------------------------------------------------------------------- */

typedef struct {
    const UpdateRange *range;
    UpdateConstants c;
    int64_t update, tasks;
} UpdateJob;

/* ---- stochastic rounding --------------------------------------------------------------------- */

enum { NOISE_BLOCKS = SPAN / ROUNDING_BLOCK + 1 };

/* Computes the random bits of n <= SPAN elements of a parameter, starting at `element`. */
static void noise_run(uint32_t *restrict noise, uint64_t seed, uint64_t stream, int64_t update,
                      int64_t element, int64_t n)
{
    uint32_t word[4][NOISE_BLOCKS];
    int64_t first = element / ROUNDING_BLOCK, last = (element + n - 1) / ROUNDING_BLOCK;
    int blocks = (int)(last - first) + 1;
    for (int b = 0; b < blocks; b++) {
        uint32_t out[4];
        rounding_words(seed, stream, update, first + b, out);
        word[0][b] = out[0];
        word[1][b] = out[1];
        word[2][b] = out[2];
        word[3][b] = out[3];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t b = (element + i) / ROUNDING_BLOCK - first;
        const uint32_t of_block[4] = {word[0][b], word[1][b], word[2][b], word[3][b]};
        noise[i] = rounding_bits(of_block, element + i);
    }
}

/* Computes the random bits of elements [at, at + n) of the range, for its weights or its averages
 * of squares, segment by segment and row by row. */
static void noise_of(uint32_t *noise, const Rounding *rounding, bool squares, int64_t update,
                     int64_t at, int64_t n)
{
    const Segment *s = rounding->segments.data, *end = s + tensor_rows(rounding->segments);
    for (int64_t done = 0, run; done < n; done += run) {
        int64_t i = at + done;
        while (s + 1 < end && s[1].start <= i)
            s++;
        run = n - done;
        if (s + 1 < end && s[1].start - i < run) run = s[1].start - i;
        /* Indices in the whole parameter are consecutive only within a row of this rank's part or,
         * if the part has whole rows, everywhere. */
        if (s->cols != s->whole_cols) {
            int64_t row_rest = s->cols - (i - s->start) % s->cols;
            if (row_rest < run) run = row_rest;
        }
        uint64_t stream = squares ? rounding_square_stream(s->stream) : s->stream;
        noise_run(noise + done, rounding->seed, stream, update, segment_element(s, i), run);
    }
}

/* Rounds the span's values q stochastically and stores them in t, which is bf16: the averages of
 * squares if `squares`, otherwise the weights. */
static void stochastic_store(const UpdateJob *job, Tensor t, bool squares, Span s, const real *q)
{
    uint16_t *rounded = span_address(t, s);
    uint32_t noise[SPAN];
    noise_of(noise, &job->range->rounding, squares, job->update, s.col, s.n);
    for (int64_t i = 0; i < s.n; i++)
        rounded[i] = rounding_bf16((float)q[i], noise[i]);
}

/* Stores the span's new weights q: rounded stochastically if the range has segments and no master
 * weights, otherwise to nearest even. */
static void weights_store(const UpdateJob *job, Span s, const real *q)
{
    const UpdateRange *r = job->range;
    if (tensor_present(r->rounding.segments) && !tensor_present(r->master))
        stochastic_store(job, r->weight, false, s, q);
    else
        reals_store(r->weight.dtype, span_address(r->weight, s), q, s.n);
}

/* Stores the span's new averages of squares q, rounded stochastically if they are kept in bf16. */
static void squares_store(const UpdateJob *job, Span s, const real *q)
{
    Tensor squares = job->range->slot[1];
    if (squares.dtype == BF16)
        stochastic_store(job, squares, true, s, q);
    else
        span_store(squares, s, q);
}

/* ---- rules over a range ---------------------------------------------------------------------- */

/* Updates p to q by AdamW, and m and v in place; q may be p. */
static void adamw_run(real *q, const real *p, const real *grad, real *m, real *v,
                      const UpdateConstants *c, int64_t n)
{
    const UpdateConstants k = *c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        q[i] = adamw_element(p[i], grad[i], &m[i], &v[i], &k);
}

static void sgd_run(real *q, const real *p, const real *grad, real *buffer,
                    const UpdateConstants *c, int64_t n)
{
    const UpdateConstants k = *c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        q[i] = sgd_element(p[i], grad[i], &buffer[i], &k);
}

static void sgd_plain_run(real *q, const real *p, const real *grad, const UpdateConstants *c,
                          int64_t n)
{
    const UpdateConstants k = *c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        q[i] = sgd_plain_element(p[i], grad[i], &k);
}

/* Updates the master weights, or the weights themselves if there are none, and the optimizer slots;
 * then stores the new weights. */
static void update_body(void *context, int64_t task, int worker, bool adam)
{
    const UpdateJob *job = context;
    const UpdateRange *r = job->range;
    bool masters = tensor_present(r->master), momentum = tensor_present(r->slot[0]);
    Tensor values = masters ? r->master : r->weight;
    int64_t n = tensor_count(r->weight);
    int64_t at = pool_cut(n, job->tasks, SPAN, task), end = pool_cut(n, job->tasks, SPAN, task + 1);
    real value_buffer[SPAN], grad_buffer[SPAN], buffer1[SPAN], buffer2[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, n, &s)) {
        const real *grad = span_load(r->grad, s, grad_buffer),
                   *p = span_load(values, s, value_buffer);
        /* p and q may be the same memory: each element is read before it is written, so an update
         * in place needs no second buffer. */
        real *q = span_out(values, s, value_buffer), *slot1 = NULL;
        if (momentum) slot1 = (real *)span_load(r->slot[0], s, buffer1);
        if (adam) {
            real *slot2 = (real *)span_load(r->slot[1], s, buffer2);
            adamw_run(q, p, grad, slot1, slot2, &job->c, s.n);
            squares_store(job, s, slot2);
        } else if (slot1) {
            sgd_run(q, p, grad, slot1, &job->c, s.n);
        } else {
            sgd_plain_run(q, p, grad, &job->c, s.n);
        }
        if (slot1) span_store(r->slot[0], s, slot1);
        if (masters) span_store(r->master, s, q);
        /* Weights stored as reals without masters were already updated in place. */
        if (r->weight.dtype != REAL_DTYPE || masters) weights_store(job, s, q);
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

/* Updates one range with the constants in the job. */
static void update_range(Device *dev, UpdateJob *job, const UpdateRange *range,
                         void (*body)(void *context, int64_t task, int worker))
{
    job->range = range;
    job->tasks = tasks_for(dev, tensor_count(range->weight));
    pool_run(dev->pool, job->tasks, body, job);
}

/* Reads weight or master, grad, m and v; writes weight, master, m and v. Its speed is limited by
 * memory bandwidth or, with stochastic rounding, by the generation of random bits. */
void CPU(adamw)(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
                const AdamW *hyper)
{
    UpdateJob job = {.update = decision->update};
    for (int i = 0; i < n && decision->apply; i++) {
        job.c = adamw_constants(decision, &hyper[range[i].group]);
        update_range(dev, &job, &range[i], adamw_body);
    }
}

void CPU(sgd)(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
              const Sgd *hyper)
{
    UpdateJob job = {.update = decision->update};
    for (int i = 0; i < n && decision->apply; i++) {
        job.c = sgd_constants(decision, &hyper[range[i].group]);
        update_range(dev, &job, &range[i], sgd_body);
    }
}
