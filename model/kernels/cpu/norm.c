/* norm.c -- LayerNorm and RMSNorm over groups of a row, alone or fused with the residual addition
 * before the norm. */
#include "model/kernels/cpu/spans.h"
#include "model/kernels/vmath.h"

typedef struct {
    Tensor y, stats, x, w, b;
    Tensor sum, a,
        bias; /* residual_norm_forward only: the sum is x + a + bias, and its norm is y */
    Norm norm;
    int64_t tasks;
    Pool *pool;
    /* backward */
    Tensor dx, dy;
    bool accumulate_dx, want_db, want_columns;
    real *partials; /* (tasks, SUMS, W) sums over each task's rows, at the start of worker 0's
                       workspace */
    size_t shared;  /* bytes of partials: each worker's own rows come after this many bytes of its
                       workspace */
} NormJob;

/* The three sums over rows that backward computes. */
enum { SUM_DW, SUM_DB, SUM_COLUMNS, SUMS };

/* Returns the sum of (x - mean)^2. */
static real reals_square_sum(const real *x, real mean, int64_t n)
{
    Vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        Vector d0 = vector_load(x + i) - mean, d1 = vector_load(x + i + LANES) - mean;
        Vector d2 = vector_load(x + i + 2 * LANES) - mean,
               d3 = vector_load(x + i + 3 * LANES) - mean;
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    s0 = (s0 + s1) + (s2 + s3);
    real sum = vector_sum(&s0);
    for (; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

/* Computes y and stats (two numbers per group) from x for every group of one row. b may be NULL; y
 * may be x. */
static void norm_row(real *y, real *stats, const real *x, const real *w, const real *b,
                     int64_t cols, int64_t width, Norm norm)
{
    for (int64_t first = 0; first < cols; first += width, stats += 2) {
        const real *xg = x + first;
        real *yg = y + first;
        real mean = norm.kind == NORM_LAYERNORM ? reals_sum(xg, width) / (real)width : (real)0;
        /* Makes a second pass over the row, which is in the cache. The mean of the squares minus
         * the squared mean would lose digits by cancellation where the mean is much larger than the
         * deviation. RMSNorm uses the mean 0. */
        real variance = reals_square_sum(xg, mean, width) / (real)width;
        real inverse = (real)1 / real_sqrt(variance + (real)norm.epsilon);
        stats[0] = mean;
        stats[1] = inverse;
        if (b) {
#pragma GCC ivdep
            for (int64_t i = 0; i < width; i++)
                yg[i] = (xg[i] - mean) * inverse * w[i] + b[i];
        } else {
#pragma GCC ivdep
            for (int64_t i = 0; i < width; i++)
                yg[i] = (xg[i] - mean) * inverse * w[i];
        }
    }
}

/* Returns a one-dimensional operand as reals: in place, converted into the buffer, or NULL if
 * absent. */
static const real *optional_load(Tensor t, real *buffer)
{
    return tensor_present(t) ? row_load(t, 0, buffer) : NULL;
}

/* Returns the row to normalise: the row of x, or the residual sum, which is computed and stored
 * here and read back as rounded to storage. */
static const real *input_row(const NormJob *job, int64_t row, const real *bias, real *buffer,
                             real *buffer2)
{
    if (!tensor_present(job->sum)) return row_load(job->x, row, buffer);
    const real *x = row_load(job->x, row, buffer), *a = row_load(job->a, row, buffer2);
    real *sum = row_out(job->sum, row, buffer);
    residual_row(sum, x, a, bias, tensor_cols(job->sum));
    /* Later layers read the rounded sum, so the norm must read the same values. */
    row_store(job->sum, row, sum);
    return row_load(job->sum, row, buffer);
}

static void forward_body(void *context, int64_t task, int worker)
{
    const NormJob *job = context;
    int64_t rows = tensor_rows(job->y), cols = tensor_cols(job->y), width = tensor_cols(job->w);
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)(4 * cols + 2 * width));
    real *buffer2 = buffer + cols, *y_buffer = buffer2 + cols, *bias_buffer = y_buffer + cols;
    const real *bias = optional_load(job->bias, bias_buffer);
    const real *w = optional_load(job->w, bias_buffer + cols);
    const real *b = optional_load(job->b, bias_buffer + cols + width);
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t n = pool_cut(rows, job->tasks, 1, task); n < end; n++) {
        const real *x = input_row(job, n, bias, buffer, buffer2);
        real *y = row_out(job->y, n, y_buffer);
        norm_row(y, tensor_row(job->stats, n * (cols / width)), x, w, b, cols, width, job->norm);
        row_store(job->y, n, y);
    }
}

