/* embedding.c -- embedding ops on the CPU: look up rows of a table by index, and sum gradient rows
 * per index. */
#include "model/kernels/cpu/spans.h"

typedef struct {
    Tensor x, table, index;
    int64_t first_row, tasks;
    bool accumulate;
    /* backward: the rows n with the same index form a chain (a linked list) in ascending order:
     * head, next, ..., -1 */
    const int32_t *head, *next;
    int64_t n_heads;
} EmbeddingJob;

static void gather_body(void *context, int64_t task, int worker)
{
    const EmbeddingJob *job = context;
    const int32_t *token = job->index.data;
    int64_t rows = tensor_rows(job->x),
            bytes = tensor_cols(job->x) * (int64_t)dtype_size(job->x.dtype);
    int64_t end = pool_cut(rows, job->tasks, 1, task + 1);
    (void)worker;
    for (int64_t n = pool_cut(rows, job->tasks, 1, task); n < end; n++) {
        int64_t row = token[n] - job->first_row;
        if (row >= 0 && row < tensor_rows(job->table))
            memcpy(tensor_row(job->x, n), tensor_row(job->table, row), (size_t)bytes);
        else
            memset(tensor_row(job->x, n), 0, (size_t)bytes);
    }
}

void CPU(token_forward)(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row)
{
    EmbeddingJob job = {.x = x, .table = table, .index = tokens, .first_row = first_row};
    job.tasks = tasks_for(dev, tensor_count(x));
    pool_run(dev->pool, job.tasks, gather_body, &job);
}

static void position_body(void *context, int64_t task, int worker)
{
    const EmbeddingJob *job = context;
    const int32_t *position = job->index.data;
    int64_t count = tensor_count(job->x);
    int64_t at = pool_cut(count, job->tasks, 64, task),
            end = pool_cut(count, job->tasks, 64, task + 1);
    real x_buffer[SPAN], t_buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, tensor_cols(job->x), &s)) {
        int64_t row = position[s.row];
        CHECK(row >= 0 && row < tensor_rows(job->table), "position %lld of %lld", (long long)row,
              (long long)tensor_rows(job->table));
        Span from = {.row = row, .col = s.col, .n = s.n};
        const real *table = span_load(job->table, from, t_buffer),
                   *x = span_load(job->x, s, x_buffer);
        real *out = span_out(job->x, s, x_buffer);
#pragma GCC ivdep
        for (int64_t i = 0; i < s.n; i++)
            out[i] = x[i] + table[i];
        span_store(job->x, s, out);
    }
}

void CPU(position_add)(Device *dev, Tensor x, Tensor table, Tensor positions)
{
    EmbeddingJob job = {
        .x = x, .table = table, .index = positions, .tasks = tasks_for(dev, tensor_count(x))};
    pool_run(dev->pool, job.tasks, position_body, &job);
}

/* Sums, for each index, its chain of gradient rows, in the task's range of columns. */
static void chain_body(void *context, int64_t task, int worker)
{
    const EmbeddingJob *job = context;
    int64_t cols = tensor_cols(job->table);
    int64_t begin = pool_cut(cols, job->tasks, 64, task),
            end = pool_cut(cols, job->tasks, 64, task + 1);
    const int32_t *index = job->index.data;
    real sum[SPAN], buffer[SPAN];
    (void)worker;
    for (int64_t h = 0; h < job->n_heads; h++) {
        Span to = {.row = index[job->head[h]] - job->first_row, .col = begin};
        for (; to.col < end; to.col += to.n) {
            to.n = end - to.col < SPAN ? end - to.col : SPAN;
            memset(sum, 0, sizeof(real) * (size_t)to.n);
            if (job->accumulate)
                reals_load(sum, job->table.dtype, span_address(job->table, to), to.n);
            /* The sum is in reals and is rounded only once, however long the chain is. */
            for (int64_t n = job->head[h]; n >= 0; n = job->next[n]) {
                Span from = {.row = n, .col = to.col, .n = to.n};
                const real *x = span_load(job->x, from, buffer);
                for (int64_t i = 0; i < to.n; i++)
                    sum[i] += x[i];
            }
            reals_store(job->table.dtype, span_address(job->table, to), sum, to.n);
        }
    }
}

/* Computes dtable =/+= rows of dx summed per index. Tasks are ranges of columns, because frequent
 * tokens would make tasks by rows uneven. */
static void scatter(Device *dev, Tensor dtable, Tensor dx, Tensor index, int64_t first_row,
                    bool accumulate)
{
    int64_t rows = tensor_rows(dx), table_rows = tensor_rows(dtable), n_heads = 0;
    size_t bytes = sizeof(int32_t) * (size_t)(2 * rows + table_rows);
    int32_t *head = pool_workspace(dev->pool, 0, bytes), *next = head + rows, *last = next + rows;
    if (!accumulate) CPU(fill)(dev, dtable, 0.0);
    /* Builds one chain per table row that occurs, in ascending n: the order of summation that ops.h
     * requires. */
    memset(last, 0xff, sizeof(int32_t) * (size_t)table_rows);
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = ((const int32_t *)index.data)[n] - first_row;
        next[n] = -1;
        if (row < 0 || row >= table_rows) continue;
        if (last[row] < 0)
            head[n_heads++] = (int32_t)n;
        else
            next[last[row]] = (int32_t)n;
        last[row] = (int32_t)n;
    }
    EmbeddingJob job = {.x = dx,
                        .table = dtable,
                        .index = index,
                        .first_row = first_row,
                        .accumulate = accumulate,
                        .head = head,
                        .next = next,
                        .n_heads = n_heads};
    job.tasks = tasks_for(dev, tensor_count(dx));
    pool_run(dev->pool, job.tasks, chain_body, &job);
}

void CPU(token_backward)(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                         bool accumulate)
{
    scatter(dev, dtable, dx, tokens, first_row, accumulate);
}

void CPU(position_backward)(Device *dev, Tensor dtable, Tensor dx, Tensor positions,
                            bool accumulate)
{
    scatter(dev, dtable, dx, positions, 0, accumulate);
}
