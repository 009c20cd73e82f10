/* elementwise.c -- activation ops (gelu, relu2, swiglu) and rotary position embedding on the CPU.
 */
#include "model/kernels/cpu/gelu.h"
#include "model/kernels/cpu/spans.h"

typedef struct {
    Tensor y, x, dy; /* y: the output, which is dx in backward */
    ActivationKind kind;
    int64_t tasks;
    /* rope */
    Tensor table, positions;
    bool inverse;
    Pool *pool;
} ElementwiseJob;

static void gelu_run(real *y, const real *x, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = gelu(x[i]);
}

/* Computes max(x, 0)^2; a NaN stays NaN. */
static void relu2_run(real *y, const real *x, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        real r = x[i] < (real)0 ? (real)0 : x[i];
        y[i] = r * r;
    }
}

static void swiglu_run(real *y, const real *gate, const real *up, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = silu(gate[i]) * up[i];
}

static void forward_body(void *context, int64_t task, int worker)
{
    const ElementwiseJob *job = context;
    int64_t count = tensor_count(job->y), cols = tensor_cols(job->y);
    int64_t at = pool_cut(count, job->tasks, 64, task),
            end = pool_cut(count, job->tasks, 64, task + 1);
    real x_buffer[SPAN], up_buffer[SPAN], y_buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, cols, &s)) {
        const real *x = span_load(job->x, s, x_buffer);
        real *y = span_out(job->y, s, y_buffer);
        if (job->kind == ACTIVATION_GELU) {
            gelu_run(y, x, s.n);
        } else if (job->kind == ACTIVATION_RELU2) {
            relu2_run(y, x, s.n);
        } else {
            Span up = {.row = s.row, .col = s.col + cols, .n = s.n};
            swiglu_run(y, x, span_load(job->x, up, up_buffer), s.n);
        }
        span_store(job->y, s, y);
    }
}

void CPU(activation_forward)(Device *dev, Tensor y, Tensor x, ActivationKind kind)
{
    ElementwiseJob job = {
        .y = y, .x = x, .kind = kind, .tasks = tasks_for(dev, 4 * tensor_count(y))};
    if (kind != ACTIVATION_SWIGLU && tensor_is_dense(y) && tensor_is_dense(x)) {
        /* Treats the tensors as one long row, so that short rows do not give short spans. SwiGLU
         * needs the rows, because its halves are ranges of columns. */
        job.y = tensor_flat(y);
        job.x = tensor_flat(x);
    }
    pool_run(dev->pool, job.tasks, forward_body, &job);
}

static void gelu_backward_run(real *dx, const real *dy, const real *x, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * gelu_derivative(x[i]);
}

static void relu2_backward_run(real *dx, const real *dy, const real *x, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * ((real)2 * (x[i] < (real)0 ? (real)0 : x[i]));
}

/* Computes both halves of dx; each element is read before it is written, because dx may be x. */
static void swiglu_backward_run(real *dgate, real *dup, const real *dy, const real *gate,
                                const real *up, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        real g = gate[i], u = up[i], d = dy[i];
        dgate[i] = d * u * silu_derivative(g);
        dup[i] = d * silu(g);
    }
}

static void backward_body(void *context, int64_t task, int worker)
{
    const ElementwiseJob *job = context;
    int64_t count = tensor_count(job->dy), cols = tensor_cols(job->dy);
    int64_t at = pool_cut(count, job->tasks, 64, task),
            end = pool_cut(count, job->tasks, 64, task + 1);
    real x_buffer[SPAN], up_buffer[SPAN], dy_buffer[SPAN], dx_buffer[SPAN], dup_buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, cols, &s)) {
        const real *x = span_load(job->x, s, x_buffer), *dy = span_load(job->dy, s, dy_buffer);
        real *dx = span_out(job->y, s, dx_buffer);
        if (job->kind == ACTIVATION_GELU) {
            gelu_backward_run(dx, dy, x, s.n);
        } else if (job->kind == ACTIVATION_RELU2) {
            relu2_backward_run(dx, dy, x, s.n);
        } else {
            /* The halves of x, gate and up, are `cols` columns apart in a row, and so are those of
             * dx. */
            Span second = {.row = s.row, .col = s.col + cols, .n = s.n};
            real *dup = span_out(job->y, second, dup_buffer);
            swiglu_backward_run(dx, dup, dy, x, span_load(job->x, second, up_buffer), s.n);
            span_store(job->y, second, dup);
        }
        span_store(job->y, s, dx);
    }
}

void CPU(activation_backward)(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind)
{
    ElementwiseJob job = {
        .y = dx, .x = x, .dy = dy, .kind = kind, .tasks = tasks_for(dev, 4 * tensor_count(dy))};
    if (kind != ACTIVATION_SWIGLU && tensor_is_dense(dx) && tensor_is_dense(dy) &&
        tensor_is_dense(x)) {
        job.y = tensor_flat(dx);
        job.dy = tensor_flat(dy);
        job.x = tensor_flat(x);
    }
    pool_run(dev->pool, job.tasks, backward_body, &job);
}

/* Rotates one head: each pair (low[i], high[i]) by angle i, or by -angle if sign is -1. */
static void rotate(real *restrict low, real *restrict high, const real *restrict cosine,
                   const real *restrict sine, real sign, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        real a = low[i], b = high[i], c = cosine[i], s = sign * sine[i];
        low[i] = a * c - b * s;
        high[i] = b * c + a * s;
    }
}

static void rope_body(void *context, int64_t task, int worker)
{
    const ElementwiseJob *job = context;
    const int32_t *position = job->positions.data;
    int64_t rows = tensor_rows(job->x), cols = tensor_cols(job->x), size = tensor_cols(job->table),
            half = size / 2;
    real *buffer = pool_workspace(job->pool, worker, sizeof(real) * (size_t)cols);
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    for (int64_t n = pool_cut(rows, job->tasks, 1, task); n < end; n++) {
        CHECK(position[n] >= 0 && position[n] < tensor_rows(job->table), "position %d of %lld",
              (int)position[n], (long long)tensor_rows(job->table));
        const real *angle = tensor_row(job->table, position[n]);
        real *x = row_out(job->x, n, buffer);
        if (x == buffer) reals_load(x, job->x.dtype, tensor_row(job->x, n), cols);
        for (int64_t head = 0; head < cols; head += size)
            rotate(x + head, x + head + half, angle, angle + half,
                   job->inverse ? (real)-1 : (real)1, half);
        row_store(job->x, n, x);
    }
}

void CPU(rope)(Device *dev, Tensor x, Tensor table, Tensor positions, bool inverse)
{
    ElementwiseJob job = {
        .x = x, .table = table, .positions = positions, .inverse = inverse, .pool = dev->pool};
    job.tasks = tasks_for(dev, tensor_count(x));
    pool_run(dev->pool, job.tasks, rope_body, &job);
}