void CPU(norm_forward)(Device *dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm)
{
    NormJob job = {.y = y, .stats = stats, .x = x, .w = w, .b = b, .norm = norm, .pool = dev->pool};
    job.tasks = tasks_for(dev, tensor_count(y));
    pool_run(dev->pool, job.tasks, forward_body, &job);
}

void CPU(residual_norm_forward)(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                                Tensor bias, Tensor w, Tensor b, Norm norm)
{
    NormJob job = {.y = y,
                   .stats = stats,
                   .x = x,
                   .w = w,
                   .b = b,
                   .norm = norm,
                   .pool = dev->pool,
                   .sum = sum,
                   .a = a,
                   .bias = bias};
    job.tasks = tasks_for(dev, tensor_count(y));
    pool_run(dev->pool, job.tasks, forward_body, &job);
}

/* Processes one group: dw += dy xhat and db += dy (if db is not NULL), where xhat = (x - mean)
 * inverse. Stores the means of g and of g xhat, where g = dy w, in *mean_g and *mean_gx. */
static void group_sums(real *restrict dw, real *restrict db, const real *dy, const real *x,
                       const real *w, real mean, real inverse, int64_t n, real *mean_g,
                       real *mean_gx)
{
    Vector vector_g = {0}, vector_gx = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vector d = vector_load(dy + i), xhat = (vector_load(x + i) - mean) * inverse,
               g = d * vector_load(w + i);
        vector_g += g;
        vector_gx += g * xhat;
        vector_store(dw + i, vector_load(dw + i) + d * xhat);
        if (db) vector_store(db + i, vector_load(db + i) + d);
    }
    real sum_g = vector_sum(&vector_g), sum_gx = vector_sum(&vector_gx);
    for (; i < n; i++) {
        real xhat = (x[i] - mean) * inverse, g = dy[i] * w[i];
        sum_g += g;
        sum_gx += g * xhat;
        dw[i] += dy[i] * xhat;
        if (db) db[i] += dy[i];
    }
    *mean_g = sum_g / (real)n;
    *mean_gx = sum_gx / (real)n;
}

static void backward_row(const NormJob *job, real *dx, const real *dy, const real *x,
                         const real *stats, const real *w, real *dw, real *db)
{
    int64_t cols = tensor_cols(job->dx), width = tensor_cols(job->w);
    for (int64_t first = 0; first < cols; first += width, stats += 2) {
        real mean = stats[0], inverse = stats[1], mean_g, mean_gx;
        group_sums(dw, db, dy + first, x + first, w, mean, inverse, width, &mean_g, &mean_gx);
        if (job->norm.kind == NORM_RMSNORM) mean_g = (real)0; /* RMSNorm subtracts no mean */
        const real *dyg = dy + first, *xg = x + first;
        real *dxg = dx + first;
        if (job->accumulate_dx) {
#pragma GCC ivdep
            for (int64_t i = 0; i < width; i++)
                dxg[i] += inverse * (dyg[i] * w[i] - mean_g - (xg[i] - mean) * inverse * mean_gx);
        } else {
#pragma GCC ivdep
            for (int64_t i = 0; i < width; i++)
                dxg[i] = inverse * (dyg[i] * w[i] - mean_g - (xg[i] - mean) * inverse * mean_gx);
        }
    }
}

