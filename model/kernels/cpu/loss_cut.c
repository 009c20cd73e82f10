/* loss_cut.c -- the cross-entropy loss of rows of logits whose columns are split among ranks: each
 * rank's maximum and its terms of the sum, then the losses and gradients once both have been
 * reduced over all ranks. */
#include "model/kernels/cpu/loss.h"

typedef struct {
    Tensor losses, logits, targets, most, terms;
    int64_t first_col, vocab_size, tasks;
    real scale;
    bool backward;
    Pool *pool;
} CutJob;

/* Returns how many of this rank's columns belong to the vocabulary: the remaining ones are padding.
 */
static int64_t real_columns(const CutJob *job)
{
    int64_t cols = tensor_cols(job->logits), left = job->vocab_size - job->first_col;
    return left < 0 ? 0 : left < cols ? left : cols;
}

/* Returns the row's target as a column index of this rank, or -1 if the target is on another rank
 * or missing. */
static int64_t own_target(const CutJob *job, int64_t row)
{
    int64_t target = ((const int32_t *)job->targets.data)[row];
    CHECK(target < job->vocab_size, "target %lld of %lld", (long long)target,
          (long long)job->vocab_size);
    int64_t own = target - job->first_col;
    return own >= 0 && own < tensor_cols(job->logits) ? own : -1;
}

static bool has_target(const CutJob *job, int64_t row)
{
    return ((const int32_t *)job->targets.data)[row] >= 0;
}

/* Returns the first n logits of a row as reals, in place or converted into the buffer. */
static const real *logits_load(const CutJob *job, int64_t row, int64_t n, real *buffer)
{
    const void *x = tensor_row(job->logits, row);
    if (job->logits.dtype == REAL_DTYPE) return x;
    reals_load(buffer, job->logits.dtype, x, n);
    return buffer;
}

static CutJob job_of(const Device *dev, Tensor logits, int64_t first_col, int64_t vocab_size)
{
    return (CutJob){.logits = logits,
                    .first_col = first_col,
                    .vocab_size = vocab_size,
                    .pool = dev->pool,
                    .tasks = tasks_for(dev, 2 * tensor_count(logits))};
}

/* ---- maximum of each row --------------------------------------------------------------------- */

static void max_body(void *context, int64_t task, int worker)
{
    const CutJob *job = context;
    int64_t rows = tensor_rows(job->logits), n = real_columns(job);
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)(n + 1));
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t row = pool_cut(rows, job->tasks, 1, task); row < end; row++)
        ((real *)job->most.data)[row] =
            n > 0 ? reals_max(logits_load(job, row, n, buffer), n) : -(real)INFINITY;
}

void CPU(loss_max)(Device *dev, Tensor most, Tensor logits, int64_t first_col, int64_t vocab_size)
{
    CutJob job = job_of(dev, logits, first_col, vocab_size);
    job.most = most;
    pool_run(dev->pool, job.tasks, max_body, &job);
}

/* ---- terms of the sums ----------------------------------------------------------------------- */

/* Returns the sum of exp(x[i] - most), added in the same order as in op_loss. */
static real sum_of(const real *x, int64_t n, real most)
{
    real scratch[SPAN];
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += SPAN)
        sum += exponentials(scratch, x + begin, most, n - begin < SPAN ? n - begin : SPAN);
    return (real)sum;
}

static void terms_body(void *context, int64_t task, int worker)
{
    const CutJob *job = context;
    int64_t rows = tensor_rows(job->logits), n = real_columns(job);
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)(n + 1));
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t row = pool_cut(rows, job->tasks, 1, task); row < end; row++) {
        real *terms = (real *)job->terms.data + 2 * row, most = ((real *)job->most.data)[row];
        int64_t own = own_target(job, row);
        terms[0] = terms[1] = (real)0;
        if (!has_target(job, row)) continue;
        const real *x = logits_load(job, row, n, buffer);
        terms[0] = sum_of(x, n, most);
        if (own >= 0) terms[1] = x[own] - most;
    }
}

void CPU(loss_terms)(Device *dev, Tensor terms, Tensor logits, Tensor targets, Tensor most,
                     int64_t first_col, int64_t vocab_size)
{
    CutJob job = job_of(dev, logits, first_col, vocab_size);
    job.terms = terms;
    job.targets = targets;
    job.most = most;
    pool_run(dev->pool, job.tasks, terms_body, &job);
}

/* ---- losses and gradients -------------------------------------------------------------------- */

/* Sets x = scale * (softmax - onehot) in n columns; `own` is the target's column, negative if it is
 * not among this rank's columns. */
static void gradient_row(real *x, int64_t n, real most, real sum, int64_t own, real scale)
{
    real factor = scale / sum;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        x[i] = real_exp(x[i] - most) * factor;
    if (own >= 0) x[own] -= scale;
}

static void finish_body(void *context, int64_t task, int worker)
{
    const CutJob *job = context;
    int64_t rows = tensor_rows(job->logits), cols = tensor_cols(job->logits), n = real_columns(job);
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)cols);
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t row = pool_cut(rows, job->tasks, 1, task); row < end; row++) {
        const real *terms = (const real *)job->terms.data + 2 * row;
        int64_t own = own_target(job, row), kept = has_target(job, row) ? n : 0;
        ((real *)job->losses.data)[row] =
            has_target(job, row) ? real_log(terms[0]) - terms[1] : (real)0;
        if (!job->backward) continue;
        real *x = row_out(job->logits, row, buffer);
        if (x == buffer) reals_load(x, job->logits.dtype, tensor_row(job->logits, row), kept);
        gradient_row(x, kept, ((real *)job->most.data)[row], terms[0], own, job->scale);
        memset(x + kept, 0, sizeof(real) * (size_t)(cols - kept));
        row_store(job->logits, row, x);
    }
}

void CPU(loss_finish)(Device *dev, Tensor losses, Tensor logits, Tensor targets, Tensor most,
                      Tensor terms, int64_t first_col, int64_t vocab_size, Tensor scale,
                      bool backward)
{
    CutJob job = job_of(dev, logits, first_col, vocab_size);
    job.losses = losses;
    job.targets = targets;
    job.most = most;
    job.terms = terms;
    job.backward = backward;
    if (backward) job.scale = (real) * (const double *)scale.data;
    pool_run(dev->pool, job.tasks, finish_body, &job);
}
