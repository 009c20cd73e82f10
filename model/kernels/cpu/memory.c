/* memory.c -- fill, copy and add for tensors of any row stride and any mixture of types; sum and
 * maximum of many dense tensors. */
#include "model/kernels/cpu/spans.h"

typedef struct {
    Tensor y, a, b;
    int64_t tasks;
    uint8_t pattern[8]; /* fill only: the bytes of one element */
} MemoryJob;

/* Writes n elements of `size` bytes, each equal to the first bytes of the pattern. */
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

/* Copies with conversion. From f64 to 16 bits the value is first rounded to f32, as torch does. */
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

/* ---- sum --------------------------------------------------------------------------------------
 */

typedef struct {
    Tensor dst;
    const Tensor *src;
    int n;
    bool stream; /* true: dst is too long to stay in the caches, so it is written past them */
    bool apart;  /* true: the sources are read in several blocks; dst may be a source of a later
                    block, so it is written last */
    int64_t tasks;
} SumJob;

/* Results of at least this size are written past the caches: a normal store would read each cache
 * line first. */
enum { STREAM_BYTES = 1 << 19 };

/* Writes the sum of n arrays of `count` reals to `to`, which may be one of the arrays. All arrays
 * are read in one pass, so partial sums stay in registers. */
static void reals_sum_of(real *to, const real *const *x, int n, int64_t count)
{
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        Vector v[4];
        for (int r = 0; r < 4; r++)
            v[r] = vector_load(x[0] + i + r * LANES);
        for (int k = 1; k < n; k++)
            for (int r = 0; r < 4; r++)
                v[r] += vector_load(x[k] + i + r * LANES);
        for (int r = 0; r < 4; r++)
            vector_store(to + i + r * LANES, v[r]);
    }
    for (; i < count; i++) {
        real sum = x[0][i];
        for (int k = 1; k < n; k++)
            sum += x[k][i];
        to[i] = sum;
    }
}

/* Writes the sum of the sources over the span s to `to`; the sources are stored as reals. More than
 * SUM_SOURCES sources are added in blocks, each to the sum of those before it. `to` may be one of
 * the sources' spans if there is a single block. */
static void stored_sum_of(real *to, const SumJob *job, Span s)
{
    const real *x[1 + SUM_SOURCES];
    for (int k = 0; k < job->n;) {
        int n = 0;
        if (k > 0) x[n++] = to;
        for (int end = k + SUM_SOURCES; k < job->n && k < end; k++)
            x[n++] = span_address(job->src[k], s);
        reals_sum_of(to, x, n, s.n);
    }
}

/* Like stored_sum_of, for sources that must be converted; `to` must not overlap a source. */
static void loaded_sum_of(real *restrict to, const SumJob *job, Span s)
{
    real term[SPAN];
    reals_load(to, job->src[0].dtype, span_address(job->src[0], s), s.n);
    for (int k = 1; k < job->n; k++) {
        reals_load(term, job->src[k].dtype, span_address(job->src[k], s), s.n);
        for (int64_t i = 0; i < s.n; i++)
            to[i] += term[i];
    }
}

static void sum_body(void *context, int64_t task, int worker)
{
    const SumJob *job = context;
    int64_t count = tensor_count(job->dst);
    int64_t at = pool_cut(count, job->tasks, SPAN, task),
            end = pool_cut(count, job->tasks, SPAN, task + 1);
    real buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, count, &s)) {
        real *to = job->stream || job->apart ? buffer : span_out(job->dst, s, buffer);
        if (job->src[0].dtype == REAL_DTYPE)
            stored_sum_of(to, job, s);
        else
            loaded_sum_of(to, job, s);
        if (job->stream)
            reals_stream(span_address(job->dst, s), to, s.n);
        else if (job->apart)
            reals_store(job->dst.dtype, span_address(job->dst, s), to, s.n);
        else
            span_store(job->dst, s, to);
    }
    streams_end();
}

/* Reads each source once and writes dst once, so its speed is limited by memory bandwidth. */
void CPU(sum)(Device *dev, Tensor dst, const Tensor *src, int n)
{
    if (n == 1) {
        if (dst.data != src[0].data) CPU(copy)(dev, dst, src[0]);
        return;
    }
    SumJob job = {.dst = dst, .src = src, .n = n};
    job.stream = dst.dtype == REAL_DTYPE && tensor_bytes(dst) >= STREAM_BYTES;
    job.apart = n > SUM_SOURCES;
    job.tasks = tasks_for(dev, n * tensor_count(dst));
    pool_run(dev->pool, job.tasks, sum_body, &job);
}

/* ---- maximum ----------------------------------------------------------------------------------
 */

static void maximum_body(void *context, int64_t task, int worker)
{
    const SumJob *job = context;
    int64_t count = tensor_count(job->dst);
    int64_t at = pool_cut(count, job->tasks, SPAN, task),
            end = pool_cut(count, job->tasks, SPAN, task + 1);
    real most[SPAN], buffer[SPAN];
    Span s;
    (void)worker;
    while (span_next(&at, end, count, &s)) {
        reals_load(most, job->src[0].dtype, span_address(job->src[0], s), s.n);
        for (int k = 1; k < job->n; k++) {
            const real *x = span_load(job->src[k], s, buffer);
            /* x != x detects a NaN, for which x > most is false; a NaN must be kept. */
            for (int64_t i = 0; i < s.n; i++)
                most[i] = x[i] > most[i] || x[i] != x[i] ? x[i] : most[i];
        }
        reals_store(job->dst.dtype, span_address(job->dst, s), most, s.n);
    }
}

void CPU(maximum)(Device *dev, Tensor dst, const Tensor *src, int n)
{
    SumJob job = {.dst = dst, .src = src, .n = n};
    job.tasks = tasks_for(dev, n * tensor_count(dst));
    pool_run(dev->pool, job.tasks, maximum_body, &job);
}