/* Computes sum += x. */
static void row_add(real *restrict sum, const real *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static void backward_body(void *context, int64_t task, int worker)
{
    const NormJob *job = context;
    int64_t rows = tensor_rows(job->dx), cols = tensor_cols(job->dx), width = tensor_cols(job->w);
    size_t own = sizeof(real) * (size_t)(3 * cols + width);
    real *dy_buffer =
        (real *)((char *)pool_workspace(job->pool, worker, job->shared + own) + job->shared);
    real *x_buffer = dy_buffer + cols, *dx_buffer = x_buffer + cols;
    const real *w = optional_load(job->w, dx_buffer + cols);
    /* Each task has its own partial sums. The number of tasks depends only on the shape and the
     * number of threads, and the sums are added in order, so the bits do not depend on timing. */
    real *sums = job->partials + task * SUMS * width, *dw = sums + SUM_DW * width;
    real *db = job->want_db ? sums + SUM_DB * width : NULL;
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    memset(sums, 0, sizeof(real) * (size_t)(SUMS * width));
    for (int64_t n = pool_cut(rows, job->tasks, 1, task); n < end; n++) {
        const real *dy = row_load(job->dy, n, dy_buffer), *x = row_load(job->x, n, x_buffer);
        real *dx = row_out(job->dx, n, dx_buffer);
        /* If dx is stored as reals, it is added to in place. Otherwise it is first converted into
         * the buffer. */
        if (job->accumulate_dx && dx == dx_buffer)
            reals_load(dx, job->dx.dtype, tensor_row(job->dx, n), cols);
        backward_row(job, dx, dy, x, tensor_row(job->stats, n * (cols / width)), w, dw, db);
        row_store(job->dx, n, dx);
        if (job->want_columns)
            row_add(sums + SUM_COLUMNS * width, row_load(job->dx, n, dx_buffer), cols);
    }
}

/* Computes d (W) grad = the sum of all tasks' partial sums number `which` (SUM_DW and so on), added
 * in ascending order of the tasks; d += that sum with `accumulate`. Does nothing if d is absent. */
static void partials_sum(const NormJob *job, int which, Tensor d, bool accumulate)
{
    if (!tensor_present(d)) return;
    int64_t n = tensor_cols(d);
    real *partials = job->partials + which * n;
    for (int64_t t = 1; t < job->tasks; t++)
        row_add(partials, partials + t * SUMS * n, n);
    for (int64_t begin = 0; accumulate && begin < n; begin += SPAN) {
        real old[SPAN];
        Span s = {.row = 0, .col = begin, .n = n - begin < SPAN ? n - begin : SPAN};
        reals_load(old, d.dtype, span_address(d, s), s.n);
        for (int64_t i = 0; i < s.n; i++)
            partials[begin + i] += old[i];
    }
    reals_store(d.dtype, d.data, partials, n);
}

/* Each task sums its rows separately, and these sums are added in ascending order. With N rows of K
 * groups of W elements, reads 3 N K W and writes N K W elements. The column sums read a row of dx
 * while it is in the cache. */
void CPU(norm_backward)(Device *dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw,
                        Tensor db, bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w,
                        Norm norm)
{
    int64_t width = tensor_cols(w);
    NormJob job = {.dx = dx,
                   .dy = dy,
                   .x = x,
                   .stats = stats,
                   .w = w,
                   .norm = norm,
                   .pool = dev->pool,
                   .accumulate_dx = accumulate_dx,
                   .want_db = tensor_present(db),
                   .want_columns = tensor_present(columns)};
    job.tasks = tasks_for(dev, tensor_count(dx));
    job.shared = sizeof(real) * (size_t)(job.tasks * SUMS * width);
    job.shared = (job.shared + 63) / 64 * 64;
    /* The partial sums are at the start of worker 0's workspace, where all tasks write to them.
     * Every worker skips the same number of bytes of its own workspace, so worker 0 does not
     * overwrite them. */
    job.partials = pool_workspace(dev->pool, 0, job.shared);
    pool_run(dev->pool, job.tasks, backward_body, &job);
    partials_sum(&job, SUM_DW, dw, accumulate);
    partials_sum(&job, SUM_DB, db, accumulate);
    partials_sum(&job, SUM_COLUMNS, columns, false);
}

static void bias_residual_body(void *context, int64_t task, int worker)
{
    const NormJob *job = context;
    int64_t rows = tensor_rows(job->y), cols = tensor_cols(job->y);
    real *x_buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)(4 * cols));
    real *a_buffer = x_buffer + cols, *y_buffer = a_buffer + cols;
    const real *bias = optional_load(job->bias, y_buffer + cols);
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t n = pool_cut(rows, job->tasks, 1, task); n < end; n++) {
        real *y = row_out(job->y, n, y_buffer);
        residual_row(y, row_load(job->x, n, x_buffer), row_load(job->a, n, a_buffer), bias, cols);
        row_store(job->y, n, y);
    }
}

void CPU(bias_residual)(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x)
{
    NormJob job = {.y = y,
                   .a = a,
                   .bias = bias,
                   .x = x,
                   .pool = dev->pool,
                   .tasks = tasks_for(dev, tensor_count(y))};
    pool_run(dev->pool, job.tasks, bias_residual_body, &job);
}
