/* memory.c -- fill, copy and add: tensors of any stride, any mixture of types. */
#include "model/kernels/cpu/spans.h"

typedef struct {
    Tensor y, a, b;
    int64_t tasks;
    uint8_t pattern[8]; /* of fill: one element */
} MemoryJob;

/* n elements of `size` bytes, each the pattern's first bytes. */
static void fill_span(void *to, size_t size, const uint8_t *pattern, int64_t n)
{
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;
    memcpy(&u64, pattern, sizeof u64);
    memcpy(&u32, pattern, sizeof u32);
    memcpy(&u16, pattern, sizeof u16);
    if (u64 == 0 || size == 1) {
        memset(to, pattern[0], (size_t)n * size);
    } else if (size == 8) {
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)to)[i] = u64;
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = u32;
    } else {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = u16;
    }
}

static void fill_body(void *context, int64_t task, int worker)
{
    const MemoryJob *job = context;
    int64_t count = tensor_count(job->y), cols = tensor_cols(job->y);
    int64_t at = pool_cut(count, job->tasks, 4096, task),
            end = pool_cut(count, job->tasks, 4096, task + 1);
    (void)worker;
    while (at < end) {
        Span s = {.row = at / cols, .col = at % cols};
        s.n = cols - s.col < end - at ? cols - s.col : end - at;
        fill_span(span_address(job->y, s), dtype_size(job->y.dtype), job->pattern, s.n);
        at += s.n;
    }
}

void CPU(fill)(Device *dev, Tensor x, double value)
{
    MemoryJob job = {.y = tensor_widest(x), .tasks = tasks_for(dev, tensor_count(x))};
    dtype_set(x.dtype, job.pattern, 0, value);
    pool_run(dev->pool, job.tasks, fill_body, &job);
}

static void copy_body(void *context, int64_t task, int worker)
{
    const MemoryJob *job = context;
    int64_t count = tensor_count(job->y), cols = tensor_cols(job->y);
    int64_t at = pool_cut(count, job->tasks, 64, task),
            end = pool_cut(count, job->tasks, 64, task + 1);
    real buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, cols, &s)) {
        if (job->y.dtype == job->a.dtype) {
            memcpy(span_address(job->y, s), span_address(job->a, s),
                   (size_t)s.n * dtype_size(job->y.dtype));
        } else if (job->y.dtype == REAL_DTYPE) {
            reals_load(span_address(job->y, s), job->a.dtype, span_address(job->a, s), s.n);
        } else {
            reals_store(job->y.dtype, span_address(job->y, s), span_load(job->a, s, buffer), s.n);
        }
    }
}

/* From f64 to 16 bits the value is rounded to f32 on the way, as torch does. */
void CPU(copy)(Device *dev, Tensor y, Tensor x)
{
    MemoryJob job = {.y = y, .a = x, .tasks = tasks_for(dev, tensor_count(y))};
    if (tensor_is_dense(y) && tensor_is_dense(x)) {
        job.y = tensor_flat(y);
        job.a = tensor_flat(x);
    }
    pool_run(dev->pool, job.tasks, copy_body, &job);
}

static void add_body(void *context, int64_t task, int worker)
{
    const MemoryJob *job = context;
    int64_t count = tensor_count(job->y), cols = tensor_cols(job->y);
    int64_t at = pool_cut(count, job->tasks, 64, task),
            end = pool_cut(count, job->tasks, 64, task + 1);
    real a_buffer[SPAN], b_buffer[SPAN], y_buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, cols, &s)) {
        const real *a = span_load(job->a, s, a_buffer), *b = span_load(job->b, s, b_buffer);
        real *y = span_out(job->y, s, y_buffer);
#pragma GCC ivdep
        for (int64_t i = 0; i < s.n; i++)
            y[i] = a[i] + b[i];
        span_store(job->y, s, y);
    }
}

void CPU(add)(Device *dev, Tensor y, Tensor a, Tensor b)
{
    MemoryJob job = {.y = y, .a = a, .b = b, .tasks = tasks_for(dev, tensor_count(y))};
    if (tensor_is_dense(y) && tensor_is_dense(a) && tensor_is_dense(b)) {
        job.y = tensor_flat(y);
        job.a = tensor_flat(a);
        job.b = tensor_flat(b);
    }
    pool_run(dev->pool, job.tasks, add_body, &job);
}
