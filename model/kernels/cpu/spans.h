/* spans.h -- helpers of the elementwise and row kernels: the number of tasks for an amount of work,
 * ranges of elements within a row (spans) converted to reals, and sums in a fixed order. */
#ifndef MODEL_KERNELS_CPU_SPANS_H
#define MODEL_KERNELS_CPU_SPANS_H

#include "model/kernels/cpu/vectors.h"

/* Returns the number of tasks for work on `elements` elements: 1 while waking a thread (about 20
 * us) costs more than it saves, and a few per thread for large work, so that a busy core does not
 * delay the others. */
enum { TASK_ELEMENTS = 32768, TASKS_PER_THREAD = 4 };
static inline int64_t tasks_for(const Device *dev, int64_t elements)
{
    int64_t most = (int64_t)TASKS_PER_THREAD * pool_threads(dev->pool),
            tasks = elements / TASK_ELEMENTS;
    return tasks < 1 ? 1 : tasks > most ? most : tasks;
}

/* A range of at most SPAN elements within one row. */
enum { SPAN = 1024 };
typedef struct {
    int64_t row, col, n;
} Span;

/* Sets *span to the next span of a (rows, cols) shape seen as one sequence, from element *at up to
 * `end`, and advances *at. Returns false at the end. */
static inline bool span_next(int64_t *at, int64_t end, int64_t cols, Span *span)
{
    if (*at >= end) return false;
    *span = (Span){.row = *at / cols, .col = *at % cols, .n = SPAN};
    if (span->n > cols - span->col) span->n = cols - span->col;
    if (span->n > end - *at) span->n = end - *at;
    *at += span->n;
    return true;
}

/* Returns a dense tensor as a single row, so that short rows do not give short spans; a strided
 * tensor is returned unchanged. */
static inline Tensor tensor_widest(Tensor t)
{
    return tensor_present(t) && tensor_is_dense(t) ? tensor_flat(t) : t;
}

static inline void *span_address(Tensor t, Span s)
{
    return (char *)t.data + (size_t)(s.row * t.ld + s.col) * dtype_size(t.dtype);
}

/* Returns the span's elements of t as reals: in place if t stores reals, otherwise converted into
 * buffer. */
static inline const real *span_load(Tensor t, Span s, real *buffer)
{
    if (t.dtype == REAL_DTYPE) return span_address(t, s);
    reals_load(buffer, t.dtype, span_address(t, s), s.n);
    return buffer;
}

/* Returns where to compute the span's elements of an output: in place, or in buffer, from which
 * span_store writes them. */
static inline real *span_out(Tensor t, Span s, real *buffer)
{
    return t.dtype == REAL_DTYPE ? span_address(t, s) : buffer;
}

static inline void span_store(Tensor t, Span s, const real *values)
{
    if (t.dtype != REAL_DTYPE) reals_store(t.dtype, span_address(t, s), values, s.n);
}

/* Returns the sum of n elements; four partial sums hide the latency of an addition. */
static inline real reals_sum(const real *x, int64_t n)
{
    Vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        s0 += vector_load(x + i);
        s1 += vector_load(x + i + LANES);
        s2 += vector_load(x + i + 2 * LANES);
        s3 += vector_load(x + i + 3 * LANES);
    }
    s0 = (s0 + s1) + (s2 + s3);
    real sum = vector_sum(&s0);
    for (; i < n; i++)
        sum += x[i];
    return sum;
}

#endif
