/* column_sum.c -- implements op_column_sum and column_sum.h. */
#include "model/kernels/cpu/column_sum.h"

#include "model/core/min_max.h"

void CPU(strip_sums)(Tensor x, int64_t col, int64_t n, real *sum)
{
    enum { GROUP = 64 };
    int64_t rows = tensor_rows(x);
    real buffer[STRIP];
    memset(sum, 0, sizeof(real) * (size_t)n);
    for (int64_t first = 0; first < rows; first += GROUP) {
        real group[STRIP] = {0};
        for (int64_t row = first; row < min_i64(rows, first + GROUP); row++) {
            const real *from = span_load(x, (Span){.row = row, .col = col, .n = n}, buffer);
            for (int64_t j = 0; j < n; j++)
                group[j] += from[j];
        }
        for (int64_t j = 0; j < n; j++)
            sum[j] += group[j];
    }
}

void CPU(bias_part)(Tensor db, Tensor columns, Tensor x, int64_t col, int64_t n, bool accumulate)
{
    real sum[STRIP], old[STRIP];
    for (int64_t end = col + n; col < end; col += STRIP) {
        Span span = {.col = col, .n = min_i64(STRIP, end - col)};
        const real *value = sum;
        if (tensor_present(columns))
            value = span_address(columns, span);
        else
            CPU(strip_sums)(x, col, span.n, sum);
        if (accumulate) {
            const real *before = span_load(db, span, old);
            for (int64_t j = 0; j < span.n; j++)
                sum[j] = before[j] + value[j];
            value = sum;
        }
        reals_store(db.dtype, span_address(db, span), value, span.n);
    }
}

typedef struct {
    Tensor db, x;
    bool accumulate;
    int64_t tasks;
} ColumnJob;

static void column_body(void *context, int64_t task, int worker)
{
    const ColumnJob *job = context;
    int64_t cols = tensor_cols(job->x), first = pool_cut(cols, job->tasks, LANES, task);
    (void)worker;
    CPU(bias_part)
    (job->db, NO_TENSOR, job->x, first, pool_cut(cols, job->tasks, LANES, task + 1) - first,
     job->accumulate);
}

void CPU(bias_gradient)(Device *dev, Tensor db, Tensor x, bool accumulate)
{
    ColumnJob job = {
        .db = db, .x = x, .accumulate = accumulate, .tasks = tasks_for(dev, tensor_count(x))};
    pool_run(dev->pool, job.tasks, column_body, &job);
}

void CPU(column_sum)(Device *dev, Tensor columns, Tensor x)
{
    CPU(bias_gradient)(dev, columns, x, false);
}
