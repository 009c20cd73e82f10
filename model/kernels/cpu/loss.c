/* loss.c -- the cross-entropy loss of rows of logits, its gradient, which overwrites the logits,
 * and the sum of the losses. */
#include "model/kernels/cpu/loss.h"

typedef struct {
    Tensor losses, logits, targets;
    int64_t vocab_size, tasks;
    real scale;
    bool backward;
    Pool *pool;
} LossJob;

/* Returns the loss of one row of n logits (padding excluded); with `backward`, x becomes the
 * gradient. Makes three passes over a row that stays in the second-level cache: maximum,
 * exponentials and their sum, scaling. */
static real loss_row(real *x, int64_t n, int64_t target, real scale, bool backward)
{
    real most = reals_max(x, n), chosen = x[target], scratch[SPAN];
    /* SPAN exponentials at a time are summed in reals, and these sums are added in double: float
     * alone would lose digits over a vocabulary of 50000. The maximum is subtracted first, so no
     * exponential overflows. */
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += SPAN)
        sum += exponentials(backward ? x + begin : scratch, x + begin, most,
                            n - begin < SPAN ? n - begin : SPAN);
    if (backward) {
        real factor = (real)(scale / sum);
        for (int64_t i = 0; i < n; i++)
            x[i] *= factor;
        /* The gradient is scale * (softmax - onehot). x already holds scale * softmax. */
        x[target] -= scale;
    }
    return (most - chosen) + real_log((real)sum);
}

static void loss_body(void *context, int64_t task, int worker)
{
    const LossJob *job = context;
    const int32_t *target = job->targets.data;
    int64_t rows = tensor_rows(job->logits), cols = tensor_cols(job->logits), n = job->vocab_size;
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)cols);
    for (int64_t row = pool_cut(rows, job->tasks, 1, task); row < end; row++) {
        real *x = row_out(job->logits, row, buffer), *loss = (real *)job->losses.data + row;
        CHECK(target[row] < n, "target %d of %lld", (int)target[row], (long long)n);
        *loss = (real)0;
        if (target[row] >= 0) {
            if (x == buffer) reals_load(x, job->logits.dtype, tensor_row(job->logits, row), n);
            *loss = loss_row(x, n, target[row], job->scale, job->backward);
        }
        if (!job->backward) continue;
        /* Padding columns, and whole rows without a target, get the gradient 0, because the matrix
         * multiplications that follow read whole rows. */
        int64_t kept = target[row] >= 0 ? n : 0;
        memset(x + kept, 0, sizeof(real) * (size_t)(cols - kept));
        row_store(job->logits, row, x);
    }
}

void CPU(loss)(Device *dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocab_size,
               Tensor scale, bool backward)
{
    LossJob job = {.losses = losses,
                   .logits = logits,
                   .targets = targets,
                   .vocab_size = vocab_size,
                   .backward = backward,
                   .pool = dev->pool,
                   .tasks = tasks_for(dev, 2 * tensor_count(logits))};
    if (backward) job.scale = (real) * (const double *)scale.data;
    pool_run(dev->pool, job.tasks, loss_body, &job);
}

void CPU(loss_sum)(Device *dev, Tensor stats, Tensor losses, Tensor targets)
{
    double *sum = stats.data;
    const real *loss = losses.data;
    const int32_t *target = targets.data;
    int64_t n = tensor_count(losses);
    (void)dev;
    for (int64_t i = 0; i < n; i++) {
        if (target[i] < 0) continue;
        sum[0] += (double)loss[i];
        sum[1] += 1.0;
    }
}
