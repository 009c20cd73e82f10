/* column_sum.c -- op_column_sum and the function that sums a strip of columns (column_sum.h). */
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

typedef struct {
    Tensor columns, x;
    int64_t tasks;
} ColumnJob;

static void column_body(void *context, int64_t task, int worker)
{
    const ColumnJob *job = context;
    int64_t cols = tensor_cols(job->x), end = pool_cut(cols, job->tasks, LANES, task + 1);
    (void)worker;
    for (int64_t col = pool_cut(cols, job->tasks, LANES, task), n; col < end; col += n) {
        n = min_i64(STRIP, end - col);
        CPU(strip_sums)(job->x, col, n, (real *)job->columns.data + col);
    }
}

void CPU(column_sum)(Device *dev, Tensor columns, Tensor x)
{
    ColumnJob job = {.columns = columns, .x = x, .tasks = tasks_for(dev, tensor_count(x))};
    pool_run(dev->pool, job.tasks, column_body, &job);
}
